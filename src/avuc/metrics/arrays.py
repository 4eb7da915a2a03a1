"""One-dimensional scores as NumPy arrays. NumPy only: nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.core.ties import without_float32_rounding

Array = np.ndarray[Any, np.dtype[Any]]
# rows that are worked on at a time, so that the steps in between stay in the cache of the processor
CACHED_ROWS = 1 << 15


def cached_parts(rows: int) -> Iterator[slice]:
    """Yield slices of at most `CACHED_ROWS` rows.

    >>> list(cached_parts(40_000))
    [slice(0, 32768, None), slice(32768, 40000, None)]
    """
    for start in range(0, rows, CACHED_ROWS):
        yield slice(start, min(start + CACHED_ROWS, rows))


def as_scores(values: Any, name: str, *, narrow: bool = False) -> Array:
    """Return a list, an array or a tensor of N scores as a float64 array of shape (N,).

    Args:
        values: (N,) finite numbers, N ≥ 1; a tensor may live on any device.
        name: what error messages call the argument.
        narrow: whether float32 scores stay float32; a sort of them takes half the time.

    >>> as_scores([1, 2], "in_entropy")
    array([1., 2.])
    """
    # a torch tensor, recognised without importing torch
    if hasattr(values, "detach"):
        plain = values.detach()
        values = (plain if plain.element_size() >= 4 else plain.double()).cpu().numpy()  # NumPy has no bfloat16
    array = np.asarray(values)
    if not (narrow and array.dtype == np.float32):
        array = np.asarray(array, np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"{name} must be one-dimensional and not empty, found shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError(f"{name} contains NaN or infinity (position {int(np.flatnonzero(~np.isfinite(array))[0])})")
    return array


def comparable(first: Array, second: Array) -> tuple[Array, Array]:
    """Return two samples of scores in one precision; if it was not the same, without the bits in which they differ.

    Equal predictions of float32 and float64 have entropies that are equal up to rounding, and count as ties.

    >>> comparable(np.array([0.1]), np.array([0.1], np.float32))[0].dtype
    dtype('float32')
    """
    if first.dtype == second.dtype:
        return first, second
    short, other = (without_float32_rounding(each.astype(np.float64)).astype(np.float32) for each in (first, second))
    return short, other
