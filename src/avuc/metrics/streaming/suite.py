"""All metrics from sums of fixed size, for data that arrives in batches or is spread over processes.

Averages, equal-width bins and AvU at a fixed threshold are sums; they equal the functions of `avuc.metrics` to float64
rounding. Metrics that need the order of all predictions (AvU at the auto threshold, AvU-AUC, adaptive ECE, AURC) are
computed from histograms whose bins are at most 1/1024 of their values wide. For these, `bounds()` returns two numbers
between which the exact value lies, and `compute()` the middle of the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import avuc.metrics.calibration as calibration
import avuc.metrics.selective as selective
from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.metrics.arrays import Array
from avuc.metrics.avu import AvuCurves, QuadrantCounts, area, avu_curves_from_counts
from avuc.metrics.binning import BinTable
from avuc.metrics.blockwise import WORKING
from avuc.metrics.checks import metric_rows
from avuc.metrics.log_histogram import LOG_BINS, LOWEST, in_wider_bins, log_bin_edges, log_bin_index
from avuc.metrics.selective import RiskCoverage
from avuc.metrics.statistics import Statistics, statistics_blocks
from avuc.metrics.streaming.accumulator import Accumulator, Streaming
from avuc.metrics.threshold import Threshold, check_threshold, thresholds_between
from avuc.metrics.ties import TieGroups
from avuc.uncertainty import highest_certain, midpoint_threshold

Bounds = tuple[float, float]


class StreamingMetrics(Streaming):
    """Every metric of `METRICS` over batches, with memory that does not grow with the number of predictions.

    Use it for data without end, spread over processes, or in a file that is too large for `avuc.metrics.blockwise`
    (`avuc evaluate --fixed-memory`). Where 12 bytes per prediction fit into memory, `avuc.metrics.blockwise` is exact
    and gives intervals.

    Args:
        num_classes: number of classes C.
        bins: number of bins of the calibration errors.
        threshold: entropy in nats up to which a prediction is certain; "auto": see `auto_threshold`.

    >>> stream = StreamingMetrics(num_classes=2)
    >>> stream.update([[0.8, 0.2]], [0]).update([[0.6, 0.4]], [1]).compute()["brier"]
    0.4
    """

    def __init__(self, num_classes: int, *, bins: int = 15, threshold: Threshold = "auto") -> None:
        if num_classes < 1 or bins < 1:
            raise InputError(f"num_classes and bins must be at least 1, found {num_classes} and {bins}")
        self.num_classes: int = num_classes
        self.bins: int = bins
        self.threshold: Threshold = "auto" if threshold == "auto" else check_threshold(threshold)
        config = {"num_classes": str(num_classes), "bins": str(bins), "threshold": str(self.threshold)}
        self._state = Accumulator(
            "avuc.StreamingMetrics.v1",
            config,
            {
                "rows": (2,),  # wrong and correct predictions
                "entropy": (2,),
                "scores": (2,),  # nll, brier
                "certain": (2,),  # wrong and correct predictions with u ≤ a fixed threshold
                "by_confidence": (3, bins),
                "by_uncertainty": (3, bins),
                "classwise": (num_classes, bins),
                "doubt": (2, LOG_BINS),  # wrong and correct predictions by bin of 1 − confidence
                "stated": (LOG_BINS,),  # summed confidence by the same bins
                "entropies": (2, LOG_BINS),  # wrong and correct predictions by bin of entropy
            },
        )

    def update(
        self, probs: Any, labels: Any, *, class_dim: int | None = None, ignore_index: int | None = IGNORE_INDEX
    ) -> StreamingMetrics:
        """Add a batch; a batch that raises InputError changes nothing, and neither does one without a row to count.

        Args:
            probs: (N, C) probabilities; dense (N, C, *spatial); or binary, of class 1, (N,) or (N, 1). List, NumPy
                array or tensor.
            labels: (N,) or (N, *spatial) class numbers.
            class_dim: dimension of the classes in `probs`. Default None: the last one for (N, C), else 1.
            ignore_index: rows with this label are left out (default −100); None: no row is.
        """
        if self.num_classes > 1 or class_dim is not None:
            options: dict[str, Any] = {"class_dim": class_dim, "ignore_index": ignore_index, "none_is_fine": True}
            probs, labels = metric_rows(probs, labels, **options)
            if len(labels) == 0 and ignore_index is not None:
                return self
        if np.ndim(probs) == 2 and np.shape(probs)[1] != self.num_classes:
            raise InputError(f"expected {self.num_classes} classes, found {np.shape(probs)[1]}")
        batch = self._empty()
        for part in statistics_blocks(probs, labels, batch._state["classwise"]):
            batch._add(part)
        return self.merge(batch)

    def _add(self, s: Statistics) -> None:
        state, kind = self._state, s.correct.astype(np.int64)
        state["rows"][:] += np.bincount(kind, minlength=2)
        state["entropy"][:] += np.bincount(kind, weights=s.entropy, minlength=2)
        state["scores"][:] += s.nll.sum(), s.brier.sum()
        if self.threshold != "auto":
            state["certain"][:] += np.bincount(kind[s.entropy <= highest_certain(self.threshold)], minlength=2)
        state["by_confidence"][:] += calibration.confidence_table(s, self.bins)
        state["by_uncertainty"][:] += calibration.uncertainty_table(s, self.bins)
        # float32 rounding can give a confidence slightly above 1
        doubt = log_bin_index(np.maximum(1 - s.confidence, 0))
        state["doubt"].reshape(-1)[:] += np.bincount(kind * LOG_BINS + doubt, minlength=2 * LOG_BINS)
        state["stated"][:] += np.bincount(doubt, weights=s.confidence, minlength=LOG_BINS)
        index = log_bin_index(s.entropy)
        state["entropies"].reshape(-1)[:] += np.bincount(kind * LOG_BINS + index, minlength=2 * LOG_BINS)
        extremes = np.array([-s.entropy.min(), s.entropy.max()])
        np.maximum(state.maxima.numpy(), extremes, out=state.maxima.numpy())

    def _empty(self) -> StreamingMetrics:
        return StreamingMetrics(self.num_classes, bins=self.bins, threshold=self.threshold)

    def __len__(self) -> int:
        return int(self._state["rows"].sum())

    def compute(self) -> dict[str, float]:
        """Return every metric of `METRICS`; for those of `bounds()`, the middle of the bounds."""
        s, rows = self._state, self._rows()
        by_confidence, by_uncertainty = BinTable(*s["by_confidence"]), BinTable(*s["by_uncertainty"])
        values = {
            "accuracy": s["rows"][1] / rows,
            "nll": s["scores"][0] / rows,
            "brier": s["scores"][1] / rows,
            "ece": calibration.expected_gap(by_confidence),
            "classwise_ece": calibration.classwise_gap(s["classwise"], rows),
            "debiased_ece": calibration.debiased_gap(by_confidence),
            "mce": calibration.maximum_gap(by_confidence),
            "uce": calibration.expected_gap(by_uncertainty),
            "mean_entropy": s["entropy"].sum() / rows,
        }
        if self.threshold != "auto":
            ic, ac = s["certain"]
            wrong, right = s["rows"]
            counts = QuadrantCounts(ac, right - ac, ic, wrong - ic)
            values["avu"] = counts.avu
            values["p_accurate_given_certain"] = counts.accurate_given_certain
            values["p_uncertain_given_inaccurate"] = counts.uncertain_given_inaccurate
        values |= {name: (low + high) / 2 for name, (low, high) in self.bounds().items()}
        return {name: float(value) for name, value in values.items()}

    def bounds(self) -> dict[str, Bounds]:
        """Return two numbers between which the exact value lies, for each metric that comes from a histogram."""
        out = {"avu_auc": self._avu_auc(), "adaptive_ece": self._adaptive_ece(), "aurc": self._aurc()}
        if self.threshold == "auto":
            out |= self._avu(self.auto_threshold())
        return out

    def auto_threshold(self) -> float:
        """Return the automatic threshold; it is exact, because it is a function of sums."""
        self._rows()
        (wrong_sum, right_sum), (wrong, right) = self._state["entropy"], self._state["rows"]
        low, high = self._extremes
        return float(midpoint_threshold(right_sum, wrong_sum, right, wrong, low=low, high=high))

    def mean_confidence(self) -> float:
        """Return the mean confidence; it is exact."""
        return float(self._state["by_confidence"][1].sum() / self._rows())

    # ---- curves

    def reliability(self) -> calibration.Curve:
        """Return `reliability_curve`; it is exact."""
        self._rows()
        return calibration.curve_from_table(BinTable(*self._state["by_confidence"]))

    def uncertainty_reliability(self) -> calibration.Curve:
        """Return `uncertainty_reliability_curve`; it is exact."""
        self._rows()
        return calibration.curve_from_table(BinTable(*self._state["by_uncertainty"]))

    def avu_curves(self, points: int) -> AvuCurves:
        """Return `avu_curves`; half of the predictions that share a histogram bin with a threshold count as certain."""
        self._rows()
        thresholds = thresholds_between(*self._extremes, points)
        sure, possible = self._certain(thresholds)
        (ic, ac), (wrong, right) = (sure + possible) / 2, self._state["rows"]
        return avu_curves_from_counts(QuadrantCounts(ac, right - ac, ic, wrong - ic), thresholds)

    def risk_curve(self, points: int) -> RiskCoverage:
        """Return at most `points` exact points of `risk_coverage_curve`, those between two histogram bins.

        The score of a point is the lowest confidence that its last bin can hold.
        """
        rows = self._rows()
        wrong, right = self._state["doubt"]
        full = np.flatnonzero(wrong + right)
        full = full[np.unique(np.linspace(0, len(full) - 1, points).round().astype(int))]
        errors, kept = np.cumsum(wrong)[full], np.cumsum(wrong + right)[full]
        return RiskCoverage(kept / rows, errors / kept, np.maximum(1 - log_bin_edges()[full + 1], 0))

    def entropy_histogram(self, edges: Array) -> tuple[Array, Array]:
        """Return correct and wrong predictions between the edges; within 1/1024 of an edge, the side may be wrong."""
        wrong, right = self._state["entropies"]
        return in_wider_bins(right, edges), in_wider_bins(wrong, edges)

    # ---- from the state to bounds

    @property
    def _extremes(self) -> Bounds:
        """The smallest and the largest entropy."""
        return -float(self._state.maxima[0]), float(self._state.maxima[1])

    def _rows(self) -> float:
        if len(self) == 0:
            raise InputError("there are no samples yet: update before compute")
        return float(self._state["rows"].sum())

    def _certain(self, thresholds: Array) -> tuple[Array, Array]:
        """Return wrong and correct predictions (2, T) that are surely certain at each threshold, and possibly."""
        below = np.concatenate([np.zeros((2, 1)), np.cumsum(self._state["entropies"], 1)], 1)
        index = log_bin_index(thresholds)
        lowest, highest = self._extremes
        everything = thresholds >= highest
        sure = np.where(everything, below[:, -1:], below[:, index])
        nothing = thresholds < lowest
        return np.where(nothing, 0, sure), np.where(nothing, 0, np.where(everything, sure, below[:, index + 1]))

    def _avu(self, threshold: float) -> dict[str, Bounds]:
        (ic0, ac0), (ic1, ac1) = (counts[:, 0] for counts in self._certain(np.array([highest_certain(threshold)])))
        wrong, right = self._state["rows"]
        worst, best = (
            QuadrantCounts(ac0, right - ac0, ic1, wrong - ic1),
            QuadrantCounts(ac1, right - ac1, ic0, wrong - ic0),
        )
        return {
            "avu": (float(worst.avu), float(best.avu)),
            "p_accurate_given_certain": _ordered(worst.accurate_given_certain, best.accurate_given_certain),
            "p_uncertain_given_inaccurate": _ordered(worst.uncertain_given_inaccurate, best.uncertain_given_inaccurate),
        }

    def _avu_auc(self) -> Bounds:
        rows, wrong = self._rows(), self._state["rows"][0]
        (ic0, ac0), (ic1, ac1) = self._certain(thresholds_between(*self._extremes))
        return float(area((ac0 + wrong - ic1) / rows)), float(area((ac1 + wrong - ic0) / rows))

    def _aurc(self) -> Bounds:
        """Return AURC with the predictions of each bin in the best order, correct ones first, and in the worst."""
        wrong, right = self._state["doubt"]
        nothing, ascending = np.zeros(LOG_BINS), np.arange(2.0 * LOG_BINS)
        orders = []
        for first, second in (((right, nothing), (nothing, wrong)), ((nothing, wrong), (right, nothing))):
            # bins run from the most confident down, groups from the least confident up
            r, w = (np.stack(pair, -1).reshape(-1)[::-1] for pair in zip(first, second, strict=True))
            orders.append(float(selective.risk_area(TieGroups(ascending, r, w))))
        return orders[0], orders[1]

    def _adaptive_ece(self) -> Bounds:
        """Return adaptive ECE with predictions spread evenly in each bin, ± what another order could change."""
        wrong, right = (x[::-1] for x in self._state["doubt"])
        stated, count = self._state["stated"][::-1], wrong + right
        value = float(calibration.equal_mass_gap(right, wrong, stated, self.bins))
        rows, ends = self._rows(), np.cumsum(count)
        cuts = np.arange(1, self.bins) * rows / self.bins
        index = np.minimum(np.searchsorted(ends, cuts, side="left"), LOG_BINS - 1)
        part = cuts - (ends - count)[index]
        share = part * right[index] / np.maximum(count[index], 1)
        most, least = np.minimum(part, right[index]), np.maximum(0, part - wrong[index])
        width = np.minimum(np.diff(log_bin_edges()), 1)[::-1][index]
        # the bin of the most confident also holds confidences above 1, by at most this much in total
        above = max(0.0, float(stated[-1] - count[-1] * (1 - 2.0**LOWEST)))
        moved = np.maximum(most - share, share - least) + part * width + np.where(index == LOG_BINS - 1, above, 0)
        # the sum at an edge enters two bins of the calibration error
        slack = 2 * float(moved.sum()) / rows
        return max(0.0, value - slack), value + slack


def _ordered(low: Array, high: Array) -> Bounds:
    """Return both ends; if one is NaN, the ratio is the other end or not defined."""
    return float(np.where(np.isnan(low), high, low)), float(np.where(np.isnan(high), low, high))


def bytes_needed(rows: int, num_classes: int, *, bins: int = 15) -> int:
    """Return the bytes that an evaluation in blocks by `StreamingMetrics` and `StreamingDetection` needs.

    Args:
        rows: number of predictions, which changes nothing.
        num_classes: number of classes.
        bins: number of bins of the calibration errors.

    >>> bytes_needed(10, 1000) == bytes_needed(10**12, 1000)
    True
    """
    state = 8 * (7 * LOG_BINS + (num_classes + 6) * bins + 10)
    # the sums, those of one block, and the block
    return WORKING + 2 * state
