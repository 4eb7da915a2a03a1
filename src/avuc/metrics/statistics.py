"""The one pass over the (N, C) probabilities that every metric is a function of.

A block of rows at a time is checked, taken to float64 and reduced to a few numbers per row. Working memory is one
block, whatever N and C are; what is left is one-dimensional.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.probabilities import check_probs
from avuc.metrics.checks import Array, checked_inputs

__all__ = [
    "Array",
    "BinTable",
    "Groups",
    "Statistics",
    "bin_edges",
    "bin_index",
    "blocks",
    "classwise_table",
    "cumulative",
    "digitise",
    "float_blocks",
    "group",
    "summarise",
]

# Elements of a block: small enough to stay in cache, and below torch's grain of 32,768, so that it stays on the calling
# thread. torch's own threads would meet at every operation, which on a busy machine costs several times the work; ours
# take a run of rows each and meet once.
BLOCK = 32_000
# a GPU has no such cache to stay in
DEVICE_BLOCK = 1 << 24
# less than this is not worth a second thread
THREAD_ELEMENTS = 1 << 21
# probabilities below this count as this in the negative log-likelihood
NLL_FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class Statistics:
    """Per-row numbers, float64 on the CPU, in the order of the rows."""

    confidence: Array  # the largest probability
    predicted: Array  # its class, the first one of equals
    correct: Array  # predicted == label, bool
    entropy: Array  # −Σ p log p
    nll: Array  # −log max(p[label], 1e-12)
    brier: Array  # Σ_k (p_k − 1[k = label])²
    labels: Array
    num_classes: int
    dtype: torch.dtype  # of the probabilities as they came: bin edges are rounded to it
    classwise: Array | None = None  # (C, bins): Σ over rows of p_k − 1[k = label], by class and by bin of p_k

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def uncertainty(self) -> Array:
        """Entropy as a share of its maximum, u / log C; 0 where there is one class."""
        return self.share_of_maximum(self.entropy)

    def share_of_maximum(self, entropy: Array) -> Array:
        return entropy / np.log(self.num_classes) if self.num_classes > 1 else np.zeros_like(entropy)


def summarise(probs: Any, labels: Any, *, bins: int | None = None, first_row: int = 0) -> Statistics:
    """Reduce (N, C) probabilities and (N) labels to per-row statistics; with `bins`, also the class-wise table.

    Errors name rows by their number, counted from `first_row`.
    """
    matrix, targets = checked_inputs(probs, labels)
    on_device = isinstance(matrix, Tensor) and matrix.is_cuda
    threads = 1 if on_device or math.prod(matrix.shape) < THREAD_ELEMENTS else torch.get_num_threads()
    cuts = [len(targets) * k // threads for k in range(threads + 1)]
    kinds = {"predicted": np.int64, "correct": np.bool_, "labels": np.int64}
    rows: dict[str, Array] = {
        f.name: np.empty(len(targets), kinds.get(f.name, np.float64)) for f in fields(Statistics)[:7]
    }

    def work(first: int, last: int) -> Array | None:
        table = None if bins is None else classwise_table(matrix.shape[1], bins)
        done = first
        # into place at once: many small arrays that stay would keep the memory between them from being used again
        for part in _blocks(matrix, targets, table, first, last, first_row):
            for name, column in rows.items():
                column[done : done + len(part)] = getattr(part, name)
            done += len(part)
        return table

    if threads == 1:
        tables = [work(0, len(targets))]
    else:
        with ThreadPoolExecutor(threads) as pool:
            tables = list(pool.map(work, cuts[:-1], cuts[1:]))
    table = sum((table for table in tables if table is not None), np.zeros(())) if bins is not None else None
    dtype = matrix.dtype if isinstance(matrix, Tensor) else _torch_dtype(matrix.dtype)
    return Statistics(**rows, num_classes=matrix.shape[1], dtype=dtype, classwise=table)


def blocks(probs: Any, labels: Any, table: Array | None = None) -> Iterator[Statistics]:
    """The statistics of one block of rows after the other: what a streaming metric adds up.

    The class-wise sums are added to `table`, which is as large as many blocks and therefore shared by all.
    """
    matrix, targets = checked_inputs(probs, labels)
    yield from _blocks(matrix, targets, table, 0, len(targets))


def classwise_table(classes: int, bins: int) -> Array:
    if bins < 1:
        raise InputError(f"bins must be at least 1, found {bins}")
    return np.zeros((classes, bins))


def _blocks(
    matrix: Any, targets: Array, table: Array | None, first: int, last: int, first_row: int = 0
) -> Iterator[Statistics]:
    dtype = matrix.dtype if isinstance(matrix, Tensor) else _torch_dtype(matrix.dtype)
    done = first
    for block in float_blocks(matrix[first:last]):
        target = torch.from_numpy(targets[done : done + len(block)]).to(block.device)
        yield _reduce(block, target, dtype, table, first_row + done)
        done += len(block)


def float_blocks(probs: Any, elements: int | None = None) -> Iterator[Tensor]:
    """Blocks of rows as contiguous float64 tensors on the probabilities' device: one arithmetic for every source."""
    matrix = probs if isinstance(probs, Tensor) else np.asarray(probs)
    usual = DEVICE_BLOCK if isinstance(matrix, Tensor) and matrix.is_cuda else BLOCK
    step = max(1, (elements or usual) // matrix.shape[1])
    for start in range(0, len(matrix), step):
        rows = matrix[start : start + step]
        yield (
            rows.detach().to(torch.float64).contiguous() if isinstance(rows, Tensor) else torch.from_numpy(_copy(rows))
        )


def _reduce(block: Tensor, target: Tensor, dtype: torch.dtype, table: Array | None, start: int) -> Statistics:
    totals = block.sum(1)
    check_probs(block, totals, start)
    predicted = block.argmax(1) if block.is_cuda else torch.from_numpy(block.numpy().argmax(1))
    confidence = block.gather(1, predicted[:, None])[:, 0]
    chosen = block.gather(1, target[:, None])[:, 0]
    # log of the smallest normal number is finite, and 0 times it is the 0 that 0 log 0 means
    logs = _log(block.clamp(min=torch.finfo(torch.float64).tiny))
    # a confidence of 1.0000001 (float32 rounding) would make the entropy slightly negative
    entropy = logs.mul_(block).sum(1).neg_().clamp_(min=0)
    squares = torch.mul(block, block, out=logs).sum(1)
    if table is not None:
        _add_classwise(block, target, chosen, dtype, table)
    return Statistics(
        confidence=_host(confidence),
        predicted=_host(predicted),
        correct=_host(predicted == target),
        entropy=_host(entropy),
        nll=_host(_log(chosen.clamp(min=NLL_FLOOR)).neg_()),
        brier=_host((squares - 2 * chosen + 1).clamp_(min=0)),
        labels=_host(target),
        num_classes=block.shape[1],
        dtype=dtype,
    )


def _log(values: Tensor) -> Tensor:
    """In place. torch.log would call its threads from 2,048 elements on, NumPy's does not."""
    if values.is_cuda:
        return values.log_()
    np.log(values.numpy(), out=values.numpy())
    return values


def _host(values: Tensor) -> Array:
    return values.cpu().numpy()


def _add_classwise(block: Tensor, target: Tensor, chosen: Tensor, dtype: torch.dtype, table: Array) -> None:
    """Add the sums of p_k − 1[k = label] to the (C, bins) table.

    A row that sums to 1 has fewer than `bins` entries above 1/bins, so only those few are put into bins one by one;
    what remains of the column's sum is the first bin.
    """
    classes, bins = table.shape
    edges, flat = bin_edges(bins, dtype), block.view(-1)
    if block.is_cuda:
        where = torch.nonzero(flat > edges[1])[:, 0]
        high, where_host = flat[where].cpu().numpy(), where.cpu().numpy()
    else:
        where_host = np.flatnonzero(flat.numpy() > edges[1])
        high = flat.numpy()[where_host]
    first = _first_cells(len(block), classes, bins)[where_host]
    hit = target.cpu().numpy() * bins + digitise(chosen.cpu().numpy(), edges)
    table[:, 0] += block.sum(0).cpu().numpy()
    cell = first + digitise(high, edges)
    if len(hit) <= table.size:
        for where_to, values in ((cell, high), (first, -high), (hit, np.full(len(hit), -1.0))):
            np.add.at(table.reshape(-1), where_to, values)
        return
    # many rows for few cells: whole tables are faster; NumPy counts no weights at all as whole numbers
    added = np.bincount(cell, weights=high, minlength=table.size).astype(np.float64).reshape(table.shape)
    added[:, 0] -= added.sum(1)
    table += added - np.bincount(hit, minlength=table.size).reshape(table.shape)


@lru_cache(maxsize=4)
def _first_cells(rows: int, classes: int, bins: int) -> Array:
    """class · bins for each entry of a block: looking it up is faster than a division each time."""
    return np.tile(np.arange(classes, dtype=np.int64) * bins, rows)


# ---- bins


class BinTable(NamedTuple):
    """Per bin, along the last axis: rows, sum of the stated value, number of rows where the event happened."""

    rows: Array
    value: Array
    event: Array


def bin_edges(bins: int, dtype: torch.dtype = torch.float64) -> Array:
    """0, 1/L, …, 1, each rounded to the values' own precision, so that a float32 0.2 is the 0.2 of the edge."""
    if bins < 1:
        raise InputError(f"bins must be at least 1, found {bins}")
    return (torch.arange(bins + 1, dtype=torch.float64) / bins).to(dtype).to(torch.float64).numpy()


def bin_index(values: Array, bins: int, dtype: torch.dtype = torch.float64) -> Array:
    """The bin ((l−1)/L, l/L], counted from 0, of each value; 0 is in the first bin, anything above 1 in the last."""
    return digitise(values, bin_edges(bins, dtype))


def digitise(values: Array, edges: Array) -> Array:
    # the bin below a product rounded down is never too low, as edges are the nearest numbers to l/L in the values' own
    # precision; it is one too high for values at, or rounded up to, their lower edge
    bins = len(edges) - 1
    index = np.minimum(values * bins, bins).astype(np.int32)
    index -= values <= edges[index]
    return np.asarray(np.clip(index, 0, bins - 1, out=index))


# ---- order


class Groups(NamedTuple):
    """Rows of equal value together, values ascending; counts may have leading axes, one for each resample."""

    values: Array  # (G)
    right: Array  # (..., G) correct rows
    wrong: Array  # (..., G) incorrect rows


def group(values: Array, correct: Array) -> Groups:
    """Sort rows by a value and count right and wrong ones per distinct value.

    >>> group(np.array([0.5, 0.2, 0.5]), np.array([True, True, False]))
    Groups(values=array([0.2, 0.5]), right=array([1., 1.]), wrong=array([0., 1.]))
    """
    if values.min() >= 0:
        # the bits of a float ≥ 0 sort like the float, and leave room for the flag: one plain sort instead of an argsort
        keys = np.sort(((values + 0.0).view(np.uint64) << np.uint64(1)) | correct.astype(np.uint64))
        ordered, flags = (keys >> np.uint64(1)).view(np.float64), keys & np.uint64(1)
    else:
        order = np.argsort(values)
        ordered, flags = values[order], correct[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    right = np.add.reduceat(flags.astype(np.float64), starts)
    return Groups(ordered[starts], right, np.diff(starts, append=len(values)) - right)


def cumulative(counts: Array) -> Array:
    """0 and the running sums along the last axis: (..., G) gives (..., G + 1)."""
    sums = np.empty((*counts.shape[:-1], counts.shape[-1] + 1))
    sums[..., 0] = 0
    np.cumsum(counts, -1, out=sums[..., 1:])
    return sums


def _copy(rows: Array) -> Array:
    # a copy even of float64: torch warns about arrays that are read-only, such as maps of a file
    return np.array(rows, dtype=np.float64, order="C")


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    narrow = {2: torch.float16, 4: torch.float32}
    return narrow.get(dtype.itemsize, torch.float64) if dtype.kind == "f" else torch.float64
