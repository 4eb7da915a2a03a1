"""The one pass over the (N, C) probabilities from which every metric is computed.

A block of predictions at a time is checked, converted to float64 and reduced to a few numbers per prediction. Working
memory is one block for any N and C; the result is one-dimensional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import avuc.metrics.few_classes as few_classes
from avuc._old_names import forward
from avuc.core.probabilities import WITHIN, check_probs
from avuc.metrics.arrays import Array
from avuc.metrics.binning import bin_edges, check_bins, digitise
from avuc.metrics.checks import checked_inputs

__getattr__: Callable[[str], object] = forward(__name__)

# Elements of a block on the CPU, where NumPy does the work: torch's own threads synchronise at every operation, which
# costs several times the work on a busy machine; the threads started here take a range of rows each. Streams hand over
# many small sets, whose blocks stay small.
BLOCK = 64_000
LARGE_BLOCK = 2 * BLOCK
# elements of a block on a GPU
DEVICE_BLOCK = 1 << 24
# fewer elements than this run on one thread
THREAD_ELEMENTS = 1 << 21
# a probability below this counts as this in the negative log-likelihood
NLL_FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class Statistics:
    """A few numbers for each of N predictions, in their order; float64 arrays of shape (N,) on the CPU.

    confidence   the largest probability, max_k p_k
    predicted    its class; the first one if several are equal
    correct      predicted == label, bool
    entropy      predictive entropy −Σ_k p_k log p_k, in nats
    nll          −log max(p_label, 1e-12)
    brier        Σ_k (p_k − 1[k = label])²
    labels       int64
    num_classes  C
    dtype        of the probabilities as they were given; bin edges are rounded to it
    classwise    (C, bins) sums of p_k − 1[k = label] by class and by bin of p_k; None if no bins were asked for
    """

    confidence: Array
    predicted: Array
    correct: Array
    entropy: Array
    nll: Array
    brier: Array
    labels: Array
    num_classes: int
    dtype: torch.dtype
    classwise: Array | None = None

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def uncertainty(self) -> Array:
        """Normalised entropy u / log C in [0, 1]; 0 if there is one class."""
        return self.normalised(self.entropy)

    def normalised(self, entropy: Array) -> Array:
        """Return entropies divided by their largest possible value, log C; 0 if there is one class."""
        return entropy / np.log(self.num_classes) if self.num_classes > 1 else np.zeros_like(entropy)


def prediction_statistics(probs: Any, labels: Any, *, bins: int | None = None, first_row: int = 0) -> Statistics:
    """Reduce probabilities and labels to a few numbers per prediction, in one pass.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor on any device. Each row must sum to 1 within 0.01.
        labels: (N,) class numbers.
        bins: number of bins of the class-wise table; None: no table.
        first_row: number of the first row in error messages, for data that is read in blocks.

    >>> prediction_statistics([[0.8, 0.2], [0.6, 0.4]], [0, 1]).correct
    array([ True, False])
    """
    matrix, targets = checked_inputs(probs, labels)
    on_device = isinstance(matrix, Tensor) and matrix.is_cuda
    threads = 1 if on_device or math.prod(matrix.shape) < THREAD_ELEMENTS else torch.get_num_threads()
    if not on_device and math.prod(matrix.shape) <= BLOCK and len(targets):
        table = None if bins is None else classwise_table(matrix.shape[1], bins)
        (only,) = _blocks(matrix, targets, table, 0, len(targets), first_row)
        return replace(only, classwise=table)
    cuts = [len(targets) * k // threads for k in range(threads + 1)]
    kinds = {"predicted": np.int64, "correct": np.bool_}
    rows: dict[str, Array] = {
        f.name: np.empty(len(targets), kinds.get(f.name, np.float64)) for f in fields(Statistics)[:6]
    }

    def work(first: int, last: int) -> Array | None:
        table = None if bins is None else classwise_table(matrix.shape[1], bins)
        done = first
        # copied into place at once: many small arrays kept alive would fragment the memory
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
    return Statistics(**rows, labels=targets, num_classes=matrix.shape[1], dtype=dtype, classwise=table)


def statistics_blocks(probs: Any, labels: Any, table: Array | None = None) -> Iterator[Statistics]:
    """Yield the statistics of one block of predictions after the other, for metrics that add up over blocks.

    Args:
        probs: (N, C) probabilities.
        labels: (N,) class numbers.
        table: (C, bins) array to which the class-wise sums of every block are added; None: no sums.
    """
    matrix, targets = checked_inputs(probs, labels)
    yield from _blocks(matrix, targets, table, 0, len(targets))


def classwise_table(classes: int, bins: int) -> Array:
    """Return an empty (C, bins) table of class-wise sums."""
    check_bins(bins)
    return np.zeros((classes, bins))


def _blocks(
    matrix: Any, targets: Array, table: Array | None, first: int, last: int, first_row: int = 0
) -> Iterator[Statistics]:
    dtype = matrix.dtype if isinstance(matrix, Tensor) else _torch_dtype(matrix.dtype)
    if isinstance(matrix, Tensor) and matrix.is_cuda:
        step = max(1, DEVICE_BLOCK // matrix.shape[1])
        for start in range(first, last, step):
            block = matrix[start : min(start + step, last)].detach().to(torch.float64).contiguous()
            target = torch.from_numpy(targets[start : start + len(block)]).to(block.device)
            yield _reduce_on_gpu(block, target, dtype, table, first_row + start)
        return
    reduce = _reduce_few if matrix.shape[1] <= few_classes.MOST_CLASSES else _reduce_many
    step = max(1, (LARGE_BLOCK if math.prod(matrix.shape) >= THREAD_ELEMENTS else BLOCK) // matrix.shape[1])
    edges = None if table is None else bin_edges(table.shape[1], dtype)
    for start in range(first, last, step):
        rows, labels = _numpy(matrix[start : min(start + step, last)]), targets[start : min(start + step, last)]
        yield reduce(rows, labels, dtype, edges, table, first_row + start)


def float_blocks(probs: Any, elements: int = BLOCK) -> Iterator[Tensor]:
    """Yield blocks of about `elements` entries of (N, C) probabilities as contiguous float64 rows, on their device."""
    matrix = probs if isinstance(probs, Tensor) else np.asarray(probs)
    step = max(1, elements // matrix.shape[1])
    for start in range(0, len(matrix), step):
        rows = matrix[start : start + step]
        yield (
            rows.detach().to(torch.float64).contiguous() if isinstance(rows, Tensor) else torch.from_numpy(_copy(rows))
        )


def _reduce_on_gpu(block: Tensor, target: Tensor, dtype: torch.dtype, table: Array | None, start: int) -> Statistics:
    totals = block.sum(1)
    check_probs(block, totals, start)
    predicted = block.argmax(1)
    confidence = block.gather(1, predicted[:, None])[:, 0]
    chosen = block.gather(1, target[:, None])[:, 0]
    # The log of the smallest normal number is finite, and 0 times it is 0, as 0 log 0 should be.
    logs = block.clamp(min=torch.finfo(torch.float64).tiny).log_()
    # A confidence of 1.0000001 (float32 rounding) would make the entropy slightly negative.
    entropy = logs.mul_(block).sum(1).neg_().clamp_(min=0)
    squares = torch.mul(block, block, out=logs).sum(1)
    if table is not None:
        _add_classwise_on_gpu(block, target, chosen, dtype, table)
    return Statistics(
        confidence=_host(confidence),
        predicted=_host(predicted),
        correct=_host(predicted == target),
        entropy=_host(entropy),
        nll=_host(chosen.clamp(min=NLL_FLOOR).log_().neg_()),
        brier=_host((squares - 2 * chosen + 1).clamp_(min=0)),
        labels=_host(target),
        num_classes=block.shape[1],
        dtype=dtype,
    )


def _reduce_few(
    rows: Array, labels: Array, dtype: torch.dtype, edges: Array | None, table: Array | None, start: int
) -> Statistics:
    columns = few_classes.columns_of(rows)
    totals, lowest = columns.sum(0), float(columns.min())
    if not (lowest >= 0 and np.abs(totals - 1).max() <= WITHIN):
        check_probs(torch.from_numpy(columns.T.copy()), torch.from_numpy(totals), start)
    confidence = columns.max(0)
    predicted = few_classes.predicted_classes(columns, confidence)
    chosen = few_classes.chosen_by(columns, labels)
    if table is not None and edges is not None:
        few_classes.add_classwise(columns, labels, chosen, edges, table)
    brier = np.einsum("kn,kn->n", columns, columns)
    brier -= 2 * chosen
    brier += 1
    return Statistics(
        confidence=confidence,
        predicted=predicted,
        correct=predicted == labels,
        entropy=few_classes.entropies(columns, lowest),
        nll=-np.log(np.maximum(chosen, NLL_FLOOR)),
        brier=np.maximum(brier, 0, out=brier),
        labels=labels,
        num_classes=len(columns),
        dtype=dtype,
    )


def _reduce_many(
    rows: Array, labels: Array, dtype: torch.dtype, edges: Array | None, table: Array | None, start: int
) -> Statistics:
    block = _copy(rows)
    totals, lowest, each = block.sum(1), float(block.min()), np.arange(len(block))
    if not (lowest >= 0 and np.abs(totals - 1).max() <= WITHIN):
        check_probs(torch.from_numpy(block), torch.from_numpy(totals), start)
    predicted = block.argmax(1)
    chosen = block[each, labels]
    # The log of the smallest normal number is finite, and 0 times it is 0, as 0 log 0 should be.
    logs = np.maximum(block, np.finfo(np.float64).tiny)
    np.log(logs, out=logs)
    entropy = -np.einsum("nk,nk->n", logs, block)
    if table is not None and edges is not None:
        _add_classwise(block, labels, chosen, edges, table)
    return Statistics(
        confidence=block[each, predicted],
        predicted=predicted,
        correct=predicted == labels,
        # A confidence of 1.0000001 (float32 rounding) would make the entropy slightly negative.
        entropy=np.maximum(entropy, 0, out=entropy),
        nll=-np.log(np.maximum(chosen, NLL_FLOOR)),
        brier=np.maximum(np.einsum("nk,nk->n", block, block) - 2 * chosen + 1, 0),
        labels=labels,
        num_classes=block.shape[1],
        dtype=dtype,
    )


def _host(values: Tensor) -> Array:
    return values.cpu().numpy()


def _add_classwise(block: Array, labels: Array, chosen: Array, edges: Array, table: Array) -> None:
    """Add the sums of p_k − 1[k = label] to the (C, bins) table.

    A row that sums to 1 has fewer than `bins` entries above 1/bins, so only these are put into bins one by one; the
    first bin is the column's sum minus the other bins.
    """
    where = np.flatnonzero(block.reshape(-1) > edges[1])
    _add_entries(where, block.reshape(-1)[where], len(block), labels, chosen, edges, table)
    table[:, 0] += block.sum(0)


def _add_classwise_on_gpu(block: Tensor, target: Tensor, chosen: Tensor, dtype: torch.dtype, table: Array) -> None:
    """`_add_classwise` of a block on a GPU."""
    edges, flat = bin_edges(table.shape[1], dtype), block.view(-1)
    where = torch.nonzero(flat > edges[1])[:, 0]
    _add_entries(_host(where), _host(flat[where]), len(block), _host(target), _host(chosen), edges, table)
    table[:, 0] += _host(block.sum(0))


def _add_entries(
    where: Array, high: Array, rows: int, labels: Array, chosen: Array, edges: Array, table: Array
) -> None:
    """Move the entries `high`, at the flat positions `where`, from the first bin to theirs, and subtract the labels."""
    classes, bins = table.shape
    first = _class_offsets(rows, classes, bins)[where]
    hit, index = labels * bins + digitise(chosen, edges), first + digitise(high, edges)
    if len(hit) <= table.size:
        for where_to, values in ((index, high), (first, -high), (hit, np.full(len(hit), -1.0))):
            np.add.at(table.reshape(-1), where_to, values)
        return
    # Many rows for a small table: whole tables are faster. np.bincount of no weights at all returns integers.
    added = np.bincount(index, weights=high, minlength=table.size).astype(np.float64).reshape(table.shape)
    added[:, 0] -= added.sum(1)
    table += added - np.bincount(hit, minlength=table.size).reshape(table.shape)


@lru_cache(maxsize=4)
def _class_offsets(rows: int, classes: int, bins: int) -> Array:
    """Return class · bins for each entry of a block: a lookup is faster than a division each time."""
    return np.tile(np.arange(classes, dtype=np.int64) * bins, rows)


def _numpy(rows: Any) -> Array:
    if not isinstance(rows, Tensor):
        return np.asarray(rows)
    rows = rows.detach()
    array: Array = (rows.float() if rows.dtype == torch.bfloat16 else rows).cpu().numpy()  # NumPy has no bfloat16
    return array


def _copy(rows: Array) -> Array:
    # float64 is copied too, because torch warns about read-only arrays
    return np.array(rows, dtype=np.float64, order="C")


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    narrow = {2: torch.float16, 4: torch.float32}
    return narrow.get(dtype.itemsize, torch.float64) if dtype.kind == "f" else torch.float64
