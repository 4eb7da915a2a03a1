"""How sure the difference of two rows is, also of two studies: on the same shifts, or from seed to seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError, require
from avuc.report.study.results import CLEAN, CellKey, Results
from avuc.report.study.tables import rank_correlation

__all__ = ["Difference", "over_images", "over_seeds", "over_shifts", "shift_values", "trend"]

Array = NDArray[np.float64]
REPLICATES = 1000
LEVEL = 0.95
GROUPS = ("right", "wrong", "outside")


class Difference(NamedTuple):
    """first − second with its 95 % interval; NaN bounds where nothing says how it would vary."""

    value: float
    low: float
    high: float

    def says(self, better: str) -> str:
        """Of the first, where `better` is "lower" or "higher": better, worse, or not told apart."""
        if math.isnan(self.low):
            return "one run each"
        if self.low <= 0 <= self.high:
            return "not told apart"
        return "better" if (self.value < 0) == (better == "lower") else "worse"


def shift_values(results: Results, method: str, metric: str) -> Array:
    """(seed, shift, intensity), the clean images as intensity 0 of every shift; only seeds that are complete."""
    place = results.names.index(method)
    clean = results.at(metric, CLEAN)[place][:, None].repeat(len(results.shifts), 1)
    values = np.stack(
        [clean, *(results.shifted(metric, level, common=False)[place] for level in results.severities)], axis=2
    )
    complete: Array = values[np.isfinite(values).all((1, 2))]
    return complete


def over_shifts(
    first: Array, second: Array, statistic: Callable[[Array], float], seed: int = 0, *, same_seeds: bool = False
) -> Difference:
    """Of statistic(first) − statistic(second), both (seed, shift, …) over the same shifts.

    Both meet the same resampled shifts: the difference is paired. Seeds are resampled for each on its own, for the
    seeds of two methods have nothing to do with each other; `same_seeds`: they have, because both rows start from the
    same trained networks. `statistic` reads (shift, …), seeds averaged.
    """
    if same_seeds and len(first) != len(second):
        raise InputError(f"{len(first)} and {len(second)} seeds cannot be compared in pairs; give the same seeds")
    value = statistic(first.mean(0)) - statistic(second.mean(0))
    shifts = first.shape[1]
    if shifts < 2:
        return Difference(value, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    taken = rng.integers(shifts, size=(REPLICATES, shifts))
    resampled = []
    seeds = None
    for values in (first, second):
        if seeds is None or not same_seeds:
            seeds = rng.integers(len(values), size=(REPLICATES, len(values)))
        means = values[seeds].mean(1)  # (replicate, shift, …)
        resampled.append([statistic(each[places]) for each, places in zip(means, taken, strict=True)])
    return _around(value, np.array(resampled[0]) - np.array(resampled[1]))


def over_seeds(first: tuple[float, ...], second: tuple[float, ...], *, same_seeds: bool = False) -> Difference:
    """Of the means of two rows on one set of images: Welch's interval over seeds; `same_seeds`: Student's, in pairs.

    >>> over_seeds((1.0,), (2.0,))
    Difference(value=-1.0, low=nan, high=nan)
    """
    if same_seeds and len(first) != len(second):
        raise InputError(f"{len(first)} and {len(second)} seeds cannot be compared in pairs; give the same seeds")
    value = float(np.mean(first) - np.mean(second))
    if min(len(first), len(second)) < 2:
        return Difference(value, math.nan, math.nan)
    samples = (np.subtract(first, second),) if same_seeds else (np.array(first), np.array(second))
    errors = [float(np.var(each, ddof=1)) / len(each) for each in samples]
    if not sum(errors):
        return Difference(value, value, value)
    freedom = sum(errors) ** 2 / sum(e**2 / (len(each) - 1) for e, each in zip(errors, samples, strict=True))
    student = require("scipy.stats", "study", "an interval over seeds").t
    half = float(student.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(sum(errors))
    return Difference(value, value - half, value + half)


def over_images(results: Results, method: str, other: Results, other_method: str, cell: CellKey) -> Difference:
    """Of clean ECE (`cell` is the clean set) or of the AUROC of other data: how far other test images would move it.

    From the counts that a study keeps (reliability diagram, histograms of entropy), each row for itself: images are
    not paired, so that the interval is rather wide. NaN bounds where a study has no such counts.
    """
    metric = "ece" if cell == CLEAN else "auroc"
    rng = np.random.default_rng(0)
    values, moved = [], []
    for study, row in ((results, method), (other, other_method)):
        place = study.names.index(row)
        values.append(float(study.mean(metric, cell)[place]))
        moved.append(_again(study, place, cell, rng))
    value = values[0] - values[1]
    if moved[0] is None or moved[1] is None:
        return Difference(value, math.nan, math.nan)
    # a resampled ECE is a little too large, one of counts in bins is a little off: only their spread is taken
    spread = moved[0] - moved[1]
    return _around(value, value + spread - spread.mean())


def _again(study: Results, place: int, cell: CellKey, rng: np.random.Generator) -> Array | None:
    """The metric of as many images, drawn again."""
    kept = [study.curves.get((place, study.places[key]), {}) for key in (CLEAN, cell) if key in study.places]
    if cell == CLEAN:
        curve = kept[0].get("reliability") if kept else None
        return None if curve is None else _ece_again(curve, rng)
    told = [each["entropy"] for each in kept if "entropy" in each]
    if len(told) < 2:
        return None
    inside, outside = (np.sum([each[key] for key in GROUPS if key in each], axis=0) for each in told)
    return _auroc_again(inside, outside, rng)


def _ece_again(curve: Mapping[str, Any], rng: np.random.Generator) -> Array:
    rows, right = (np.array(curve[key], float) for key in ("rows", "observed"))  # counts, of images and of right ones
    stated = np.divide(curve["stated"], rows, out=np.zeros(len(rows)), where=rows > 0)
    total = int(rows.sum())
    shares = np.concatenate([right, rows - right]).clip(0) / total
    drawn = rng.multinomial(total, shares / shares.sum(), size=REPLICATES)
    hit, missed = drawn[:, : len(rows)], drawn[:, len(rows) :]
    error: Array = np.abs(hit - stated * (hit + missed)).sum(1) / total
    return error


def _auroc_again(inside: Array, outside: Array, rng: np.random.Generator) -> Array:
    drawn = [rng.multinomial(int(n.sum()), n / n.sum(), size=REPLICATES).astype(float) for n in (inside, outside)]
    below = drawn[0].cumsum(1) - drawn[0] / 2
    area: Array = (drawn[1] * below).sum(1) / (drawn[0].sum(1) * drawn[1].sum(1))
    return area


def _around(value: float, replicates: Array) -> Difference:
    low, high = np.nanquantile(replicates, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Difference(float(value), float(low), float(high))


def trend(values: Array) -> float:
    """Spearman's ρ of the mean over shifts with the intensity, of (shift, intensity)."""
    return rank_correlation(np.arange(values.shape[1], dtype=float), values.mean(0))
