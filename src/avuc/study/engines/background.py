"""Evaluation in the background: while a GPU runs the next prediction, threads compute metrics, and one thread writes.

Results are written in the order of their predictions, each evaluation in its own transaction. So a study that is killed
loses only the few evaluations that were waiting.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch

from avuc.study.store.records import Evaluation
from avuc.study.store.store import Store
from avuc.study.worker import Predicted, StudyWorker

# metrics of 10,000 images take less than 0.1 s on one core, predictions with 128 samples several times that
THREADS = 4
MOST_WAITING = 2 * THREADS
# a fit on 128 samples takes seconds on one core, and predictions on validation data wait for all fits
FITTING_THREADS = max(2, min(12, (os.cpu_count() or 4) - 2))
# seconds until a Python thread yields to another; short, because the thread that feeds the GPU must not wait long
SWITCH_INTERVAL = 0.0005


class Background:
    """Takes predictions, evaluates them, and writes the results.

    Args:
        worker: computes the evaluations.
        directory: the study's folder.
        run: number of the run that the results belong to.
    """

    def __init__(self, worker: StudyWorker, directory: Path, run: int | None) -> None:
        self.worker: StudyWorker = worker
        self.directory: Path = directory
        self.run: int | None = run
        # one torch thread each: the work is small, and more threads would slow each other down
        self._pool = ThreadPoolExecutor(THREADS, "evaluating", initializer=torch.set_num_threads, initargs=(1,))
        self.fits: ThreadPoolExecutor = ThreadPoolExecutor(
            FITTING_THREADS, "fitting", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._writer = ThreadPoolExecutor(1, "writing")
        self._store: Store | None = None  # SQLite connections are closed by the thread that opened them
        self._waiting: deque[tuple[Future[None], ExitStack]] = deque()

    def add(self, predicted: Predicted, claim: ExitStack) -> None:
        """Evaluate in the background. Waits while too many others are waiting.

        Args:
            predicted: what to evaluate.
            claim: closed when the results are written.
        """
        with claim:  # closes it if anything fails before it is handed on
            while len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()[0].result()  # raises the error of that thread
            evaluations = self._pool.submit(self.worker.evaluations, predicted)
            held = claim.pop_all()
            self._waiting.append((self._writer.submit(self._write, evaluations, held), held))

    def _write(self, evaluations: Future[list[Evaluation]], claim: ExitStack) -> None:
        with claim:
            results = evaluations.result()
            if self._store is None:
                self._store = Store(self.directory, check=False)  # checked when the study began
                self._store.run = self.run
            self._store.add_evaluations(results)

    def finish(self) -> None:
        """Wait until everything is written."""
        while self._waiting:
            self._waiting.popleft()[0].result()

    def close(self) -> None:
        """Stop, and drop work that has not begun."""
        sys.setswitchinterval(self._interval)
        self.fits.shutdown(cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)
        for writing, claim in self._waiting:
            if writing.cancel():
                claim.close()
        self._writer.submit(self._close_store).result()
        self._writer.shutdown()

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
