"""Equal-width bins over [0, 1], as calibration errors use them. NumPy only, unless edges of a torch dtype are needed.

Bin l of L is the half-open interval ((l − 1)/L, l/L], as in Guo et al. 2017 (https://arxiv.org/abs/1706.04599); the
value 0 belongs to the first bin.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from avuc.core.errors import InputError
from avuc.metrics.arrays import Array

if TYPE_CHECKING:
    import torch


class BinTable(NamedTuple):
    """Sums over the predictions of each bin. All arrays have shape (..., bins).

    rows    number of predictions
    value   sum of the stated value: confidence, or normalised entropy
    event   number of predictions for which the event happened: correct, or wrong
    """

    rows: Array
    value: Array
    event: Array


def check_bins(bins: int) -> None:
    """Raise InputError unless there is at least one bin."""
    if bins < 1:
        raise InputError(f"bins must be at least 1, found {bins}")


def bin_edges(bins: int, dtype: torch.dtype | None = None) -> Array:
    """Return the edges 0, 1/L, …, 1 as float64, shape (bins + 1,).

    Args:
        bins: number of bins L.
        dtype: precision of the values to be binned; the edges are rounded to it, so that a float32 0.2 lies on the
            edge 0.2. None: float64.

    >>> bin_edges(4)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    check_bins(bins)
    return _edges(bins, dtype).copy()


@lru_cache(maxsize=16)
def _edges(bins: int, dtype: torch.dtype | None) -> Array:
    edges = np.arange(bins + 1) / bins
    if dtype is None:
        return edges
    import torch

    return torch.from_numpy(edges).to(dtype).to(torch.float64).numpy()


def uncertainty_edges(num_classes: int, bins: int) -> Array:
    """Return the largest entropy u of each bin of u / log C, and 0 before them.

    Because division rounds, it is not always edge · log C.

    >>> uncertainty_edges(2, bins=2).round(4)
    array([0.    , 0.3466, 0.6931])
    """
    edges = bin_edges(bins)
    if num_classes == 1:
        return edges
    top = math.log(num_classes)
    bounds = edges * top
    bounds = np.where(bounds / top > edges, np.nextafter(bounds, -np.inf), bounds)
    following = np.nextafter(bounds, np.inf)
    return np.where(following / top <= edges, following, bounds)


def bin_index(values: Array, bins: int, dtype: torch.dtype | None = None) -> Array:
    """Return the bin of each value, counted from 0; 0 is in the first bin, anything above 1 in the last.

    Args:
        values: (N,) numbers ≥ 0, float64.
        bins: number of bins.
        dtype: precision that the values had before they became float64, see `bin_edges`.

    >>> bin_index(np.array([0.0, 0.25, 0.3, 1.0]), 4)
    array([0, 0, 1, 3], dtype=int32)
    """
    return digitise(values, bin_edges(bins, dtype))


def digitise(values: Array, edges: Array) -> Array:
    """Return the bin of each value for edges made by `bin_edges`; faster than `np.digitize`, which searches."""
    # Truncating values · L never gives a bin that is too low, because each edge is the number nearest to l/L in the
    # values' own precision. The bin is one too high for a value at, or rounded up to, its lower edge.
    bins = len(edges) - 1
    scaled = values * bins
    index = np.minimum(scaled, bins, out=scaled).astype(np.int32)
    index -= values <= edges.take(index)
    return np.asarray(np.maximum(np.minimum(index, bins - 1, out=index), 0, out=index))


def bin_table(index: Array, value: Array, event: Array, bins: int, weight: Array | None = None) -> BinTable:
    """Sum predictions by bin.

    Args:
        index: (N,) bin of each prediction, as `bin_index` returns it.
        value: (N,) stated value of each prediction.
        event: (N,) bool, whether the event happened.
        bins: number of bins.
        weight: (N,) weight of each prediction; None: all count the same.

    >>> bin_table(np.array([0, 1, 1]), np.array([0.2, 0.6, 1.0]), np.array([False, True, True]), 2).event
    array([0., 2.])
    """
    if weight is not None:
        return BinTable(*(np.bincount(index, weights=weight * each, minlength=bins) for each in (1.0, value, event)))
    # counted together, without a selection
    misses, hits = np.bincount(index * 2 + event, minlength=2 * bins).reshape(-1, 2).T.astype(np.float64)
    return BinTable(misses + hits, np.bincount(index, weights=value, minlength=bins), hits)
