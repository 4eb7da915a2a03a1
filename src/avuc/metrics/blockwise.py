"""All metrics for data that is read in blocks, equal to those of `avuc.metrics.evaluate` to float64 rounding.

For each prediction only its confidence, its entropy and whether it is correct are kept: 12 bytes for float32
probabilities. Everything else is a sum. `avuc evaluate` uses this for large files. For data of unknown size, or spread
over processes, see `avuc.metrics.streaming`, whose memory does not grow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import avuc.metrics.calibration as calibration
import avuc.metrics.selective as selective
from avuc.core.errors import InputError
from avuc.metrics.arrays import Array
from avuc.metrics.avu import AvuCurves, QuadrantCounts, area, avu_curves_from_counts
from avuc.metrics.binning import BinTable, bin_edges, uncertainty_edges
from avuc.metrics.calibration import Curve
from avuc.metrics.log_histogram import LOG_BINS, log_bin_index
from avuc.metrics.resampling.random_cells import RandomCells
from avuc.metrics.selective import RiskCoverage
from avuc.metrics.sorted_samples import SortedPair
from avuc.metrics.statistics import Statistics, classwise_table, prediction_statistics
from avuc.metrics.threshold import Threshold, check_threshold, thresholds_between
from avuc.uncertainty import highest_certain, midpoint_threshold

# Data with more rows, or more scores, than this is evaluated in blocks, and its intervals come from groups of rows.
LARGE_ROWS = 100_000
LARGE_SCORES = 1 << 27
# bytes of one block, for its scores, their softmax, and seven float64 numbers per row
WORKING = 100_000_000
# 2^6 bins of the log histogram are merged, which leaves 16 for each power of two; in a bootstrap of a mean, the mean of
# a bin stands for each of its values
COARSE = 6


class _SplitArray:
    """An array that correct predictions fill from the front and wrong ones from the back."""

    def __init__(self, rows: int, dtype: Any) -> None:
        self.values, self.right, self.wrong = np.empty(rows, dtype), 0, 0

    def add(self, values: Array, right: Array) -> None:
        good, bad = values[right], values[~right]
        self.values[self.right : self.right + len(good)] = good
        end = len(self.values) - self.wrong
        self.values[end - len(bad) : end] = bad
        self.right, self.wrong = self.right + len(good), self.wrong + len(bad)

    def sorted(self) -> SortedPair:
        assert self.right + self.wrong == len(self.values)
        return SortedPair(self.values[self.right :], self.values[: self.right])


class MeanHistogram:
    """Counts and sums by bin of the value, from which a mean can be resampled."""

    def __init__(self) -> None:
        self.rows: Array = np.zeros((LOG_BINS >> COARSE) + 1)
        self.sums: Array = np.zeros_like(self.rows)

    def add(self, values: Array) -> None:
        index = log_bin_index(values) >> COARSE
        self.rows += np.bincount(index, minlength=len(self.rows))
        self.sums += np.bincount(index, weights=values, minlength=len(self.sums))


class BlockCollector:
    """Collects blocks of probabilities and labels into `BlockwiseStatistics`.

    >>> collector = BlockCollector(2, num_classes=2)
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
        rows: number of predictions that will be added.
        num_classes: number of classes.
        bins: number of bins of the calibration errors.
        dtype: precision of the probabilities; the confidences are kept in it.
        resampled: whether to collect what intervals need.
        seed: of the random groups from which the class-wise error is resampled.
        """
        self.rows: int = rows
        self.num_classes: int = num_classes
        self.bins: int = bins
        self.dtype: torch.dtype = dtype
        self.classwise: Array = classwise_table(num_classes, bins)
        self._done = 0
        self._confidence = _SplitArray(rows, np.float64 if dtype == torch.float64 else np.float32)
        self._entropy = _SplitArray(rows, np.float64)
        self._sums: dict[str, list[float]] = {name: [] for name in ("nll", "brier", "entropy", "confidence")}
        self._histograms = {"nll": MeanHistogram(), "brier": MeanHistogram()} if resampled else {}
        self._random_cells = RandomCells(rows, num_classes, bins, dtype, seed) if resampled else None

    def add(self, probs: Any, labels: Any) -> None:
        """Add a block: probabilities (N, C) and labels (N,)."""
        s: Statistics = prediction_statistics(probs, labels, bins=self.bins, first_row=self._done)
        if (rows := self._done + len(s)) > self.rows or s.num_classes != self.num_classes:
            raise InputError(
                f"expected {self.rows} rows of {self.num_classes} classes, found {rows} rows of {s.num_classes}"
            )
        assert s.classwise is not None
        self._done = rows
        self._confidence.add(s.confidence, s.correct)
        self._entropy.add(s.entropy, s.correct)
        self.classwise += s.classwise
        for name, parts in self._sums.items():
            parts.append(float(getattr(s, name).sum()))
        for name, histogram in self._histograms.items():
            histogram.add(getattr(s, name))
        if self._random_cells is not None:
            self._random_cells.add(probs, s.labels)

    def finish(self) -> BlockwiseStatistics:
        """Return the statistics, once all rows have been added. The collector must not be used afterwards."""
        if self._done != self.rows or self.rows == 0:
            raise InputError(f"expected {self.rows} rows, at least 1, found {self._done}")
        means = {name: math.fsum(parts) / self.rows for name, parts in self._sums.items()}
        return BlockwiseStatistics(self, self._confidence.sorted(), self._entropy.sorted(), means)

    @property
    def histograms(self) -> dict[str, MeanHistogram]:
        """Of NLL and of the Brier score; empty without `resampled`."""
        return self._histograms

    @property
    def random_cells(self) -> RandomCells | None:
        """For the class-wise error; None without `resampled`."""
        return self._random_cells


class BlockwiseStatistics:
    """What a `BlockCollector` kept of all predictions; computes every metric and curve."""

    def __init__(
        self, source: BlockCollector, confidence: SortedPair, entropy: SortedPair, means: dict[str, float]
    ) -> None:
        self.num_classes: int = source.num_classes
        self.bins: int = source.bins
        self.dtype: torch.dtype = source.dtype
        self.classwise: Array = source.classwise
        self.histograms: dict[str, MeanHistogram] = source.histograms
        self.random_cells: RandomCells | None = source.random_cells
        self.confidence: SortedPair = confidence
        self.entropy: SortedPair = entropy
        self.means: dict[str, float] = means

    def __len__(self) -> int:
        return len(self.entropy)

    @property
    def right(self) -> int:
        """Number of correct predictions."""
        return len(self.entropy.positive)

    @property
    def top(self) -> float:
        """The largest possible entropy, log C."""
        return math.log(self.num_classes)

    def metrics(self, *, threshold: Threshold = "auto") -> dict[str, float]:
        """Return every metric of `METRICS`; `threshold` as in `avuc.metrics.evaluate`."""
        by_confidence = self.confidence_table()
        counts = self.counts(np.array([highest_certain(self.threshold(threshold))]))
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
        """Return the entropy up to which a prediction is certain: the given one, or the midpoint for "auto"."""
        if threshold != "auto":
            return check_threshold(threshold)
        wrong, right = self.entropy.negative, self.entropy.positive
        low, high = self.entropy.extremes
        return float(midpoint_threshold(right.total, wrong.total, len(right), len(wrong), low=low, high=high))

    def counts(self, thresholds: Array) -> QuadrantCounts:
        """Return the four counts of AvU at each threshold, (T,)."""
        ic, ac = self.entropy.at_most(thresholds)
        return QuadrantCounts(ac, self.right - ac, ic, len(self) - self.right - ic)

    def confidence_table(self) -> BinTable:
        """Return predictions, summed confidence and correct predictions by bin of confidence."""
        return _table(self.confidence, bin_edges(self.bins, self.dtype), 1.0, positive=True)

    def uncertainty_table(self) -> BinTable:
        """Return predictions, summed u / log C and wrong predictions by bin of u / log C."""
        return _table(self.entropy, uncertainty_edges(self.num_classes, self.bins), self.top, positive=False)

    # ---- curves

    def reliability(self) -> Curve:
        """Return `reliability_curve`."""
        return calibration.curve_from_table(self.confidence_table())

    def uncertainty_reliability(self) -> Curve:
        """Return `uncertainty_reliability_curve`."""
        return calibration.curve_from_table(self.uncertainty_table())

    def avu_curves(self, points: int) -> AvuCurves:
        """Return `avu_curves`."""
        thresholds = thresholds_between(*self.entropy.extremes, points)
        return avu_curves_from_counts(self.counts(thresholds), thresholds)

    def risk_curve(self, points: int) -> RiskCoverage:
        """Return about `points` points of `risk_coverage_curve`."""
        samples = self.confidence.negative, self.confidence.positive
        scores = np.unique(np.concatenate([sample.quantiles(points // 2) for sample in samples]))[::-1]
        wrong, right = (len(sample) - sample.below(scores) for sample in samples)
        return RiskCoverage((right + wrong) / len(self), wrong / (right + wrong), scores)

    def entropy_histogram(self, edges: Array) -> tuple[Array, Array]:
        """Return correct and wrong predictions between the edges; larger entropies count in the last bin."""
        out = []
        for sample in (self.entropy.positive, self.entropy.negative):
            out.append(np.diff([0, *sample.below(edges[1:-1]), len(sample)]).astype(np.float64))
        return out[0], out[1]

    def _ordered(self) -> tuple[float, float]:
        """Return AURC and the adaptive error, from one pass over the predictions in order of confidence."""
        rows, wrong_rows = len(self), len(self) - self.right
        share = np.arange(1, self.bins) * (rows / self.bins)
        gaps, risk, seen, gap, wrong = np.empty(len(share)), [], 0.0, 0.0, 0.0
        for groups in self.confidence.tie_groups():
            count = groups.right + groups.wrong
            counts = seen + np.concatenate([[0.0], np.cumsum(count)])
            running = gap + np.concatenate([[0.0], np.cumsum(groups.values * count - groups.right)])
            here = (share >= seen) & (share <= counts[-1])
            gaps[here] = np.interp(share[here], counts, running)
            seen, gap, wrong = float(counts[-1]), float(running[-1]), wrong + float(groups.wrong.sum())
            risk.append(float(selective.risk_sum(groups, surer=rows - seen, errors=wrong_rows - wrong)))
        pieces = np.diff(np.concatenate([[0.0], gaps, [gap]]))
        return math.fsum(risk) / rows, float(np.abs(pieces).sum() / rows)


def _table(pair: SortedPair, bounds: Array, scale: float, *, positive: bool) -> BinTable:
    """Return the table of values / scale; `bounds` are 0 and the largest value of each bin."""
    sums, counts = [], []
    for sample in (pair.negative, pair.positive):
        ends = np.concatenate([[0], sample.at_most(bounds[1:-1]), [len(sample)]])
        counts.append(np.diff(ends).astype(np.float64))
        sums.append(np.diff(sample.sum_before(ends)))
    stated = (sums[0] + sums[1]) / scale if scale > 0 else np.zeros(len(sums[0]))
    return BinTable(counts[0] + counts[1], stated, counts[int(positive)])


def needs_blocks(rows: int, num_classes: int, samples: int = 1) -> bool:
    """Return whether data of this size is evaluated in blocks.

    Args:
        rows: number of predictions.
        num_classes: number of classes.
        samples: number of posterior samples per prediction.

    >>> needs_blocks(50_000, 1_000), needs_blocks(5_000_000, 10)
    (False, True)
    """
    return rows > LARGE_ROWS or rows * num_classes * samples > LARGE_SCORES


def bytes_needed(rows: int, num_classes: int, *, bins: int = 15, detection: bool = False) -> int:
    """Return the bytes that a blockwise evaluation of float32 probabilities needs.

    Args:
        rows: number of predictions.
        num_classes: number of classes.
        bins: number of bins of the calibration errors.
        detection: whether the entropies are kept a second time, for OOD detection.

    >>> bytes_needed(50_000_000, 10) < 1e9
    True
    """
    tables = 1 + RandomCells.cells_for(rows, num_classes, bins)
    return WORKING + rows * (16 if detection else 12) + 8 * tables * num_classes * bins
