"""The pass over a block of probabilities with few classes, on the CPU. NumPy only.

A block is turned into columns (C, n) first: a reduction over classes is then a few operations on long rows, several
times faster than a reduction over C neighbouring numbers for each of n predictions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from avuc.metrics.arrays import Array
from avuc.metrics.binning import digitise

# More classes than this are reduced row by row; classes are counted in int8.
MOST_CLASSES = 40
# for fewer rows than this, calling a function takes longer than its computation
FEW_ROWS = 1000
_TINY = float(np.finfo(np.float64).tiny)


def columns_of(rows: Any) -> Array:
    """Return a block (n, C) as contiguous float64 columns (C, n)."""
    columns = np.empty(rows.shape[::-1])
    np.copyto(columns, rows.T)
    return columns


def predicted_classes(columns: Array, confidence: Array) -> Array:
    """Return the first class whose probability is the confidence, int64.

    >>> predicted_classes(np.array([[0.4, 0.5], [0.6, 0.5]]), np.array([0.6, 0.5]))
    array([1, 0])
    """
    if columns.shape[1] < FEW_ROWS:
        return np.asarray(columns.argmax(0))
    largest = columns == confidence
    seen = largest[0].copy()
    missing = ~seen
    predicted = missing.astype(np.int8)
    for row in largest[1:-1]:
        seen |= row
        np.logical_not(seen, out=missing)
        predicted += missing.view(np.int8)
    return np.asarray(predicted.astype(np.int64))


def entropies(columns: Array, lowest: float) -> Array:
    """Return −Σ p log p of each column, at least 0; `lowest` is the smallest probability."""
    # The log of the smallest normal number is finite, and 0 times it is 0, as 0 log 0 should be.
    logs = np.log(columns if lowest >= _TINY else np.maximum(columns, _TINY))
    logs *= columns
    sums = logs.sum(0)
    # A confidence of 1.0000001 (float32 rounding) would make the entropy slightly negative.
    return np.asarray(np.maximum(np.negative(sums, out=sums), 0, out=sums))


def chosen_by(columns: Array, labels: Array) -> Array:
    """Return the probability of the label of each column."""
    return np.asarray(columns.reshape(-1).take(labels * columns.shape[1] + np.arange(columns.shape[1])))


def add_classwise(columns: Array, labels: Array, chosen: Array, edges: Array, table: Array) -> None:
    """Add the sums of p_k − 1[k = label] to the (C, bins) table.

    Entries up to 1/bins are not put into bins: the first bin is the class's sum minus the other bins.
    """
    bins, flat = table.shape[1], columns.reshape(-1)
    where = np.flatnonzero(flat > edges[1])
    high = flat.take(where)
    index = digitise(np.concatenate([high, chosen]), edges)
    entries, hits = index[: len(high)], index[len(high) :]
    entries += _class_offsets(*columns.shape, bins).take(where)
    hits += labels * bins
    added = np.bincount(entries, weights=high, minlength=table.size).reshape(table.shape)
    table += added
    table[:, 0] += columns.sum(1) - added.sum(1)
    table -= np.bincount(hits, minlength=table.size).reshape(table.shape)


@lru_cache(maxsize=4)
def _class_offsets(classes: int, rows: int, bins: int) -> Array:
    """Return class · bins for each entry of a block: a lookup is faster than a division each time."""
    return np.repeat(np.arange(classes, dtype=np.int32) * bins, rows)
