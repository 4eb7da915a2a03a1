"""Correct and wrong predictions counted by distinct score. NumPy only.

Metrics that depend on an order of the predictions (AUROC, AURC, adaptive ECE, AvU over thresholds) are functions of
these counts. Predictions with equal scores form one group, so no metric depends on how a sort happens to order ties.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
    if values.min() >= 0:
        # The bits of a float ≥ 0 sort like the float and leave room for the flag: one plain sort instead of an argsort.
        keys = np.sort(((values + 0.0).view(np.uint64) << np.uint64(1)) | correct.astype(np.uint64))
        ordered, flags = (keys >> np.uint64(1)).view(np.float64), keys & np.uint64(1)
    else:
        order = np.argsort(values)
        ordered, flags = values[order], correct[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    right = np.add.reduceat(flags.astype(np.float64), starts)
    return TieGroups(ordered[starts], right, np.diff(starts, append=len(values)) - right)


def cumulative(counts: Array) -> Array:
    """Return 0 and the running sums along the last axis: (..., G) gives (..., G + 1).

    >>> cumulative(np.array([1.0, 2.0]))
    array([0., 1., 3.])
    """
    sums = np.empty((*counts.shape[:-1], counts.shape[-1] + 1))
    sums[..., 0] = 0
    np.cumsum(counts, -1, out=sums[..., 1:])
    return sums
