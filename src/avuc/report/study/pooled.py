"""Histograms, reliability diagrams and threshold curves of a method, summed over test sets.

The exported figures use these functions; the page computes the same in JavaScript (`page_files/data.js`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avuc.report.study.result_arrays import Results, SetKey

Array = NDArray[np.float64]


class Bins(NamedTuple):
    """The non-empty bins of a reliability diagram."""

    rows: Array
    stated: Array
    observed: Array


def histogram(results: Results, name: str, method: int, test_sets: Sequence[SetKey]) -> dict[str, Array]:
    """Return the counts by group: right and wrong, or outside (out-of-distribution data).

    Args:
        results: a study's results.
        name: "entropy" or "confidence".
        method: index of the method.
        test_sets: the test sets to sum over.
    """
    counts: dict[str, Array] = {}
    for key in test_sets:
        curve = results.curves.get((method, results.set_index.get(key, -1)), {}).get(name, {})
        for group in ("right", "wrong", "outside"):
            if group in curve:
                counts[group] = counts.get(group, np.zeros(len(curve[group]))) + curve[group]
    return counts


def diagram(results: Results, name: str, method: int, test_sets: Sequence[SetKey]) -> Bins:
    """Return the bins of a diagram; `name` is "reliability" or "uncertainty"."""
    curves = [results.curves.get((method, results.set_index.get(key, -1)), {}).get(name) for key in test_sets]
    known = [curve for curve in curves if curve is not None]
    if not known:
        return Bins(*(np.zeros(0) for _ in range(3)))
    rows, stated, observed = (np.sum([curve[key] for curve in known], axis=0) for key in ("rows", "stated", "observed"))
    full = rows > 0
    return Bins(rows[full], stated[full] / rows[full], observed[full] / rows[full])


def by_confidence(results: Results, method: int, test_sets: Sequence[SetKey]) -> tuple[Array, Array, Array]:
    """Return thresholds, and the accuracy and share of the images with at least that confidence.

    The accuracy is NaN where there are no such images.
    """
    counts = histogram(results, "confidence", method, test_sets)
    if "right" not in counts:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    right, wrong = (counts[group][::-1].cumsum()[::-1] for group in ("right", "wrong"))
    total = right + wrong
    accuracy = np.divide(right, total, out=np.full(len(total), np.nan), where=total > 0)
    return np.arange(len(total)) / len(total), accuracy, total / max(total[0], 1)


def by_entropy(results: Results, method: int, test_sets: Sequence[SetKey], top: float) -> tuple[Array, Array, Array]:
    """Return entropy thresholds, p(right | certain) and p(uncertain | wrong).

    The shares are NaN where no image is certain, or none is wrong. `top` is the largest possible entropy.
    """
    counts = histogram(results, "entropy", method, test_sets)
    if "right" not in counts:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    right, wrong = counts["right"].cumsum(), counts["wrong"].cumsum()
    certain = right + wrong
    accurate = np.divide(right, certain, out=np.full(len(certain), np.nan), where=certain > 0)
    flagged = 1 - wrong / wrong[-1] if wrong[-1] else np.full(len(wrong), np.nan)
    return top * np.arange(1, len(certain) + 1) / len(certain), accurate, flagged
