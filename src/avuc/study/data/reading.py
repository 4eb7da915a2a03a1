"""Find data that are not read as the user means: other data at each call, or examples that every worker reads."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from avuc.core.errors import InputError
from avuc.data.tensors import MemoryData

MOST_SECONDS = 5.0  # data are read a second time only if that takes less
MOST_BYTES = 1 << 30  # and if a second copy of them is small
SHARE = (
    "let its __iter__ yield only the examples of its own worker (torch.utils.data.get_worker_info), or set "
    "num_workers=0"
)


def row_hashes(data: MemoryData, rows: Tensor | None = None) -> list[int]:
    """Return a hash of the inputs of each example.

    Args:
        data: the examples.
        rows: indices of some of them; default None: all.
    """
    parts = [data.inputs] if isinstance(data.inputs, Tensor) else list(data.inputs.values())
    hashes = [_hashes(part.detach().cpu() if rows is None else part.detach().cpu()[rows]) for part in parts]
    return [hash(row) for row in zip(*hashes, strict=True)]


def _hashes(values: Tensor) -> list[int]:
    rows = values.contiguous().reshape(len(values), -1).view(torch.uint8).numpy()
    return [hash(row.tobytes()) for row in rows]


def is_small(data: MemoryData) -> bool:
    """Return whether a second copy of the data needs little memory."""
    parts = [data.inputs] if isinstance(data.inputs, Tensor) else list(data.inputs.values())
    return sum(part.numel() * part.element_size() for part in parts) <= MOST_BYTES


def check_workers(loader: Any, data: MemoryData, where: str) -> None:
    """Refuse an IterableDataset that every worker of a DataLoader reads as a whole, so that each example is repeated.

    If the copies differ, as with random transforms, a line is printed instead.

    Args:
        loader: what the user's function returned.
        data: all that was read from it.
        where: for messages.
    """
    if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, IterableDataset) or loader.num_workers < 2:
        return
    workers, rows = loader.num_workers, len(data)
    alike = all(count % workers == 0 for count in Counter(row_hashes(data)).values())
    alone = _rows_of_one_worker(loader) if rows % workers == 0 else rows
    times = f"each of {workers} workers of the DataLoader reads its IterableDataset as a whole"
    if alike and alone in (None, rows // workers):
        raise InputError(f"{where}: {times}, so each example comes {workers} times; {SHARE}")
    if alone == rows // workers:
        print(
            f"avuc: {where}: {times}: {rows} examples instead of {alone}; if the copies are not meant, {SHARE}",
            file=sys.stderr,
        )


def _rows_of_one_worker(loader: DataLoader[Any]) -> int | None:
    """Return how many examples a single worker reads; None if that takes long.

    A worker, because an iterator in this process would change what the dataset yields the next time.
    """
    began, rows = time.monotonic(), 0
    alone: DataLoader[Any] = DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        collate_fn=loader.collate_fn,
        num_workers=1,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        timeout=loader.timeout,
    )
    for batch in alone:
        rows += _rows(batch)
        if time.monotonic() - began > MOST_SECONDS:
            return None
    return rows


def _rows(batch: Any) -> int:
    if isinstance(batch, Mapping):
        return len(next(iter(batch.values())))
    return len(batch[-1]) if isinstance(batch, tuple | list) else len(batch)
