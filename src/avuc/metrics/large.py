"""The whole suite for data that is read in blocks: the same figures as from all rows at once.

Of a row only its confidence, its entropy and whether it is right are kept: 12 bytes for float32 probabilities. The rest
are sums. Every figure equals that of `avuc.metrics.evaluate` to float64 rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from avuc.core.errors import InputError
from avuc.metrics import calibration, selective
from avuc.metrics.accumulator import CELLS, cell_index
from avuc.metrics.avu import AvuCurves, Counts, Threshold, area, checked_threshold, midpoint, thresholds_between
from avuc.metrics.calibration import Curve
from avuc.metrics.ranking import Ranking
from avuc.metrics.residuals import GroupedResiduals
from avuc.metrics.selective import RiskCoverage
from avuc.metrics.statistics import Array, BinTable, Statistics, bin_edges, classwise_table, summarise
from avuc.uncertainty import highest_certain

__all__ = ["LargeStatistics", "RowCollector", "bytes_needed", "is_large"]

# more rows than this, or more scores, are not held in memory, and their intervals come from cells instead of rows
LARGE_ROWS = 100_000
LARGE_SCORES = 1 << 27
# bytes of one block: its scores, their softmax, and seven float64 numbers per row
WORKING = 100_000_000
# 16 cells for each power of two: the mean of a cell stands for each of its rows in a bootstrap
COARSE = 6


class Halves:
    """An array that right rows fill from the front and wrong rows from the back."""

    def __init__(self, rows: int, dtype: Any) -> None:
        self.values, self.right, self.wrong = np.empty(rows, dtype), 0, 0

    def add(self, values: Array, right: Array) -> None:
        good, bad = values[right], values[~right]
        self.values[self.right : self.right + len(good)] = good
        end = len(self.values) - self.wrong
        self.values[end - len(bad) : end] = bad
        self.right, self.wrong = self.right + len(good), self.wrong + len(bad)

    def ranking(self) -> Ranking:
        assert self.right + self.wrong == len(self.values)
        return Ranking(self.values[self.right :], self.values[: self.right])


class Histogram:
    """Rows and their sum by cell of the value: enough to bootstrap a mean."""

    def __init__(self) -> None:
        self.rows, self.sums = np.zeros((CELLS >> COARSE) + 1), np.zeros((CELLS >> COARSE) + 1)

    def add(self, values: Array) -> None:
        cell = cell_index(values) >> COARSE
        self.rows += np.bincount(cell, minlength=len(self.rows))
        self.sums += np.bincount(cell, weights=values, minlength=len(self.sums))


class RowCollector:
    """Takes blocks of (N, C) probabilities and (N) labels, `rows` in all, and gives their `LargeStatistics`.

    >>> collector = RowCollector(2, num_classes=2)
    >>> collector.add([[0.8, 0.2]], [0])
    >>> collector.add([[0.6, 0.4]], [1])
    >>> collector.finish().metrics()["accuracy"]
    0.5
    """

    def __init__(
        self,
        rows: int,
        num_classes: int,
        *,
        bins: int = 15,
        dtype: torch.dtype = torch.float32,
        resampled: bool = True,
        seed: int = 0,
    ) -> None:
        """Args:
        rows: the number of rows that will come.
        num_classes: the number of columns of every block.
        bins: bins of the calibration errors.
        dtype: precision of the probabilities; the confidences are kept in it.
        resampled: whether intervals are wanted; without them, what only a bootstrap needs is not collected.
        seed: deals the rows into the groups from which the class-wise error is resampled.
        """
        self.rows, self.num_classes, self.bins, self.dtype = rows, num_classes, bins, dtype
        self.classwise = classwise_table(num_classes, bins)
        self._done = 0
        self._confidence = Halves(rows, np.float64 if dtype == torch.float64 else np.float32)
        self._entropy = Halves(rows, np.float64)
        self._sums: dict[str, list[float]] = {name: [] for name in ("nll", "brier", "entropy", "confidence")}
        self._histograms = {"nll": Histogram(), "brier": Histogram()} if resampled else {}
        self._residuals = GroupedResiduals(rows, num_classes, bins, dtype, seed) if resampled else None

    def add(self, probs: Any, labels: Any) -> None:
        s: Statistics = summarise(probs, labels, bins=self.bins, first_row=self._done)
        if s.num_classes != self.num_classes or self._done + len(s) > self.rows:
            raise InputError(
                f"expected {self.rows} rows of {self.num_classes} classes, found {self._done + len(s)} rows of "
                f"{s.num_classes}"
            )
        assert s.classwise is not None
        self._done += len(s)
        self._confidence.add(s.confidence, s.correct)
        self._entropy.add(s.entropy, s.correct)
        self.classwise += s.classwise
        for name, parts in self._sums.items():
            parts.append(float(getattr(s, name).sum()))
        for name, histogram in self._histograms.items():
            histogram.add(getattr(s, name))
        if self._residuals is not None:
            self._residuals.add(probs, s.labels)

    def finish(self) -> LargeStatistics:
        if self._done != self.rows or self.rows == 0:
            raise InputError(f"expected {self.rows} rows, at least 1, found {self._done}")
        means = {name: math.fsum(parts) / self.rows for name, parts in self._sums.items()}
        return LargeStatistics(self, self._confidence.ranking(), self._entropy.ranking(), means)

    @property
    def histograms(self) -> dict[str, Histogram]:
        return self._histograms

    @property
    def residuals(self) -> GroupedResiduals | None:
        return self._residuals


class LargeStatistics:
    """What is kept of all rows, and every figure from it."""

    def __init__(self, source: RowCollector, confidence: Ranking, entropy: Ranking, means: dict[str, float]) -> None:
        self.num_classes, self.bins, self.dtype = source.num_classes, source.bins, source.dtype
        self.classwise, self.histograms, self.residuals = source.classwise, source.histograms, source.residuals
        self.confidence, self.entropy, self.means = confidence, entropy, means

    def __len__(self) -> int:
        return len(self.entropy)

    @property
    def right(self) -> int:
        return len(self.entropy.positive)

    @property
    def top(self) -> float:
        """The largest possible entropy, log C."""
        return math.log(self.num_classes)

    def metrics(self, *, threshold: Threshold = "auto") -> dict[str, float]:
        """Every metric of `METRICS`."""
        by_confidence, counts = (
            self.confidence_table(),
            self.counts(np.array([highest_certain(self.threshold(threshold))])),
        )
        risk, equal_mass = self._ordered()
        values = {
            "accuracy": self.right / len(self),
            "nll": self.means["nll"],
            "brier": self.means["brier"],
            "ece": calibration.expected_gap(by_confidence),
            "classwise_ece": calibration.classwise_gap(self.classwise, len(self)),
            "adaptive_ece": equal_mass,
            "debiased_ece": calibration.debiased_gap(by_confidence),
            "mce": calibration.maximum_gap(by_confidence),
            "uce": calibration.expected_gap(self.uncertainty_table()),
            "avu": counts.avu[0],
            "avu_auc": area(self.counts(thresholds_between(*self.entropy.extremes)).avu),
            "p_accurate_given_certain": counts.accurate_given_certain[0],
            "p_uncertain_given_inaccurate": counts.uncertain_given_inaccurate[0],
            "aurc": risk,
            "mean_entropy": self.means["entropy"],
        }
        return {name: float(value) for name, value in values.items()}

    def threshold(self, threshold: Threshold = "auto") -> float:
        """The entropy up to which a prediction counts as certain."""
        if threshold != "auto":
            return checked_threshold(threshold)
        wrong, right = self.entropy.negative, self.entropy.positive
        return float(midpoint(right.total, wrong.total, len(right), len(wrong), *self.entropy.extremes))

    def counts(self, thresholds: Array) -> Counts:
        ic, ac = self.entropy.at_most(thresholds)
        return Counts(ac, self.right - ac, ic, len(self) - self.right - ic)

    def confidence_table(self) -> BinTable:
        return _table(self.confidence, bin_edges(self.bins, self.dtype), 1.0, positive=True)

    def uncertainty_table(self) -> BinTable:
        return _table(self.entropy, self.uncertainty_edges(), self.top, positive=False)

    def uncertainty_edges(self) -> Array:
        """The largest entropy u of each bin of u / log C; division rounds, so it is not always edge · log C."""
        edges = bin_edges(self.bins)
        if self.num_classes == 1:
            return edges
        bounds = edges * self.top
        bounds = np.where(bounds / self.top > edges, np.nextafter(bounds, -np.inf), bounds)
        following = np.nextafter(bounds, np.inf)
        return np.where(following / self.top <= edges, following, bounds)

    # ---- curves

    def reliability(self) -> Curve:
        return calibration.curve(self.confidence_table())

    def uncertainty_reliability(self) -> Curve:
        return calibration.curve(self.uncertainty_table())

    def avu_curves(self, points: int) -> AvuCurves:
        thresholds = thresholds_between(*self.entropy.extremes, points)
        counts = self.counts(thresholds)
        ratios = counts.avu, counts.accurate_given_certain, counts.uncertain_given_inaccurate
        return AvuCurves(np.linspace(0, 1, points), thresholds, *ratios, (counts.ac + counts.ic) / len(self))

    def risk_curve(self, points: int) -> RiskCoverage:
        """About `points` points of the curve, from the most confident rows to all rows."""
        samples = self.confidence.negative, self.confidence.positive
        scores = np.unique(np.concatenate([sample.spread(points // 2) for sample in samples]))[::-1]
        wrong, right = (len(sample) - sample.below(scores) for sample in samples)
        return RiskCoverage((right + wrong) / len(self), wrong / (right + wrong), scores)

    def entropy_histogram(self, edges: Array) -> tuple[Array, Array]:
        """Right and wrong rows between the edges, the last one included; entropies beyond it count in the last bin."""
        out = []
        for sample in (self.entropy.positive, self.entropy.negative):
            out.append(np.diff([0, *sample.below(edges[1:-1]), len(sample)]).astype(np.float64))
        return out[0], out[1]

    def _ordered(self) -> tuple[float, float]:
        """AURC and the adaptive error: one walk over the rows in order of confidence."""
        rows, wrong_rows = len(self), len(self) - self.right
        share = np.arange(1, self.bins) * (rows / self.bins)
        gaps, risk, mass, gap, wrong = np.empty(len(share)), [], 0.0, 0.0, 0.0
        for groups in self.confidence.groups():
            held = groups.right + groups.wrong
            masses = mass + np.concatenate([[0.0], np.cumsum(held)])
            running = gap + np.concatenate([[0.0], np.cumsum(groups.values * held - groups.right)])
            here = (share >= mass) & (share <= masses[-1])
            gaps[here] = np.interp(share[here], masses, running)
            mass, gap, wrong = float(masses[-1]), float(running[-1]), wrong + float(groups.wrong.sum())
            risk.append(float(selective.risk_sum(groups, surer=rows - mass, errors=wrong_rows - wrong)))
        pieces = np.diff(np.concatenate([[0.0], gaps, [gap]]))
        return math.fsum(risk) / rows, float(np.abs(pieces).sum() / rows)


def _table(ranking: Ranking, bounds: Array, scale: float, *, positive: bool) -> BinTable:
    """Rows, sum of value / scale and events per bin; `bounds` are 0 and the largest value of each bin."""
    sums, counts = [], []
    for sample in (ranking.negative, ranking.positive):
        ends = np.concatenate([[0], sample.at_most(bounds[1:-1]), [len(sample)]])
        counts.append(np.diff(ends).astype(np.float64))
        sums.append(np.diff(sample.sum_before(ends)))
    stated = (sums[0] + sums[1]) / scale if scale > 0 else np.zeros(len(sums[0]))
    return BinTable(counts[0] + counts[1], stated, counts[int(positive)])


def is_large(rows: int, num_classes: int, draws: int = 1) -> bool:
    """Whether data is judged in blocks.

    >>> is_large(50_000, 1_000), is_large(5_000_000, 10)
    (False, True)
    """
    return rows > LARGE_ROWS or rows * num_classes * draws > LARGE_SCORES


def bytes_needed(rows: int, num_classes: int, *, bins: int = 15, detection: bool = False) -> int:
    """Bytes that judging float32 probabilities takes: what is kept of every row (with `detection`, the entropy once
    more), the tables, and one block on its way."""
    tables = 1 + GroupedResiduals.groups_for(rows, num_classes, bins)
    return WORKING + rows * (16 if detection else 12) + 8 * tables * num_classes * bins
