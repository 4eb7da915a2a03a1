"""The Ray engine: trainings and evaluations are tasks of a Ray cluster, or of a Ray started on this machine.

Only the driver (this process) writes to the study's file; tasks return their results. A task whose worker or machine
dies is run again, and a training resumes from its last checkpoint. Checkpoints are in the study's folder, which every
machine of the cluster must see.
"""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from avuc.core.errors import InputError, require
from avuc.core.progress import Progress
from avuc.study.data.own import forget, not_repeatable
from avuc.study.data.sets import StudyData
from avuc.study.engines.claims import Claims
from avuc.study.evaluation.validation_fit import ValidationFit, validation_fit
from avuc.study.grid import CLEAN, VALIDATION, ModelKey, Plan, TestSet
from avuc.study.own.code import restore
from avuc.study.recipe.parser import parse_recipe
from avuc.study.store.records import Evaluation, Trained
from avuc.study.store.store import Store
from avuc.study.worker import StudyWorker

RETRIES = 5
# share of a GPU for an evaluation: several small networks share one; a training has its own
EVALUATION_SHARE = 0.25

_WORKERS: dict[str, StudyWorker] = {}  # by run; a worker keeps loaded data and models for the next task


def run(
    plan: Plan, store: Store, directory: Path, devices: Sequence[str], progress: bool, until: float | None = None
) -> None:
    """Do the missing work as tasks. `RAY_ADDRESS` names a cluster; without it a Ray is started on this machine.

    Arguments as in `avuc.study.engines.local.run`; `until` is refused.
    """
    if until is not None:
        raise InputError("--minutes: tasks on a cluster have no common clock; use --engine local, or stop it by Ctrl-C")
    ray = require("ray", "ray", "--engine ray")
    claims = Claims(store.path.with_name("claims.lock"))
    try:
        with claims.claim("ray driver") as got, _cluster(ray):
            if not got:
                raise InputError(f"{directory}: another Ray driver works on this study; wait until it ends, or stop it")
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
        # The last arguments of every task, those of `_worker`. Not one tuple: Ray resolves references only at the top.
        # A task sees only its own GPU, as the first one.
        self.common = (
            plan.recipe.to_toml(),
            str(directory),
            "cuda:0" if self.on_gpu else kind,
            torch.get_num_threads(),
            (os.getcwd(), plan.recipe.code_folder),  # folders of the user's own modules
            ray.put((plan.recipe.given_objects(), _prints(StudyData(plan.recipe, torch.device("cpu"))))),
            # Ray keeps processes from one run to the next, which may have other data, another network or folder
            uuid.uuid4().hex,
        )
        settings = {"max_retries": RETRIES, "num_cpus": 1}
        self.train = ray.remote(**settings, num_gpus=1 if self.on_gpu else 0)(_train)
        self.evaluate = ray.remote(**settings, num_gpus=EVALUATION_SHARE if self.on_gpu else 0)(_evaluate)

    def run(self) -> None:
        bar = Progress("trainings and evaluations", len(self.plan.models) + self.plan.evaluations)
        with bar if self.progress else contextlib.nullcontext():
            bar.advance(len(self.store.trained() & set(self.plan.models)) + len(self.store.done()))
            for waits in (False, True):  # models that are initialised from others come second
                missing = [
                    key for key in self.plan.models if bool(self.plan.recipe.method(key.method).init_from) == waits
                ]
                missing = [key for key in missing if key not in self.store.trained()]
                groups = self.plan.groups(missing, None if self.on_gpu else 1)
                tasks = [self.train.remote(group, *self.common) for group in groups]
                for trained in self._results(tasks):
                    for model in trained:
                        self.store.add_model(model)
                    bar.advance(len(trained), "training")
            shifted = [test_set for test_set in self.plan.sets if test_set not in (VALIDATION, CLEAN)]
            for stage in ([VALIDATION], [CLEAN], shifted):
                tasks = [task for test_set in stage for task in self._tasks(test_set)]
                for evaluations in self._results(tasks):
                    self.store.add_evaluations(evaluations)
                    bar.advance(len(evaluations), f"evaluating on {evaluations[0].test_set}")

    def _tasks(self, test_set: TestSet) -> list[Any]:
        """Return one task for each model. Tasks on one set follow each other, so that workers reuse its images."""
        done, tasks = self.store.done(), []
        for key in self.plan.models:
            names = [method.name for method in self.plan.pending(key, test_set, done)]
            if names:
                fits = {name: validation_fit(self.store, name, key.seed) for name in names}
                tasks.append(self.evaluate.remote(key, test_set, names, fits, *self.common))
        return tasks

    def _results(self, tasks: list[Any]) -> Iterator[Any]:
        """Yield results as they arrive. An `InputError` of a task is raised here; other errors are left to Ray."""
        while tasks:
            ready, tasks = self.ray.wait(tasks)
            for task in ready:
                try:
                    yield self.ray.get(task)
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


def _prints(data: StudyData) -> dict[str, str]:
    """Return digests of the user's own data: every process must load the same."""
    if not data.config.is_own:
        return {}
    return {"training": data.training_prints()["training"]} | data.prints(CLEAN)


# what runs in Ray's processes


def _worker(
    recipe: str,
    directory: str,
    device: str,
    threads: int,
    folders: tuple[str, str],
    given: tuple[Mapping[str, Any], Mapping[str, str]],
    run_id: str,
) -> StudyWorker:
    if folders[0] not in sys.path:
        sys.path.insert(0, folders[0])
    # Ray sets one thread for each CPU of a task; sums in another order would change the last digits
    torch.set_num_threads(threads)
    if run_id not in _WORKERS:
        _WORKERS.clear()
        forget()
        objects, prints = given
        restore(objects)
        sharing = round(1 / EVALUATION_SHARE)
        study = replace(parse_recipe(recipe), code_folder=folders[1])
        worker = StudyWorker(study, Path(directory), device, progress=False, processes=sharing)
        for name, digest in _prints(worker.data).items():
            if digest != prints.get(name, digest):
                raise not_repeatable(study.data, "train" if name == "training" else "test")
        _WORKERS[run_id] = worker
    return _WORKERS[run_id]


def _train(keys: list[ModelKey], *common: Any) -> list[Trained]:
    return _worker(*common).train(keys)


def _evaluate(
    key: ModelKey, test_set: TestSet, names: list[str], fits: dict[str, ValidationFit], *common: Any
) -> list[Evaluation]:
    worker = _worker(*common)
    return worker.evaluate(key, test_set, [worker.recipe.method(name) for name in names], fits)
