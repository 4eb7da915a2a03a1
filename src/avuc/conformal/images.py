"""Coverage of pixels and tokens: those of one image are not independent, so the images are what is counted.

An image i has w_i labelled pixels, h_i of them covered. The coverage R = Σ h_i / Σ w_i is a ratio of sums over
independent images, with the variance s²/n for n images, where s² is that of (h_i − R w_i)/w̄ (Cochran 1977, Sampling
Techniques, section 6.3).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from avuc.conformal.distributions import beta_binomial, beta_quantile, central_interval, clopper_pearson

Array = np.ndarray[Any, np.dtype[Any]]

# images that must be expected among the covered, and among the others, for Student's interval
FEW = 5


class Images(NamedTuple):
    """The images that rows come from: how many, and the standard deviation s of one image; 0 if there is one only."""

    number: int
    spread: float


def images_of(hit: Array, numbers: Array) -> Images:
    """Return the images of covered and other rows.

    Args:
        hit: (M,) whether the set of each row contains its class.
        numbers: (M,) the image of each row.

    >>> images_of(np.array([True, True, False, False]), np.array([0, 0, 7, 7]))
    Images(number=2, spread=0.7071067811865476)
    """
    _, places = np.unique(numbers, return_inverse=True)
    rows, covered = np.bincount(places), np.bincount(places, weights=hit)
    rest = (covered - covered.sum() / rows.sum() * rows) / rows.mean()
    return Images(len(rows), float(rest.std(ddof=1)) if len(rows) > 1 else 0.0)


def t_quantile(level: float, degrees: int) -> float:
    """Return the number that Student's t exceeds in absolute value with probability 1 − `level`.

    >>> round(t_quantile(0.95, 10), 3)
    2.228
    """
    # degrees/(degrees + t²) is Beta(degrees/2, 1/2)
    share = beta_quantile(1 - level, degrees / 2, 0.5)
    return math.sqrt(degrees * (1 / share - 1)) if share else math.inf


def coverage_ends(
    share: float, level: float, fit: Images | None, new: Images | None, *, rows: int, new_rows: int
) -> tuple[float, float]:
    """Return where the coverage of new rows lies without drift, if the rows of the fit or the new ones are of images.

    The spread of an image is that of the fit if that had images, else that of the new images. The interval is
    Student's; one image gives none, 0 to 1. If fewer than `FEW` images are expected on one side, as with 40 images and
    a coverage of 0.95, the spread is not known well enough: then pixels of one image are taken to be all alike, which
    is the widest interval, that of as many rows as there are images.

    Args:
        share: the expected coverage.
        level: probability of the interval.
        fit: images of the fit; None if its rows are independent.
        new: the new images; None for independent rows.
        rows: number of rows of the fit.
        new_rows: number of new rows; 0 for infinitely many.
    """
    known = fit or new
    assert known is not None
    if known.number < 2:
        return 0.0, 1.0
    if share >= 1:
        return 1.0, 1.0
    if known.number * min(share, 1 - share) < FEW:
        return _ends_of_alike(share, level, fit, new, rows=rows, new_rows=new_rows)
    binomial = share * (1 - share)
    variance = known.spread**2 / fit.number if fit else binomial / (rows + 2)
    if new is not None:
        variance += known.spread**2 / new.number
    elif new_rows:
        variance += binomial / new_rows
    half = t_quantile(level, known.number - 1) * math.sqrt(variance)
    return max(0.0, share - half), min(1.0, share + half)


def _ends_of_alike(
    share: float, level: float, fit: Images | None, new: Images | None, *, rows: int, new_rows: int
) -> tuple[float, float]:
    """Return the ends of `coverage_ends` if all pixels of an image are covered, or none."""
    total = rows + 1.0 if fit is None else fit.number + 1.0
    # the threshold is that of one of two neighbouring images
    first = share * total if fit is None else max(1.0, math.floor(share * fit.number))
    last = first if fit is None else min(first + 1, fit.number)
    tails = (1 - level) / 2, (1 + level) / 2
    count = new_rows if new is None else new.number
    if not count:
        return beta_quantile(tails[0], first, total - first), beta_quantile(tails[1], last, total - last)
    low = central_interval(beta_binomial(count, first, total - first), level)[0]
    high = central_interval(beta_binomial(count, last, total - last), level)[1]
    return low / count, high / count


def share_interval(hit: Array, numbers: Array, level: float) -> tuple[float, float]:
    """Return the interval of the share of covered rows, 0 to 1 without rows (Korn & Graubard 1998).

    It is that of Clopper & Pearson for as many independent rows as have the variance of the images, fewer by the square
    of Student's quantiles if there are few images; at most all rows. Without a variance (all covered, none, or one
    image) an image counts as one row.

    Args:
        hit: (M,) whether the set of each row contains its class.
        numbers: (M,) the image of each row.
        level: probability of the interval.
    """
    if not len(hit):
        return 0.0, 1.0
    share, images = float(hit.mean()), images_of(hit, numbers)
    variance = images.spread**2 / images.number
    if not variance > 0:
        return clopper_pearson(share * images.number, images.number, level)
    wider = t_quantile(level, images.number - 1) / t_quantile(level, len(hit) - 1)
    rows = min(share * (1 - share) / variance / wider**2, float(len(hit)))
    return clopper_pearson(share * rows, rows, level)
