"""Spearman's rank correlation, for example of a metric with the intensity of a shift. NumPy only."""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.metrics.arrays import Array, as_scores


def spearman(values: Any, intensities: Any) -> float:
    """Return Spearman's rank correlation ρ of two samples; NaN if one of them is constant.

        ρ = Σ (r_i − r̄)(s_i − s̄) / √(Σ (r_i − r̄)² Σ (s_i − s̄)²)

    r and s are the ranks of the two samples. Tied values share their mean rank.

    Args:
        values: (N,) numbers, N ≥ 2.
        intensities: (N,) numbers to rank against, for example the intensities of a shift.

    >>> round(spearman([0.1, 0.2, 0.3, 0.25], [1, 2, 3, 4]), 4)
    0.8
    """
    a, b = as_scores(values, "values"), as_scores(intensities, "intensities")
    if len(a) != len(b) or len(a) < 2:
        raise InputError(f"spearman needs two samples of equal length ≥ 2, found {len(a)} and {len(b)}")
    ra, rb = (r - r.mean() for r in (mean_ranks(a), mean_ranks(b)))
    scale = float(np.sqrt((ra @ ra) * (rb @ rb)))
    return float(np.clip(ra @ rb / scale, -1, 1)) if scale > 0 else float("nan")


def mean_ranks(values: Array) -> Array:
    """Return the rank of each value, counted from 1; tied values share their mean rank.

    >>> mean_ranks(np.array([0.3, 0.1, 0.3]))
    array([2.5, 1. , 2.5])
    """
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[index])
