"""Curves of one method, pooled over sets of images; the page computes the same in JavaScript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avuc.report.study.results import CellKey, Results

__all__ = ["Bins", "by_confidence", "by_entropy", "diagram", "histogram"]

Array = NDArray[np.float64]


class Bins(NamedTuple):
    """The bins of a reliability diagram that hold something."""

    rows: Array
    stated: Array
    observed: Array


def histogram(results: Results, name: str, method: int, cells: Sequence[CellKey]) -> dict[str, Array]:
    """Counts by group: right and wrong, or outside."""
    out: dict[str, Array] = {}
    for cell in cells:
        curve = results.curves.get((method, results.places.get(cell, -1)), {}).get(name, {})
        for group in ("right", "wrong", "outside"):
            if group in curve:
                out[group] = out.get(group, np.zeros(len(curve[group]))) + curve[group]
    return out


def diagram(results: Results, name: str, method: int, cells: Sequence[CellKey]) -> Bins:
    """name: reliability or uncertainty."""
    found = [results.curves.get((method, results.places.get(cell, -1)), {}).get(name) for cell in cells]
    known = [curve for curve in found if curve is not None]
    if not known:
        return Bins(*(np.zeros(0) for _ in range(3)))
    rows, stated, observed = (np.sum([curve[key] for curve in known], axis=0) for key in ("rows", "stated", "observed"))
    full = rows > 0
    return Bins(rows[full], stated[full] / rows[full], observed[full] / rows[full])


def by_confidence(results: Results, method: int, cells: Sequence[CellKey]) -> tuple[Array, Array, Array]:
    """Thresholds, accuracy and share of the images with at least that confidence; NaN where there are none."""
    counts = histogram(results, "confidence", method, cells)
    if "right" not in counts:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    right, wrong = (counts[group][::-1].cumsum()[::-1] for group in ("right", "wrong"))
    total = right + wrong
    accuracy = np.divide(right, total, out=np.full(len(total), np.nan), where=total > 0)
    return np.arange(len(total)) / len(total), accuracy, total / max(total[0], 1)


def by_entropy(results: Results, method: int, cells: Sequence[CellKey], top: float) -> tuple[Array, Array, Array]:
    """Thresholds, p(right | certain) and p(uncertain | wrong); NaN where nothing is certain, or nothing wrong."""
    counts = histogram(results, "entropy", method, cells)
    if "right" not in counts:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    right, wrong = counts["right"].cumsum(), counts["wrong"].cumsum()
    certain = right + wrong
    accurate = np.divide(right, certain, out=np.full(len(certain), np.nan), where=certain > 0)
    flagged = 1 - wrong / wrong[-1] if wrong[-1] else np.full(len(wrong), np.nan)
    return top * np.arange(1, len(certain) + 1) / len(certain), accurate, flagged
