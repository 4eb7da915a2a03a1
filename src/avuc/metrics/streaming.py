"""The suite over data that never is in memory at once: update with any batches, merge in any order, compute.

Averages, equal-width bins and AvU at a fixed threshold are sums, and equal the pure functions to float64 rounding. What
needs an order of all rows (AvU at the auto threshold, AvU-AUC, adaptive ECE, AURC) is counted in cells that are at most
1/1024 of their values wide; `bounds()` says between which two numbers the exact value lies, and the value is between.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.metrics import calibration, selective
from avuc.metrics.accumulator import CELLS, Accumulator, Streaming, cell_edges, cell_index
from avuc.metrics.avu import Counts, Threshold, area, checked_threshold, midpoint, thresholds_between
from avuc.metrics.statistics import Array, BinTable, Groups, Statistics, blocks
from avuc.metrics.streaming_detection import StreamingDetection
from avuc.uncertainty import highest_certain

__all__ = ["StreamingDetection", "StreamingMetrics"]

Bounds = tuple[float, float]


class StreamingMetrics(Streaming):
    """Fixed-size counts from which every metric of the suite follows.

    >>> stream = StreamingMetrics(num_classes=2)
    >>> stream.update([[0.8, 0.2]], [0]).update([[0.6, 0.4]], [1]).compute()["brier"]
    0.4
    """

    def __init__(self, num_classes: int, *, bins: int = 15, threshold: Threshold = "auto") -> None:
        if num_classes < 1 or bins < 1:
            raise InputError(f"num_classes and bins must be at least 1, found {num_classes} and {bins}")
        self.num_classes, self.bins = num_classes, bins
        self.threshold: Threshold = "auto" if threshold == "auto" else checked_threshold(threshold)
        config = {"num_classes": str(num_classes), "bins": str(bins), "threshold": str(self.threshold)}
        self._state = Accumulator(
            "avuc.StreamingMetrics.v1",
            config,
            {
                "rows": (2,),  # wrong, right
                "entropy": (2,),
                "scores": (2,),  # nll, brier
                "certain": (2,),  # wrong and right rows with u ≤ a fixed threshold
                "by_confidence": (3, bins),
                "by_uncertainty": (3, bins),
                "classwise": (num_classes, bins),
                "doubt": (2, CELLS),  # wrong and right rows by cell of 1 − confidence
                "stated": (CELLS,),  # summed confidence by the same cells
                "entropies": (2, CELLS),  # wrong and right rows by cell of entropy
            },
        )

    def update(self, probs: Any, labels: Any) -> StreamingMetrics:
        """Add a batch of (N, C) probabilities and (N) labels; a batch that is refused changes nothing."""
        if np.ndim(probs) == 2 and np.shape(probs)[1] != self.num_classes:
            raise InputError(f"expected {self.num_classes} classes, found {np.shape(probs)[1]}")
        batch = self._empty()
        for part in blocks(probs, labels, batch._state["classwise"]):
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
        # float32 rounding can state a confidence a little above 1
        doubt = cell_index(np.maximum(1 - s.confidence, 0))
        state["doubt"].reshape(-1)[:] += np.bincount(kind * CELLS + doubt, minlength=2 * CELLS)
        state["stated"][:] += np.bincount(doubt, weights=s.confidence, minlength=CELLS)
        cell = cell_index(s.entropy)
        state["entropies"].reshape(-1)[:] += np.bincount(kind * CELLS + cell, minlength=2 * CELLS)
        extremes = np.array([-s.entropy.min(), s.entropy.max()])
        np.maximum(state.maxima.numpy(), extremes, out=state.maxima.numpy())

    def _empty(self) -> StreamingMetrics:
        return StreamingMetrics(self.num_classes, bins=self.bins, threshold=self.threshold)

    def __len__(self) -> int:
        return int(self._state["rows"].sum())

    def compute(self) -> dict[str, float]:
        """Every metric of `METRICS`; those of `bounds()` are the middle of their bounds."""
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
            counts = Counts(ac, right - ac, ic, wrong - ic)
            values["avu"] = counts.avu
            values["p_accurate_given_certain"] = counts.accurate_given_certain
            values["p_uncertain_given_inaccurate"] = counts.uncertain_given_inaccurate
        values |= {name: (low + high) / 2 for name, (low, high) in self.bounds().items()}
        return {name: float(value) for name, value in values.items()}

    def bounds(self) -> dict[str, Bounds]:
        """For each metric that is counted in cells, two numbers between which the exact value lies."""
        out = {"avu_auc": self._avu_auc(), "adaptive_ece": self._adaptive_ece(), "aurc": self._aurc()}
        if self.threshold == "auto":
            out |= self._avu(self.auto_threshold())
        return out

    def auto_threshold(self) -> float:
        """Midpoint of the mean entropies of right and wrong rows: exact, it is a function of sums."""
        self._rows()
        (wrong_sum, right_sum), (wrong, right) = self._state["entropy"], self._state["rows"]
        low, high = -float(self._state.maxima[0]), float(self._state.maxima[1])
        return float(midpoint(right_sum, wrong_sum, right, wrong, low, high))

    def _rows(self) -> float:
        if len(self) == 0:
            raise InputError("there are no samples yet: update before compute")
        return float(self._state["rows"].sum())

    def _certain(self, thresholds: Array) -> tuple[Array, Array]:
        """(2, T) wrong and right rows surely at or below each threshold, and possibly so."""
        below = np.concatenate([np.zeros((2, 1)), np.cumsum(self._state["entropies"], 1)], 1)
        cell = cell_index(thresholds)
        everything = thresholds >= float(self._state.maxima[1])
        sure = np.where(everything, below[:, -1:], below[:, cell])
        nothing = thresholds < -float(self._state.maxima[0])
        return np.where(nothing, 0, sure), np.where(nothing, 0, np.where(everything, sure, below[:, cell + 1]))

    def _avu(self, threshold: float) -> dict[str, Bounds]:
        (ic0, ac0), (ic1, ac1) = (cell[:, 0] for cell in self._certain(np.array([highest_certain(threshold)])))
        wrong, right = self._state["rows"]
        worst, best = Counts(ac0, right - ac0, ic1, wrong - ic1), Counts(ac1, right - ac1, ic0, wrong - ic0)
        return {
            "avu": (float(worst.avu), float(best.avu)),
            "p_accurate_given_certain": _ordered(worst.accurate_given_certain, best.accurate_given_certain),
            "p_uncertain_given_inaccurate": _ordered(worst.uncertain_given_inaccurate, best.uncertain_given_inaccurate),
        }

    def _avu_auc(self) -> Bounds:
        rows, wrong = self._rows(), self._state["rows"][0]
        (ic0, ac0), (ic1, ac1) = self._certain(
            thresholds_between(-float(self._state.maxima[0]), float(self._state.maxima[1]))
        )
        return float(area((ac0 + wrong - ic1) / rows)), float(area((ac1 + wrong - ic0) / rows))

    def _aurc(self) -> Bounds:
        """The rows of a cell in the best order, right ones first, and in the worst."""
        wrong, right = self._state["doubt"]
        nothing, ascending = np.zeros(CELLS), np.arange(2.0 * CELLS)
        orders = []
        for first, second in (((right, nothing), (nothing, wrong)), ((nothing, wrong), (right, nothing))):
            # cells run from the surest down, groups from the least sure up
            r, w = (np.stack(pair, -1).reshape(-1)[::-1] for pair in zip(first, second, strict=True))
            orders.append(float(selective.risk_area(Groups(ascending, r, w))))
        return orders[0], orders[1]

    def _adaptive_ece(self) -> Bounds:
        """The even spread inside a cell, give or take what any other order could move at each border between bins."""
        wrong, right = (x[::-1] for x in self._state["doubt"])
        stated, mass = self._state["stated"][::-1], wrong + right
        value = float(calibration.equal_mass_gap(right, wrong, stated, self.bins))
        rows, ends = self._rows(), np.cumsum(mass)
        cuts = np.arange(1, self.bins) * rows / self.bins
        cell = np.minimum(np.searchsorted(ends, cuts, side="left"), CELLS - 1)
        part = cuts - (ends - mass)[cell]
        share = part * right[cell] / np.maximum(mass[cell], 1)
        most, least = np.minimum(part, right[cell]), np.maximum(0, part - wrong[cell])
        width = np.minimum(np.diff(cell_edges()), 1)[::-1][cell]
        # a border's sum enters two bins
        slack = 2 * float((np.maximum(most - share, share - least) + part * width).sum()) / rows
        return max(0.0, value - slack), value + slack


def _ordered(low: Array, high: Array) -> Bounds:
    """Where one end has no rows to be a ratio of, the ratio can only be the other end, or not defined at all."""
    return float(np.where(np.isnan(low), high, low)), float(np.where(np.isnan(high), low, high))
