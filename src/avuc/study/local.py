"""The local engine: this process, or one for each device.

Processes on one folder share the work by claims: whoever claims a model trains it, whoever claims a cell judges it.
What is trained is judged before more is trained. On a GPU that goes group by group of models that train together, so
that results are there early and a stop costs little; elsewhere all models are trained first, and each shifted set is
made once.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from avuc.core.errors import InputError, explained
from avuc.core.progress import Progress
from avuc.study.background import Background
from avuc.study.claims import Claims
from avuc.study.grid import CLEAN, VALIDATION, Done, ModelKey, Plan, TestSet
from avuc.study.store import Store
from avuc.study.worker import Work, learned_of
from avuc.training.fit import OutOfTime

__all__ = ["run"]

WAIT_SECONDS = 0.5
# the first step of a group on a GPU is compiled and captured first: not in the last seconds of a run
TO_START = 60.0
OUT_OF_TIME = 75  # exit code of one of several processes; the system's word for "try again later"


def run(
    plan: Plan, store: Store, directory: Path, devices: Sequence[str], progress: bool, until: float | None = None
) -> None:
    """Do what is missing, in this process where there is one device, else in one process for each.

    until: a value of `time.monotonic()`, after which `OutOfTime` is raised as soon as what is under way is safe.
    """
    if len(devices) == 1:
        work = Work(plan.recipe, directory, devices[0], progress=progress, until=until)
        LocalRun(plan, store, work, progress).run()
        return
    # not forked from here: a process that has used CUDA cannot be
    kind = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(kind)
    context.set_forkserver_preload(["avuc.study.local"])
    threads = max(1, torch.get_num_threads() // len(devices))
    made = [
        context.Process(
            target=_beside, args=(plan, directory, device, store.run, threads, progress and not index, until)
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
    ends = [process.exitcode for process in made]
    failed = [device for device, end in zip(devices, ends, strict=True) if end not in (0, OUT_OF_TIME)]
    if failed:
        raise InputError(
            f"the process on {', '.join(failed)} ended before its work did (see above); everything finished is kept: "
            "run the same command again"
        )
    if OUT_OF_TIME in ends:
        raise OutOfTime


def _beside(
    plan: Plan, directory: Path, device: str, number: int, threads: int, progress: bool, until: float | None
) -> None:
    """One of several processes."""
    torch.set_num_threads(threads)
    store = Store(directory, check=False)  # checked when the study began
    store.run = number
    try:
        work = Work(plan.recipe, directory, device, progress=progress, until=until)
        LocalRun(plan, store, work, progress).run()
    except OutOfTime:
        sys.exit(OUT_OF_TIME)
    except InputError as error:
        print(f"avuc: {device}: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, Orphaned):
        sys.exit(130)
    except Exception as error:
        line = explained(error)
        if line is None:
            raise
        print(f"avuc: {device}: {line}", file=sys.stderr)
        sys.exit(2)
    finally:
        store.close()


def _training(key: ModelKey) -> str:
    """What a process claims that trains a model."""
    return f"train {key.seed} {key.method}"


class Orphaned(Exception):
    """The process that started this one has ended."""


class LocalRun:
    """One process at work until nothing is missing, or its time is over."""

    def __init__(self, plan: Plan, store: Store, work: Work, progress: bool) -> None:
        self.plan, self.store, self.work, self.progress = plan, store, work, progress
        self.claims = Claims(store.path.with_name("claims.lock"))
        self.done = store.done()
        self.parent = multiprocessing.parent_process()  # where this is one of several
        self.on_gpu = work.device.type == "cuda"
        self.background = Background(work, store.path.parent, store.run) if self.on_gpu else None
        self.under_way: Done = set()  # in the background, not written yet
        self.fresh = True  # nothing has been done yet

    def run(self) -> None:
        try:
            with Progress("judging cells", self.plan.cells) if self.progress else nullcontext() as bar:
                while not self._finished():
                    self._judge(bar)
                    if not self._finished() and not self._train():  # others are at work on the rest
                        time.sleep(WAIT_SECONDS)
        finally:
            if self.background is not None:
                self.background.close()
            self.claims.close()

    def _check(self, seconds: float = 0.0) -> None:
        """Before each piece of work: whether to begin it, if it may take `seconds` until anything comes of it."""
        if self.parent is not None and not self.parent.is_alive():
            raise Orphaned
        until = self.work.until
        if until is not None and time.monotonic() + (0 if self.fresh else seconds) >= until:
            if self.background is not None:
                self.background.finish()
            raise OutOfTime
        self.fresh = False

    def _finished(self) -> bool:
        self.done = self.store.done()
        if not set(self.plan.models) <= self.store.trained():  # also where only the record of a training was lost
            return False
        return not any(self.plan.pending(key, one, self.done) for one in self.plan.sets for key in self.plan.models)

    # training

    def _train(self) -> bool:
        """Train what nobody else does; on a GPU, one group of it. Whether there was something to do."""
        any_trained = False
        # on a GPU models of a group take their steps together; elsewhere that gains nothing, and hides the work
        for group in self.plan.groups(self._untrained(), None if self.on_gpu else 1):
            with self.claims.claim(*(_training(key) for key in group)) as got:
                ready, untrained = self.store.trained(), self._untrained()
                mine = [key for key in group if _training(key) in got and key in untrained]
                mine = [key for key in mine if self._may_start(key, ready)]
                if not mine:
                    continue
                self._check(TO_START if self.on_gpu else 0.0)
                self._say(mine, len(ready))
                for trained in self.work.train(mine):
                    self.store.add_model(trained)
                any_trained = True
                if self.on_gpu:
                    break
        return any_trained

    def _untrained(self) -> list[ModelKey]:
        """Models to train; also those that were, whose files are gone while cells are missing."""
        trained = self.store.trained()
        return [
            key
            for key in self.plan.models
            if key not in trained
            or (not self.work.holds(key) and any(self.plan.pending(key, one, self.done) for one in self.plan.sets))
        ]

    def _may_start(self, key: ModelKey, ready: set[ModelKey]) -> bool:
        """Not before the row it starts from."""
        start = self.plan.recipe.row(key.method).start
        return not start or ModelKey(start, key.seed) in ready

    def _say(self, keys: Sequence[ModelKey], before: int) -> None:
        if self.progress:
            names = ", ".join(f"{key.method} (seed {key.seed})" for key in keys)
            print(f"training {names}: {before + len(keys)} of {len(self.plan.models)}", file=sys.stderr)

    # judging

    def _judge(self, bar: Progress | None) -> None:
        """Judge what nobody else does, of the models that are there."""
        trained = self.store.trained()
        models = [key for key in self.plan.models if key in trained and self.work.holds(key)]
        if self.background is not None:
            for key in models:
                rows = self.plan.pending(key, VALIDATION, self.done)
                if any(row.calibrator is not None for row in rows):
                    self._check()
                    self.work.start_fits(key, rows, self.background.fits)
        for test_set in self.plan.sets:
            for key in models:
                if self.plan.ready(key, test_set, self.done):
                    self._check()
                    self._cell(key, test_set)
                    if bar is not None:
                        bar.advance(len(self.done) - bar.done, f"{test_set}, {key.method}")
            if self.background is not None and test_set in (VALIDATION, CLEAN, self.plan.sets[-1]):
                self.background.finish()  # what was learned there is needed from now on
                self.under_way.clear()

    def _cell(self, key: ModelKey, test_set: TestSet) -> None:
        with ExitStack() as claim:
            if not claim.enter_context(self.claims.claim(f"judge {key.seed} {key.method} {test_set}")):
                return
            self.done = self.store.done() | self.under_way  # whoever held it before has perhaps finished it
            rows = self.plan.pending(key, test_set, self.done)
            if not rows:
                return
            learned = {row.name: learned_of(self.store, row, key.seed) for row in rows}
            keys = {(row.name, key.seed, test_set.shift, test_set.severity) for row in rows}
            if self.background is None:
                self.store.add_cells(self.work.judge(key, test_set, rows, learned))
            else:
                self.background.add(self.work.predict(key, test_set, rows, learned), claim.pop_all())
                self.under_way |= keys
            self.done |= keys
