"""Thresholds and coverage of pixels and tokens: those of one image are not independent, so images are counted.

Every image counts the same, however many labelled pixels it has. The threshold is a weighted quantile of the scores:
each of n images has the weight 1/(n + 1), shared equally by its pixels, and the last 1/(n + 1) lies at infinity. A
random pixel of a new image is then covered with at least the probability that was asked for, if the images are
exchangeable, and by at most 2/(n + 1) more if no two scores are equal (Lee, Barber & Willett 2023, hierarchical
conformal prediction, https://arxiv.org/abs/2306.06342). With one pixel per image it is the threshold of rows.

Coverage is the mean over images of the covered share of their pixels, with the variance s²/n.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from avuc.conformal.distributions import beta_binomial, beta_quantile, central_interval, clopper_pearson

Array = np.ndarray[Any, np.dtype[Any]]

# images that must be expected among the covered, and among the others, for Student's interval
FEW = 5


class Images(NamedTuple):
    """The images that rows come from.

    `number`: how many; `spread`: standard deviation of their covered shares, 0 if there is one only; `share`: mean of
    these shares, None in older files.
    """

    number: int
    spread: float
    share: float | None = None


def images_of(hit: Array, numbers: Array) -> Images:
    """Return the images of covered and other rows.

    Args:
        hit: (M,) whether the set of each row contains its class.
        numbers: (M,) the image of each row.

    >>> images_of(np.array([True, True, False, False]), np.array([0, 0, 7, 7]))
    Images(number=2, spread=0.7071067811865476, share=0.5)
    """
    rows = np.bincount(numbers)
    shares = np.bincount(numbers, weights=hit)[rows > 0] / rows[rows > 0]
    return Images(len(shares), float(shares.std(ddof=1)) if len(shares) > 1 else 0.0, float(shares.mean()))


def hierarchical_quantile(scores: Array, numbers: Array, coverage: Fraction) -> float:
    """Return the smallest score with a weight of at least `coverage` at or below it; infinity if no score has that.

    Args:
        scores: (M,) of each row.
        numbers: (M,) the image of each row; its rows share the weight 1/(n + 1), for n images.
        coverage: exact, so that rounding decides nothing.

    >>> hierarchical_quantile(np.array([0.1, 0.2, 0.3, 0.9]), np.array([0, 0, 0, 1]), Fraction("0.6"))
    0.9
    """
    rows = np.bincount(numbers)
    images = int(np.count_nonzero(rows))
    needed = coverage * (images + 1)  # if every image has the weight 1
    if needed > images:
        return math.inf
    sizes, kinds = np.unique(rows[numbers], return_inverse=True)
    if len(sizes) == 1:
        index = math.ceil(needed * int(sizes[0])) - 1
        return float(np.partition(scores, index)[index])
    order = np.argsort(scores)
    kinds = kinds[order]

    def weight(first: int) -> Fraction:
        counts = np.bincount(kinds[:first], minlength=len(sizes)).tolist()
        return sum((Fraction(count, size) for count, size in zip(counts, sizes.tolist(), strict=True)), Fraction(0))

    # floating-point sums find the index up to rounding; the exact fractions correct it
    index = min(int(np.searchsorted(np.cumsum(1 / sizes[kinds]), float(needed))), len(scores) - 1)
    while weight(index) >= needed:
        index -= 1
    while weight(index + 1) < needed:
        index += 1
    return float(scores[order[index]])


def t_quantile(level: float, degrees: int) -> float:
    """Return the number that Student's t exceeds in absolute value with probability 1 − `level`.

    >>> round(t_quantile(0.95, 10), 3)
    2.228
    """
    # degrees/(degrees + t²) is Beta(degrees/2, 1/2)
    share = beta_quantile(1 - level, degrees / 2, 0.5)
    return math.sqrt(degrees * (1 / share - 1)) if share else math.inf


def coverage_ends(
    share: float,
    level: float,
    fit: Images | None,
    new: Images | None,
    *,
    rows: int,
    new_rows: int,
    kept: float | None = None,
) -> tuple[float, float]:
    """Return where the coverage of new rows lies without drift, if the rows of the fit or the new ones are of images.

    The spread of an image is that of the fit if that had images, else that of the new images. The interval is
    Student's; one image gives none, 0 to 1. If fewer than `FEW` images are expected on one side, as with 40 images and
    a coverage of 0.95, the spread is not known well enough: then pixels of one image are taken to be all alike, which
    is the widest interval, that of as many rows as there are images.

    After a fit on n images that covers a share f of these, f n/(n + 1) is expected of new ones if pixels of an image
    are all alike, and f if they are independent. The interval begins below the one and ends above the other.

    Args:
        share: the expected coverage; not used if the fit has images with a share.
        level: probability of the interval.
        fit: images of the fit; None if its rows are independent.
        new: the new images; None for independent rows.
        rows: number of rows of the fit.
        new_rows: number of new rows; 0 for infinitely many.
        kept: n/(n + 1), or its mean over new rows if each class has a threshold from n images of its own. Default
            None: from the images of the fit.
    """
    known = fit or new
    assert known is not None
    if known.number < 2:
        return 0.0, 1.0
    below = above = share
    if fit is not None and fit.share is not None:
        below, above = fit.share * (fit.number / (fit.number + 1) if kept is None else kept), fit.share
    if known.number * min(below, 1 - above) < FEW:
        low, high = _ends_of_alike(below, level, fit, new, rows=rows, new_rows=new_rows)
        # the threshold is near the largest score; if the pixels of an image differ, almost all of them are covered
        largest = fit is not None and fit.share is not None and fit.number * (1 - above) < FEW
        return low, 1.0 if largest else high
    binomial = above * (1 - above)
    variance = known.spread**2 / fit.number if fit else binomial / (rows + 2)
    if new is not None:
        variance += known.spread**2 / new.number
    elif new_rows:
        variance += binomial / new_rows
    half = t_quantile(level, known.number - 1) * math.sqrt(variance)
    return max(0.0, below - half), min(1.0, above + half)


def _ends_of_alike(
    share: float, level: float, fit: Images | None, new: Images | None, *, rows: int, new_rows: int
) -> tuple[float, float]:
    """Return the ends of `coverage_ends` if all pixels of an image are covered, or none."""
    total = rows + 1.0 if fit is None else fit.number + 1.0
    first = last = share * total
    if fit is not None:
        # the threshold is that of one of two neighbouring images
        first = min(max(1.0, math.floor(first + 1e-6)), fit.number)
        last = min(max(first, math.ceil(last - 1e-6)), fit.number)
    tails = (1 - level) / 2, (1 + level) / 2
    count = new_rows if new is None else new.number
    if not count:
        return beta_quantile(tails[0], first, total - first), beta_quantile(tails[1], last, total - last)
    low = central_interval(beta_binomial(count, first, total - first), level)[0]
    high = central_interval(beta_binomial(count, last, total - last), level)[1]
    return low / count, high / count


def share_interval(hit: Array, numbers: Array, level: float) -> tuple[float, float]:
    """Return the interval of the mean covered share of images, 0 to 1 without rows (Korn & Graubard 1998).

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
    images = images_of(hit, numbers)
    share = images.share or 0.0
    variance = images.spread**2 / images.number
    if not variance > 0:
        return clopper_pearson(share * images.number, images.number, level)
    wider = t_quantile(level, images.number - 1) / t_quantile(level, len(hit) - 1)
    rows = min(share * (1 - share) / variance / wider**2, float(len(hit)))
    return clopper_pearson(share * rows, rows, level)
