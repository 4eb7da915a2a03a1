"""Judging behind the predictions: while a GPU is at the next one, threads compute metrics and one of them writes.

Results are written in the order in which their predictions were made, each cell in its own transaction; so a study
that is killed here has lost no more than the few cells that were waiting.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch

from avuc.study.store import Cell, Store
from avuc.study.worker import Predicted, Work

__all__ = ["Background"]

# metrics of 10,000 images take less than a tenth of a second on one core, predictions with 128 draws several times that
THREADS = 4
MOST_WAITING = 2 * THREADS
# a fit on 128 draws takes seconds on one core, and predictions on validation data wait for all of them
FITTING_THREADS = max(2, min(12, (os.cpu_count() or 4) - 2))
# seconds until a thread of Python gives way to another: whoever feeds the GPU must not wait long
GIVE_WAY = 0.0005


class Background:
    """Takes predictions, and writes their cells to the study in `directory` as part of `run`."""

    def __init__(self, work: Work, directory: Path, run: int | None) -> None:
        self.work, self.directory, self.run = work, directory, run
        # one thread of torch in each: their work is small, and torch's threads would get in each other's way
        self._pool = ThreadPoolExecutor(THREADS, "judging", initializer=torch.set_num_threads, initargs=(1,))
        self.fits = ThreadPoolExecutor(FITTING_THREADS, "fitting", initializer=torch.set_num_threads, initargs=(1,))
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(GIVE_WAY)
        self._writer = ThreadPoolExecutor(1, "writing")
        self._store: Store | None = None  # SQLite wants to be closed by the thread that opened it
        self._waiting: deque[tuple[Future[None], ExitStack]] = deque()

    def add(self, predicted: Predicted, claim: ExitStack) -> None:
        """Judge it soon; `claim` is given up when its cells are written. Waits while many others do."""
        with claim:  # unless it is handed on
            while len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()[0].result()  # raises what went wrong there
            cells = self._pool.submit(self.work.cells, predicted)
            held = claim.pop_all()
            self._waiting.append((self._writer.submit(self._write, cells, held), held))

    def _write(self, cells: Future[list[Cell]], claim: ExitStack) -> None:
        with claim:
            found = cells.result()
            if self._store is None:
                self._store = Store(self.directory, check=False)  # checked when the study began
                self._store.run = self.run
            self._store.add_cells(found)

    def finish(self) -> None:
        """Until everything is written."""
        while self._waiting:
            self._waiting.popleft()[0].result()

    def close(self) -> None:
        """Without waiting for what has not begun."""
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
