"""The local engine: this process, or one for each device.

Processes on one folder share the work by claims: whoever claims a model trains it, whoever claims a cell judges it.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from avuc.errors import InputError
from avuc.progress import Progress
from avuc.study.claims import Claims
from avuc.study.grid import ModelKey, Plan, TestSet
from avuc.study.recipe import Recipe
from avuc.study.store import Store
from avuc.study.work import Work, learned_of

__all__ = ["run"]

WAIT_SECONDS = 0.5


def run(plan: Plan, store: Store, directory: Path, devices: Sequence[str], progress: bool) -> None:
    """Do what is missing, in this process where there is one device, else in one process for each."""
    if len(devices) == 1:
        LocalRun(plan, store, Work(plan.recipe, directory, devices[0], progress=progress), progress).run()
        return
    # not forked from here: a process that has used CUDA cannot be
    kind = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(kind)
    context.set_forkserver_preload(["avuc.study.local"])
    threads = max(1, torch.get_num_threads() // len(devices))
    made = [
        context.Process(
            target=_beside, args=(plan.recipe, directory, device, store.run, threads, progress and not index)
        )
        for index, device in enumerate(devices)
    ]
    for process in made:
        process.start()
    try:
        for process in made:
            process.join()
    finally:  # interrupted: they are, too
        for process in made:
            process.terminate()
    failed = [device for device, process in zip(devices, made, strict=True) if process.exitcode]
    if failed:
        raise InputError(
            f"the process on {', '.join(failed)} ended before its work did (see above); everything finished is kept: "
            "run the same command again"
        )


def _beside(recipe: Recipe, directory: Path, device: str, number: int, threads: int, progress: bool) -> None:
    """One of several processes."""
    torch.set_num_threads(threads)
    store = Store(directory)
    store.run = number
    try:
        work = Work(recipe, directory, device, progress=progress)
        LocalRun(Plan(recipe), store, work, progress).run()
    except InputError as error:
        print(f"avuc: {device}: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, Orphaned):
        sys.exit(130)
    finally:
        store.close()


class Orphaned(Exception):
    """The process that started this one has ended."""


class LocalRun:
    """One process at work until nothing is missing."""

    def __init__(self, plan: Plan, store: Store, work: Work, progress: bool) -> None:
        self.plan, self.store, self.work, self.progress = plan, store, work, progress
        self.claims = Claims(store.path.with_name("claims.lock"))
        self.done = store.done()
        self.parent = multiprocessing.parent_process()  # where this is one of several

    def run(self) -> None:
        try:
            with Progress("judging cells", self.plan.cells) if self.progress else nullcontext() as bar:
                while not self._finished():
                    self._train()
                    self._judge(bar)
                    if not self._finished():  # others are at work on the rest
                        time.sleep(WAIT_SECONDS)
        finally:
            self.claims.close()

    def _check_parent(self) -> None:
        if self.parent is not None and not self.parent.is_alive():
            raise Orphaned

    def _finished(self) -> bool:
        self._check_parent()
        self.done = self.store.done()
        return not any(self.plan.pending(key, one, self.done) for one in self.plan.sets for key in self.plan.models)

    def _train(self) -> None:
        """Train what nobody else does."""
        missing = [key for key in self.plan.models if key not in self.store.trained()]
        # on a GPU models of a group take their steps together; elsewhere that gains nothing, and hides the work
        at_once = None if self.work.device.type == "cuda" else 1
        for group in self.plan.groups(missing, at_once):
            with self.claims.claim(*(f"train {key.folder}" for key in group)) as got:
                ready = self.store.trained()
                mine = [key for key in group if f"train {key.folder}" in got and key not in ready]
                mine = [key for key in mine if self._may_start(key, ready)]
                if not mine:
                    continue
                self._check_parent()
                self._say(mine, len(ready))
                for trained in self.work.train(mine):
                    self.store.add_model(trained)

    def _may_start(self, key: ModelKey, ready: set[ModelKey]) -> bool:
        """Not before the row it starts from."""
        start = self.plan.recipe.row(key.method).start
        return not start or ModelKey(start, key.seed) in ready

    def _say(self, keys: Sequence[ModelKey], before: int) -> None:
        if self.progress:
            names = ", ".join(f"{key.method} (seed {key.seed})" for key in keys)
            print(f"training {names}: {before + len(keys)} of {len(self.plan.models)}", file=sys.stderr)

    def _judge(self, bar: Progress | None) -> None:
        """Judge what nobody else does, of the models that are trained."""
        trained = self.store.trained()
        for test_set in self.plan.sets:
            for key in self.plan.models:
                if key in trained and self.plan.ready(key, test_set, self.done):
                    self._check_parent()
                    self._cell(key, test_set)
                    if bar is not None:
                        bar.advance(len(self.done) - bar.done, f"{test_set}, {key.method}")

    def _cell(self, key: ModelKey, test_set: TestSet) -> None:
        with self.claims.claim(f"judge {key.folder} {test_set}") as got:
            if not got:
                return
            self.done = self.store.done()  # whoever held it before has perhaps finished it
            rows = self.plan.pending(key, test_set, self.done)
            if rows:
                learned = {row.name: learned_of(self.store, row, key.seed) for row in rows}
                cells = self.work.judge(key, test_set, rows, learned)
                self.store.add_cells(cells)
                self.done |= {cell.key for cell in cells}
