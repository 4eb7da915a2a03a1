"""A histogram of values ≥ 0 with bins of constant relative width. NumPy only.

A bin holds the float64 values that share their exponent and the first 10 bits of their fraction: 1,024 bins for each
power of two, so a bin is at most 1/1024 of its values wide. One bin holds all values below 2^−30, one all above 2^5.
"""

from __future__ import annotations

import numpy as np

from avuc.metrics.arrays import Array

BITS, LOWEST, HIGHEST = 10, -30, 5
_FIRST = (LOWEST + 1023) << BITS
LOG_BINS = ((HIGHEST - LOWEST) << BITS) + 2


def log_bin_index(values: Array) -> Array:
    """Return the bin of each value ≥ 0; it never decreases with the value.

    >>> log_bin_index(np.array([0.0, 2.0**-30, 1.0, 1.0009, 1.001]))
    array([    0,     1, 30721, 30721, 30722])
    """
    raw = np.ascontiguousarray(values, np.float64).view(np.int64) >> (52 - BITS)
    return np.asarray(np.clip(raw - _FIRST + 1, 0, LOG_BINS - 1))


def log_bin_edges() -> Array:
    """Return LOG_BINS + 1 edges: bin i holds edge_i ≤ value < edge_{i+1}."""
    inner = ((np.arange(LOG_BINS - 1, dtype=np.int64) + _FIRST) << (52 - BITS)).view(np.float64)
    return np.concatenate([[0.0], inner, [np.inf]])


def in_wider_bins(counts: Array, edges: Array) -> Array:
    """Return the counts of a log histogram by wider bins; each log bin counts where its middle is.

    Args:
        counts: (LOG_BINS,) counts.
        edges: (K + 1,) ascending edges; values beyond an end count in the bin at that end.

    >>> counts = np.bincount(log_bin_index(np.array([0.1, 0.2, 0.7])), minlength=LOG_BINS)
    >>> in_wider_bins(counts, np.array([0.0, 0.5, 1.0]))
    array([2., 1.])
    """
    bounds = log_bin_edges()
    bounds[-1] = bounds[-2]
    index = np.searchsorted(edges[1:-1], (bounds[1:] + bounds[:-1]) / 2, side="right")
    return np.bincount(index, weights=counts, minlength=len(edges) - 1)
