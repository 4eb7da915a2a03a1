"""The Ray engine: trainings and cells as tasks of a Ray cluster, or of a Ray that is started here.

The driver (this process) alone writes to the study's file. Tasks return what they found; one whose worker or machine
dies is run again, and a training goes on from its last checkpoint. Checkpoints are in the study's folder, which every
machine of the cluster must see.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from avuc.core.errors import InputError, require
from avuc.core.progress import Progress
from avuc.study.claims import Claims
from avuc.study.grid import CLEAN, VALIDATION, ModelKey, Plan, TestSet
from avuc.study.recipe import parse_recipe
from avuc.study.store import Cell, Store, Trained
from avuc.study.worker import Learned, Work, learned_of

__all__ = ["run"]

RETRIES = 5
# of a GPU, for judging: several small networks share one; a training has its own
JUDGING_SHARE = 0.25

_WORK: dict[tuple[str, str, str], Work] = {}  # what this worker process has loaded, for its next task


def run(
    plan: Plan, store: Store, directory: Path, devices: Sequence[str], progress: bool, until: float | None = None
) -> None:
    """Do what is missing, as tasks. `RAY_ADDRESS` names a cluster; without it a Ray of this machine is started."""
    if until is not None:
        raise InputError("--minutes: tasks on a cluster have no common clock; use --engine local, or stop it by Ctrl-C")
    ray = require("ray", "ray", "--engine ray")
    claims = Claims(store.path.with_name("claims.lock"))
    try:
        with claims.claim("ray driver") as got, _cluster(ray):
            if not got:
                raise InputError(f"{directory}: another Ray driver is at work on this study; let it finish, or end it")
            _Driver(ray, plan, store, directory.resolve(), devices[0], progress).run()
    finally:
        claims.close()


@contextlib.contextmanager
def _cluster(ray: Any) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    # a local Ray: no dashboard, and no copies of worker output in this terminal
    own = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
    try:
        ray.init(log_to_driver=False, configure_logging=True, logging_level="error", **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"ray: cannot start or reach a cluster ({' '.join(str(error).split())[:200]})") from error
    try:
        yield
    finally:
        ray.shutdown()


class _Driver:
    def __init__(self, ray: Any, plan: Plan, store: Store, directory: Path, device: str, progress: bool) -> None:
        self.ray, self.plan, self.store, self.progress = ray, plan, store, progress
        kind = torch.device(device).type
        self.on_gpu = kind == "cuda" or ray.cluster_resources().get("GPU", 0) > 0
        # a task sees the GPU it was given as the first one
        self.common = (
            plan.recipe.to_toml(),
            str(directory),
            "cuda:0" if self.on_gpu else kind,
            torch.get_num_threads(),
        )
        settings = {"max_retries": RETRIES, "num_cpus": 1}
        self.train = ray.remote(**settings, num_gpus=1 if self.on_gpu else 0)(_train)
        self.judge = ray.remote(**settings, num_gpus=JUDGING_SHARE if self.on_gpu else 0)(_judge)

    def run(self) -> None:
        bar = Progress("training models and judging cells", len(self.plan.models) + self.plan.cells)
        with bar if self.progress else contextlib.nullcontext():
            bar.advance(len(self.store.trained() & set(self.plan.models)) + len(self.store.done()))
            for waits in (False, True):  # rows that start from others come second
                missing = [key for key in self.plan.models if bool(self.plan.recipe.row(key.method).start) == waits]
                missing = [key for key in missing if key not in self.store.trained()]
                at_once = None if self.on_gpu else 1
                tasks = [self.train.remote(*self.common, group) for group in self.plan.groups(missing, at_once)]
                for trained in self._results(tasks):
                    for one in trained:
                        self.store.add_model(one)
                    bar.advance(len(trained), "training")
            shifted = [one for one in self.plan.sets if one not in (VALIDATION, CLEAN)]
            for stage in ([VALIDATION], [CLEAN], shifted):
                tasks = [task for one in stage for task in self._judging(one)]
                for cells in self._results(tasks):
                    self.store.add_cells(cells)
                    bar.advance(len(cells), f"judging {cells[0].test_set}")

    def _judging(self, test_set: TestSet) -> list[Any]:
        """One task for each model; cells on one set are near each other in the queue, so that workers reuse images."""
        done, tasks = self.store.done(), []
        for key in self.plan.models:
            rows = self.plan.pending(key, test_set, done)
            if rows:
                names = [row.name for row in rows]
                learned = {row.name: learned_of(self.store, row, key.seed) for row in rows}
                tasks.append(self.judge.remote(*self.common, key, test_set, names, learned))
        return tasks

    def _results(self, tasks: list[Any]) -> Iterator[Any]:
        """As they come in. An input error of a task is one here; anything else is Ray's to tell."""
        while tasks:
            ready, tasks = self.ray.wait(tasks)
            for one in ready:
                try:
                    yield self.ray.get(one)
                except self.ray.exceptions.RayTaskError as error:
                    cause = error.cause if isinstance(error.cause, InputError) else None
                    if cause is None:
                        raise
                    raise InputError(str(cause)) from error
                except self.ray.exceptions.RayError as error:
                    reason = str(error).splitlines()[0][:200]
                    raise InputError(
                        f"ray: a task failed {RETRIES + 1} times ({reason}); everything finished is kept: run the same "
                        "command again"
                    ) from error


# what runs in workers


def _work(recipe: str, directory: str, device: str, threads: int) -> Work:
    # Ray sets one thread for each CPU of a task; sums in another order would be other rows
    torch.set_num_threads(threads)
    key = (recipe, directory, device)
    if key not in _WORK:
        _WORK.clear()
        _WORK[key] = Work(parse_recipe(recipe), Path(directory), device, progress=False)
    return _WORK[key]


def _train(recipe: str, directory: str, device: str, threads: int, keys: list[ModelKey]) -> list[Trained]:
    return _work(recipe, directory, device, threads).train(keys)


def _judge(
    recipe: str,
    directory: str,
    device: str,
    threads: int,
    key: ModelKey,
    test_set: TestSet,
    names: list[str],
    learned: dict[str, Learned],
) -> list[Cell]:
    work = _work(recipe, directory, device, threads)
    return work.judge(key, test_set, [work.recipe.row(name) for name in names], learned)
