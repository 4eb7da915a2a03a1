"""The local engine: this process, or one process for each device.

Processes on one folder share the work by claims: the process that claims a model trains it, and the process that claims
an evaluation computes it. Trained models are evaluated before more models are trained. On a GPU this goes group by
group of models that train together, so that results come early and an interruption costs little. On a CPU, and with
`study.train_first`, all models are trained first, so that each shifted set is generated once.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from avuc.core.errors import InputError, explained
from avuc.core.progress import Progress
from avuc.study.engines.background import Background
from avuc.study.engines.claims import Claims
from avuc.study.engines.retrained import comparison, to_train
from avuc.study.engines.server import SAFE, context_for
from avuc.study.evaluation.validation_fit import validation_fit
from avuc.study.grid import CLEAN, VALIDATION, Done, ModelKey, Plan, TestSet
from avuc.study.own.code import restore
from avuc.study.store.records import Trained
from avuc.study.store.store import Store
from avuc.study.worker import StudyWorker
from avuc.training.fit import OutOfTime

WAIT_SECONDS = 0.5
# the first step of a group on a GPU is compiled: do not begin one in the last seconds of a run
COMPILE_SECONDS = 60.0
OUT_OF_TIME = 75  # exit code of one of several processes; EX_TEMPFAIL, "try again later"


def run(
    plan: Plan, store: Store, directory: Path, devices: Sequence[str], progress: bool, until: float | None = None
) -> None:
    """Do the missing work, in this process if there is one device, else in one process for each device.

    Args:
        plan: the work.
        store: the study's file.
        directory: the study's folder.
        devices: where networks run.
        progress: show progress on stderr.
        until: a value of `time.monotonic()`, after which `OutOfTime` is raised as soon as work in progress is saved.
    """
    if len(devices) == 1:
        worker = StudyWorker(plan.recipe, directory, devices[0], progress=progress, until=until)
        LocalRun(plan, store, worker, progress).run()
        return
    # a process that has used CUDA cannot be forked
    context = context_for("avuc.study.engines.local")
    threads = max(1, torch.get_num_threads() // len(devices))
    pickled_objects = _sendable(plan.recipe.given_objects())
    processes = [
        context.Process(
            target=_run_process,
            args=(
                plan,
                directory,
                device,
                store.run,
                threads,
                progress and not index,
                until,
                pickled_objects,
                index / len(devices),
                devices.count(device),
            ),
        )
        for index, device in enumerate(devices)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join()
    finally:  # if this process is interrupted, so are the others
        for process in processes:
            process.terminate()
    ends = [process.exitcode for process in processes]
    failed = [device for device, end in zip(devices, ends, strict=True) if end not in (0, OUT_OF_TIME)]
    if failed:
        raise InputError(
            f"the process on {', '.join(failed)} ended before its work did (see above); everything finished is kept: "
            "run the same command again"
        )
    if OUT_OF_TIME in ends:
        raise OutOfTime


def _sendable(objects: dict[str, Any]) -> bytes:
    """Return the objects of a study from Python as bytes for other processes."""
    try:
        return pickle.dumps(objects)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"several processes cannot share {', '.join(objects)} ({error}); define them in a module that can be "
            "imported, or use one device"
        ) from error


def _run_process(
    plan: Plan,
    directory: Path,
    device: str,
    number: int,
    threads: int,
    progress: bool,
    until: float | None,
    pickled_objects: bytes,
    begin: float,
    processes: int,
) -> None:
    """Run one of several processes."""
    os.environ.pop(SAFE, None)  # it was for the server
    torch.set_num_threads(threads)
    restore(pickle.loads(pickled_objects))
    store = Store(directory, check=False)  # checked when the study began
    store.run = number
    try:
        worker = StudyWorker(plan.recipe, directory, device, progress=progress, until=until, processes=processes)
        LocalRun(plan, store, worker, progress, begin).run()
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


def ordered(sets: Sequence[TestSet], begin: float) -> list[TestSet]:
    """Return the sets in the order of one process: validation and clean data, then the others from `begin` on.

    >>> [str(each) for each in ordered([VALIDATION, CLEAN, *(TestSet("fog", level) for level in (1, 2, 3))], 0.5)]
    ['validation', 'clean', 'fog 2', 'fog 3', 'fog 1']
    """
    first = [test_set for test_set in sets if test_set in (VALIDATION, CLEAN)]
    others = [test_set for test_set in sets if test_set not in first]
    cut = int(begin * len(others))
    return [*first, *others[cut:], *others[:cut]]


def _training(key: ModelKey) -> str:
    """Return the name of the claim of a process that trains a model."""
    return f"train {key.seed} {key.method}"


class Orphaned(Exception):
    """The process that started this one has ended."""


class LocalRun:
    """One process: works until nothing is missing, or its time is over.

    Args:
        plan: the work.
        store: the study's file.
        worker: does the work.
        progress: show progress on stderr.
        begin: where among the shifted sets this process begins, in [0, 1). Processes that begin at different sets
            generate different sets at the same time.
    """

    def __init__(self, plan: Plan, store: Store, worker: StudyWorker, progress: bool, begin: float = 0.0) -> None:
        self.plan: Plan = plan
        self.sets: list[TestSet] = ordered(plan.sets, begin)
        self.store: Store = store
        self.worker: StudyWorker = worker
        self.progress: bool = progress
        self.claims: Claims = Claims(store.path.with_name("claims.lock"))
        self.done: Done = store.done()
        # None if this process was not started by another
        self.parent: BaseProcess | None = multiprocessing.parent_process()
        self.on_gpu: bool = worker.device.type == "cuda"
        self.background: Background | None = Background(worker, store.path.parent, store.run) if self.on_gpu else None
        self.in_progress: Done = set()  # evaluated in the background, not written yet
        self.fresh: bool = True  # no work has begun yet

    def run(self) -> None:
        try:
            with Progress("evaluations", self.plan.evaluations) if self.progress else nullcontext() as bar:
                while not self._finished():
                    if self.plan.recipe.study.train_first and self._train():
                        continue
                    self._evaluate(bar)
                    if not self._finished() and not self._train():  # other processes do the rest
                        time.sleep(WAIT_SECONDS)
        finally:
            if self.background is not None:
                self.background.close()
            self.claims.close()

    def _check(self, seconds: float = 0.0) -> None:
        """Raise `OutOfTime` if there is no time left for `seconds` of work; called before each piece of work."""
        if self.parent is not None and not self.parent.is_alive():
            raise Orphaned
        until = self.worker.until
        if until is not None and time.monotonic() + (0 if self.fresh else seconds) >= until:
            if self.background is not None:
                self.background.finish()
            raise OutOfTime
        self.fresh = False

    def _finished(self) -> bool:
        self.done = self.store.done()
        if not set(self.plan.models) <= self.store.trained():  # also if only the record of a training was lost
            return False
        return not self.plan.unfinished_sets(self.done)

    # training

    def _train(self) -> bool:
        """Train models that no other process trains; on a GPU, one group. Return whether any model was trained."""
        any_trained = False
        # on a GPU the models of a group train in one step; on a CPU that is faster with a frozen trunk only
        for group in self.plan.groups(self._untrained(), None if self.on_gpu else 1):
            with self.claims.claim(*(_training(key) for key in group)) as got:
                ready, untrained = self.store.trained(), self._untrained()
                claimed = [key for key in group if _training(key) in got and key in untrained]
                claimed = [key for key in claimed if self._can_train(key, ready)]
                if not claimed:
                    continue
                self._check(COMPILE_SECONDS if self.on_gpu else 0.0)
                self._print_progress(claimed, len(ready.intersection(self.plan.models).difference(claimed)))
                for trained in self.worker.train(claimed):
                    self._add(trained, again=trained.key in ready)
                any_trained = True
                if self.on_gpu:
                    break
        return any_trained

    def _add(self, trained: Trained, again: bool) -> None:
        """Store a training. A repeated training keeps its first record, because stored results come from that one."""
        if not again:
            self.store.add_model(trained)
            return
        self.store.check_data(trained.prints)
        stored = self.store.history(trained.key.method, trained.key.seed)
        print(comparison(trained.key, stored, trained.history), file=sys.stderr)

    def _untrained(self) -> list[ModelKey]:
        held = {key for key in self.plan.models if self.worker.holds(key)}
        return to_train(self.plan, self.store.trained(), held, self.done)

    def _can_train(self, key: ModelKey, ready: set[ModelKey]) -> bool:
        """Whether the model that `key` is initialised from is trained, and no process trains that model again now."""
        init_from = self.plan.recipe.method(key.method).init_from
        start = ModelKey(init_from, key.seed)
        with self.claims.claim(_training(start)) as free:
            return not init_from or (start in ready and bool(free) and self.worker.holds(start))

    def _print_progress(self, keys: Sequence[ModelKey], before: int) -> None:
        if self.progress:
            names = ", ".join(f"{key.method} (seed {key.seed})" for key in keys)
            print(f"training {names}: {before + len(keys)} of {len(self.plan.models)}", file=sys.stderr)

    # evaluating

    def _evaluate(self, bar: Progress | None) -> None:
        """Evaluate the trained models, except evaluations that another process has claimed."""
        trained = self.store.trained()
        models = [key for key in self.plan.models if key in trained and self.worker.holds(key)]
        if self.background is not None:
            for key in models:
                methods = self.plan.pending(key, VALIDATION, self.done)
                if any(method.calibrator is not None for method in methods):
                    self._check()
                    self.worker.start_fits(key, methods, self.background.fits)
        for test_set in self.sets:
            for key in models:
                if self.plan.ready(key, test_set, self.done):
                    self._check()
                    self._evaluate_on(key, test_set)
                    if bar is not None:
                        bar.advance(len(self.done) - bar.done, f"{test_set}, {key.method}")
            if self.background is not None and test_set in (VALIDATION, CLEAN, self.sets[-1]):
                self.background.finish()  # evaluations on the next sets need these results
                self.in_progress.clear()

    def _evaluate_on(self, key: ModelKey, test_set: TestSet) -> None:
        with ExitStack() as claim:
            if not claim.enter_context(self.claims.claim(f"judge {key.seed} {key.method} {test_set}")):
                return
            # the process that held the claim before may have finished the evaluation
            self.done = self.store.done() | self.in_progress
            methods = self.plan.pending(key, test_set, self.done)
            if not methods:
                return
            fits = {method.name: validation_fit(self.store, method.name, key.seed) for method in methods}
            keys = {(method.name, key.seed, test_set.shift, test_set.severity) for method in methods}
            if self.background is None:
                self.store.add_evaluations(self.worker.evaluate(key, test_set, methods, fits))
            else:
                alike = max(1, self.plan.alike(key, test_set, self.done) // self.worker.processes)
                for bn_images in {method.bn_images for method in methods}:
                    self.worker.predictor(key, bn_images).expect(alike)
                self.background.add(self.worker.predict(key, test_set, methods, fits), claim.pop_all())
                self.in_progress |= keys
            self.done |= keys
