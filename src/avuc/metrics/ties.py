"""Correct and wrong predictions counted by distinct score. NumPy only.

Metrics that depend on an order of the predictions (AUROC, AURC, adaptive ECE, AvU over thresholds) are functions of
these counts. Predictions with equal scores form one group, so no metric depends on how a sort happens to order ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import avuc.metrics.arrays as arrays
from avuc.metrics.arrays import Array


class TieGroups(NamedTuple):
    """Counts for each distinct score, scores ascending.

    values  (G,) distinct scores
    right   (..., G) correct predictions with that score; a leading axis has one entry for each resample
    wrong   (..., G) wrong predictions with that score
    """

    values: Array
    right: Array
    wrong: Array


def group_ties(values: Array, correct: Array) -> TieGroups:
    """Sort predictions by a score and count correct and wrong ones for each distinct score.

    Args:
        values: (N,) float64 scores, N ≥ 1.
        correct: (N,) bool.

    >>> group_ties(np.array([0.5, 0.2, 0.5]), np.array([True, True, False]))
    TieGroups(values=array([0.2, 0.5]), right=array([1., 1.]), wrong=array([0., 1.]))
    """
    columns = [np.empty(len(values)) for _ in range(3)]
    done = 0
    for some in group_ties_in_parts(values, correct):
        for column, values_of_part in zip(columns, some, strict=True):
            column[done : done + len(some.values)] = values_of_part
        done += len(some.values)
    return TieGroups(*(column[:done] for column in columns))


def group_ties_in_parts(values: Array, correct: Array) -> Iterator[TieGroups]:
    """Yield the groups of `group_ties` in parts that fit the cache, for metrics that add up over parts.

    Args:
        values: (N,) float scores, N ≥ 1.
        correct: (N,) bool.
    """
    if values.min() >= 0:
        ordered, flags = _sorted_with_flags(values, correct)
    else:
        order = np.argsort(values)
        ordered, flags = values[order], correct[order]
    for part in _parts_between_ties(ordered):
        yield _group_sorted(ordered[part], flags[part])


def _parts_between_ties(ordered: Array) -> Iterator[slice]:
    """Yield slices of about `CACHED_ROWS` sorted values; equal values are never in two of them."""
    ends = np.searchsorted(ordered, ordered[arrays.CACHED_ROWS :: arrays.CACHED_ROWS], side="right")
    start = 0
    for end in [*np.unique(ends).tolist(), len(ordered)]:
        if end > start:
            yield slice(start, end)
        start = end


def _group_sorted(ordered: Array, flags: Array) -> TieGroups:
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    # differences of running sums: faster than np.add.reduceat
    right = np.diff(np.cumsum(flags, dtype=np.int64).take(last), prepend=0)
    return TieGroups(ordered.take(last).astype(np.float64), right, np.diff(last, prepend=-1) - right)


def _sorted_with_flags(values: Array, flags: Array) -> tuple[Array, Array]:
    """Return values ≥ 0 in ascending order, and their flags as integers.

    The bits of a float ≥ 0 sort like the float and leave room for the flag: one plain sort instead of an argsort.
    Values that float32 holds exactly, as those of float32 predictions, are sorted as float32, which takes less time.
    """
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32, copy=False)
    kind, unsigned = ("f4", "u4") if narrow is values or (narrow == values).all() else ("f8", "u8")
    # adding 0 makes 0 of −0
    keys: Array = np.add(narrow if kind == "f4" else values, 0).view(unsigned)
    np.left_shift(keys, 1, out=keys)
    np.bitwise_or(keys, flags, out=keys)
    keys.sort()  # NumPy 2 has vectorised sorts of 32 and 64 bits; torch's radix sort takes several times as long
    flags = np.bitwise_and(keys, 1).astype(np.uint8)
    return np.right_shift(keys, 1, out=keys).view(kind), flags


def cumulative(counts: Array) -> Array:
    """Return 0 and the running sums along the last axis: (..., G) gives (..., G + 1).

    >>> cumulative(np.array([1.0, 2.0]))
    array([0., 1., 3.])
    """
    sums = np.empty((*counts.shape[:-1], counts.shape[-1] + 1))
    sums[..., 0] = 0
    np.cumsum(counts, -1, out=sums[..., 1:])
    return sums
