"""Binomial, beta and beta-binomial distributions, in float64 and without SciPy: the laws behind the guarantees."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# relative error at which the continued fraction stops; the most steps it may take, about √(a + b)
PRECISION = 1e-15
STEPS = 100_000


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return P(X ≤ x) for X ~ Beta(a, b): the regularised incomplete beta function, by its continued fraction.

    >>> round(beta_cdf(0.5, 2, 3), 6)
    0.6875
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - beta_cdf(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return min(1.0, math.exp(front) / a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 + term * d, 1 + term / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1) < PRECISION:
            break
    return value


def beta_quantile(share: float, a: float, b: float) -> float:
    """Return the x with P(X ≤ x) = share for X ~ Beta(a, b), by bisection.

    >>> round(beta_quantile(0.5, 1, 1), 6)
    0.5
    """
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high) or high - low < PRECISION:
            return middle
        low, high = (middle, high) if beta_cdf(middle, a, b) < share else (low, middle)


def binomial_cdf(events: int, rows: int, share: float) -> float:
    """Return P(X ≤ events) for X ~ Binomial(rows, share).

    >>> round(binomial_cdf(1, 3, 0.5), 6)
    0.5
    """
    if events < 0 or events >= rows:
        return float(events >= rows)
    return beta_cdf(1 - share, rows - events, events + 1)


def clopper_pearson(events: float, rows: float, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a share of which `events` of `rows` were seen; 0 to 1 without rows.

    >>> [round(end, 4) for end in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    tail = (1 - level) / 2
    low = 0.0 if events == 0 else beta_quantile(tail, events, rows - events + 1)
    high = 1.0 if events >= rows else beta_quantile(1 - tail, events + 1, rows - events)
    return low, high


def beta_binomial(rows: int, a: float, b: float) -> Array:
    """Return P(X = k), k = 0 … rows, for X ~ Binomial(rows, share) with share ~ Beta(a, b).

    b = 0 stands for a share of 1.

    >>> beta_binomial(2, 1, 1).round(6).tolist()
    [0.333333, 0.333333, 0.333333]
    """
    if b == 0:
        certain: Array = (np.arange(rows + 1) == rows).astype(np.float64)
        return certain
    import torch  # here, because reports use the other functions without torch

    k = torch.arange(rows + 1, dtype=torch.float64, device="cpu")
    logs = torch.lgamma(k + a) - torch.lgamma(k + 1) + torch.lgamma(rows - k + b) - torch.lgamma(rows - k + 1)
    mass: Array = torch.softmax(logs, 0).numpy()
    return mass


def total_of(masses: Iterable[Array]) -> Array:
    """Return the distribution of a sum of independent counts, from P(X = 0), P(X = 1), … of each.

    >>> total_of([np.array([0.5, 0.5]), np.array([0.5, 0.5])]).round(6).tolist()
    [0.25, 0.5, 0.25]
    """
    parts = list(masses)
    if len(parts) == 1:
        return parts[0]
    size = sum(len(part) - 1 for part in parts) + 1
    length = 1 << (size - 1).bit_length()
    spectrum = np.ones(length // 2 + 1, np.complex128)
    for part in parts:
        spectrum *= np.fft.rfft(part, length)
    return np.maximum(np.fft.irfft(spectrum, length)[:size], 0)


def central_interval(mass: Array, level: float) -> tuple[int, int]:
    """Return the counts between which a count lies with at least this probability, at most half the rest on each side.

    >>> central_interval(np.array([0.01, 0.98, 0.01]), 0.95)
    (1, 1)
    """
    tail, below = (1 - level) / 2, np.cumsum(mass)
    # rounding of the sum is below 1e-12
    low = int(np.searchsorted(below, tail + 1e-12))
    high = len(mass) - 1 - int(np.searchsorted(np.cumsum(mass[::-1]), tail + 1e-12))
    return low, max(low, high)
