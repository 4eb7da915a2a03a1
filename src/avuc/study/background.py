"""Judging behind the predictions: while a GPU is at the next one, threads compute metrics and one of them writes.

Results are written in the order in which their predictions were made, each cell in its own transaction; so a study
that is killed here has lost no more than the few cells that were waiting.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch

from avuc.study.store import Cell, Store
from avuc.study.work import Predicted, Work

__all__ = ["Background"]

# metrics take a tenth of a second for 10,000 images on one core, a prediction with 128 draws several times that
THREADS = 4
MOST_WAITING = 2 * THREADS


class Background:
    """Takes predictions, and writes their cells to the study in `directory` as part of `run`."""

    def __init__(self, work: Work, directory: Path, run: int | None) -> None:
        self.work, self.directory, self.run = work, directory, run
        # one thread of torch in each: their work is small, and torch's threads would get in each other's way
        self.pool = ThreadPoolExecutor(THREADS, "judging", initializer=torch.set_num_threads, initargs=(1,))
        self._writer = ThreadPoolExecutor(1, "writing")
        self._store: Store | None = None  # SQLite wants to be closed by the thread that opened it
        self._waiting: deque[Future[None]] = deque()

    def add(self, predicted: Predicted, claim: ExitStack) -> None:
        """Judge it soon; `claim` is given up when its cells are written. Waits while many others do."""
        while len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft().result()  # raises what went wrong there
        cells = self.pool.submit(self.work.cells, predicted)
        self._waiting.append(self._writer.submit(self._write, cells, claim))

    def _write(self, cells: Future[list[Cell]], claim: ExitStack) -> None:
        with claim:
            found = cells.result()
            if self._store is None:
                self._store = Store(self.directory)
                self._store.run = self.run
            self._store.add_cells(found)

    def finish(self) -> None:
        """Until everything is written."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """Without waiting for what has not begun."""
        self.pool.shutdown(cancel_futures=True)
        for waiting in self._waiting:
            waiting.cancel()
        self._writer.submit(self._close_store).result()
        self._writer.shutdown()

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
