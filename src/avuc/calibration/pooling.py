"""Isotonic regression of one class: rows with the label of the class (hits) among all rows."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from avuc.calibration.base import Array

# the rows below this many of the lowest hits are counted for one hit after the other; the other rows are sorted
LOWEST_HITS = 8


def isotonic_shares(x: Array, hits: Array) -> tuple[Array, Array]:
    """Return `isotonic_regression` of 0/1 targets with equal weights, without sorting all rows.

    g is the slope of the greatest convex function below the number of hits as a function of the number of rows, both
    counted from the lowest x. Its corners are at hits, so only the rows below each hit have to be counted. Most rows
    lie below all but a few hits; rows above these few are sorted.

    Args:
        x: (M,) values of all rows.
        hits: the sorted values of the rows whose target is 1.

    >>> isotonic_shares(np.array([1.0, 2.0, 3.0]), np.array([2.0]))
    (array([1., 2., 3.]), array([0. , 0.5, 0.5]))
    """
    if not len(hits):
        ends = np.array([x.min(), x.max()])
        return (ends if ends[0] < ends[1] else ends[:1]), np.zeros(len(ends) if ends[0] < ends[1] else 1)
    starts = np.append(0, np.flatnonzero(hits[1:] > hits[:-1]) + 1)
    corners = hits[starts]
    few = min(LOWEST_HITS, len(corners) - 1)
    high = np.sort(x[x >= corners[few]])
    below = len(x) - len(high)  # the number of rows below the first sorted one
    low = [int(np.count_nonzero(x < corner)) for corner in corners[:few]]
    counts = [*low, *(below + np.searchsorted(high, corners[few:])).tolist()]
    # the lower convex hull of the points (rows, hits) before each corner, and of the end
    hull = [(0, 0, -1)]
    for rows, done, number in zip(
        [*counts, len(x)], [*starts.tolist(), len(hits)], range(len(corners) + 1), strict=True
    ):
        if rows == 0:
            hull[-1] = (0, 0, number)
            continue
        while len(hull) > 1:
            (a, p, _), (b, q, _) = hull[-2:]
            if (q - p) * (rows - b) < (done - q) * (b - a):
                break
            hull.pop()
        hull.append((rows, done, number))
    breakpoints, values = [], []
    for (a, p, number), (b, q, after) in pairwise(hull):
        value = (q - p) / (b - a)
        first = float(corners[number]) if number >= 0 else float(x.min())
        if b == len(x):
            last = float(high[-1])
        elif b > below:
            last = float(high[b - below - 1])
        else:
            last = float(np.where(x < corners[after], x, -math.inf).max())
        breakpoints += [first, last] if last > first else [first]
        values += [value, value] if last > first else [value]
    return np.array(breakpoints), np.array(values)


def isotonic_regression(x: Array, y: Array, weight: Array) -> tuple[Array, Array]:
    """Return the points (x, g(x)) between which the rising g of least weighted squares is linear.

    Neighbours with the same mean are pooled first. Of 0/1 targets with few ones little is left for the pooling of
    adjacent violators: at most two blocks for each row whose target is 1.

    Args:
        x: (M,) values.
        y: (M,) targets.
        weight: (M,) weights, above 0.

    >>> isotonic_regression(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.0]), np.ones(3))
    (array([1., 2., 3.]), array([0. , 0.5, 0.5]))
    """
    points, mass, hits = distinct(x, weight, weight * y)
    mean = hits / mass
    starts = np.append(0, np.flatnonzero(np.diff(mean)) + 1)
    blocks: list[tuple[float, float, int]] = []  # hits, mass, first point
    for total, size, first in zip(
        np.add.reduceat(hits, starts).tolist(), np.add.reduceat(mass, starts).tolist(), starts.tolist(), strict=True
    ):
        while blocks and blocks[-1][0] * size >= total * blocks[-1][1]:
            before = blocks.pop()
            total, size, first = total + before[0], size + before[1], before[2]
        blocks.append((total, size, first))
    first_points = np.array([block[2] for block in blocks])
    last_points = np.append(first_points[1:], len(points)) - 1
    values = np.array([min(total / size, 1.0) for total, size, _ in blocks])
    kept = np.stack((first_points, last_points), 1).ravel()
    single = np.append(True, np.diff(kept) > 0)
    return points[kept][single], np.repeat(values, 2)[single]


def distinct(x: Array, *columns: Array) -> tuple[Array, ...]:
    """Return the sorted distinct values of x, and the sums of the columns for each."""
    order = np.argsort(x)
    ordered = x[order]
    starts = np.append(0, np.flatnonzero(np.diff(ordered)) + 1)
    return ordered[starts], *(np.add.reduceat(column[order], starts) for column in columns)
