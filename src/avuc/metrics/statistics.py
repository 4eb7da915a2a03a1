"""The one pass over the (N, C) probabilities from which every metric is computed.

A block of predictions at a time is checked, converted to float64 and reduced to a few numbers per prediction. Working
memory is one block for any N and C; the result is one-dimensional.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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

__getattr__ = forward(__name__)

# Elements of a block on the CPU: small enough for the cache, and below torch's grain size of 32,768, so that torch runs
# it on the calling thread. torch's own threads synchronise at every operation, which costs several times the work on a
# busy machine; the threads started here take a range of rows each and synchronise once.
BLOCK = 32_000
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
    if _few_on_cpu(matrix) and math.prod(matrix.shape) <= BLOCK:
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
    done = first
    if _few_on_cpu(matrix):
        step = max(1, 2 * BLOCK // matrix.shape[1])
        edges = None if table is None else bin_edges(table.shape[1], dtype)
        for start in range(first, last, step):
            rows, labels = matrix[start : min(start + step, last)], targets[start : min(start + step, last)]
            yield _reduce_few(rows, labels, dtype, edges, table, first_row + start)
        return
    for block in float_blocks(matrix[first:last]):
        target = torch.from_numpy(targets[done : done + len(block)]).to(block.device)
        yield _reduce(block, target, dtype, table, first_row + done)
        done += len(block)


def float_blocks(probs: Any, elements: int | None = None) -> Iterator[Tensor]:
    """Yield blocks of rows as contiguous float64 tensors on the device of the probabilities.

    Args:
        probs: (N, C) array or tensor.
        elements: number of elements of a block; None: the usual size for the device.
    """
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
    # The log of the smallest normal number is finite, and 0 times it is 0, as 0 log 0 should be.
    logs = _log(block.clamp(min=torch.finfo(torch.float64).tiny))
    # A confidence of 1.0000001 (float32 rounding) would make the entropy slightly negative.
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


def _reduce_few(
    rows: Any, labels: Array, dtype: torch.dtype, edges: Array | None, table: Array | None, start: int
) -> Statistics:
    if isinstance(rows, Tensor):
        rows = rows.detach()
        rows = (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()  # NumPy has no bfloat16
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


def _log(values: Tensor) -> Tensor:
    """Take the logarithm in place. torch.log starts threads from 2,048 elements on; NumPy's does not."""
    if values.is_cuda:
        return values.log_()
    np.log(values.numpy(), out=values.numpy())
    return values


def _host(values: Tensor) -> Array:
    return values.cpu().numpy()


def _add_classwise(block: Tensor, target: Tensor, chosen: Tensor, dtype: torch.dtype, table: Array) -> None:
    """Add the sums of p_k − 1[k = label] to the (C, bins) table.

    A row that sums to 1 has fewer than `bins` entries above 1/bins, so only these are put into bins one by one; the
    first bin is the column's sum minus the other bins.
    """
    classes, bins = table.shape
    edges, flat = bin_edges(bins, dtype), block.view(-1)
    if block.is_cuda:
        where = torch.nonzero(flat > edges[1])[:, 0]
        high, where_host = flat[where].cpu().numpy(), where.cpu().numpy()
    else:
        where_host = np.flatnonzero(flat.numpy() > edges[1])
        high = flat.numpy()[where_host]
    first = _class_offsets(len(block), classes, bins)[where_host]
    hit = target.cpu().numpy() * bins + digitise(chosen.cpu().numpy(), edges)
    table[:, 0] += block.sum(0).cpu().numpy()
    index = first + digitise(high, edges)
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


def _few_on_cpu(matrix: Any) -> bool:
    """Return whether blocks are reduced by columns."""
    on_cpu = not isinstance(matrix, Tensor) or matrix.device.type == "cpu"
    return on_cpu and matrix.shape[1] <= few_classes.MOST_CLASSES


def _copy(rows: Array) -> Array:
    # Copies float64, too: torch warns about read-only arrays, such as memory-mapped files.
    return np.array(rows, dtype=np.float64, order="C")


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    narrow = {2: torch.float16, 4: torch.float32}
    return narrow.get(dtype.itemsize, torch.float64) if dtype.kind == "f" else torch.float64
