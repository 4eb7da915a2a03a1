"""Isotonic regression and histogram binning: the probability of each class is mapped on its own, then normalised."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.base import Array, Calibrator
from avuc.calibration.pooling import distinct, isotonic_regression, isotonic_shares
from avuc.calibration.scaled_logits import ScaledLogits, calibrated_nll
from avuc.core.errors import InputError
from avuc.core.ties import without_floor, without_last_bits
from avuc.metrics.statistics import NLL_FLOOR

# `loss_` uses evenly spaced rows if there are more probabilities than this
LOSS_ELEMENTS = 1 << 20
BLOCK_ELEMENTS = 1 << 20
STRATEGIES = ("quantile", "uniform")


class OneVsRest(Calibrator):
    """p_k = g_k(q_k) / Σ_j g_j(q_j) with q = softmax(z), and 1/C if every g is 0. Subclasses fit the function g_k."""

    # The learned attributes store one class after the other; `lengths_` (C,) has the number of entries in `places_`
    # (the breakpoints) and `values_` for each class.
    learned: ClassVar[dict[str, str]] = {
        "temperature": "number",
        "loss": "number",
        "num_classes": "whole",
        "at_bound": "flag",
        "n_evaluations": "number",
        "lengths": "vector",
        "places": "vector",
        "values": "vector",
        "curve": "curve",
    }
    # whether g is linear between its breakpoints, or constant
    linear: ClassVar[bool]
    # whether probabilities are equal if they differ by the rounding of float32 logits
    coarse: ClassVar[bool] = True

    loss_: float
    n_evaluations_: float
    lengths_: Array
    places_: Array
    values_: Array

    def _function(self, probs: Array, labelled: Array, weight: Array | None) -> tuple[Array, Array]:
        """Return breakpoints and values of g for one class.

        Args:
            probs: (M,) probabilities of the class.
            labelled: indices of the rows that have its label.
            weight: (M,) weights of the rows; None: all rows count the same.
        """
        raise NotImplementedError

    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        scaled = ScaledLogits.read(logits, labels, sample_weight)
        # every sample is a row of its own, because `transform` maps each sample before the mean
        weight = None if scaled.weight is None else np.tile(scaled.weight.cpu().numpy(), scaled.samples)
        target = np.tile(scaled.labels.cpu().numpy(), scaled.samples)
        logits = scaled.logits.flatten(0, 1)
        ordered, starts = np.argsort(target, kind="stable"), np.append(0, np.bincount(target).cumsum())
        functions = []
        for k, column in enumerate(self._columns(logits)):
            labelled = ordered[starts[k] : starts[k + 1]] if k + 1 < len(starts) else ordered[:0]
            functions.append(self._function(column, labelled, weight))
        self.lengths_ = np.array([len(breakpoints) for breakpoints, _ in functions], dtype=np.float64)
        self.places_, self.values_ = (np.concatenate([each[i] for each in functions]) for i in (0, 1))
        self.num_classes_: int = scaled.num_classes
        self.temperature_: float = 1.0
        self.at_bound_: bool = False
        self.curve_: tuple[Array, Array] = np.empty(0), np.empty(0)
        self.loss_ = calibrated_nll(scaled.subsample(LOSS_ELEMENTS), self._apply, 1 << 22)
        self.n_evaluations_ = 1.0

    def table(self) -> tuple[Array, Array, Array]:
        """Return lengths (C,), breakpoints (C, K) and values (C, K); shorter classes repeat their last entry."""
        lengths = self.lengths_.astype(np.int64)
        ends = np.cumsum(lengths)
        at = np.minimum(np.arange(lengths.max()), lengths[:, None] - 1) + (ends - lengths)[:, None]
        return lengths, self.places_[at], self.values_[at]

    def _apply(self, logits: Tensor) -> Tensor:
        lengths, breakpoints, values = (torch.as_tensor(part, device=logits.device) for part in self.table())
        flat = logits.reshape(-1, logits.shape[-1])
        result = torch.empty_like(flat)
        step = max(1, BLOCK_ELEMENTS // flat.shape[-1])
        for start in range(0, len(flat), step):
            rows = slice(start, start + step)
            mapped = self._mapped(self._probabilities(flat[rows]).T.contiguous(), lengths, breakpoints, values).T
            total = mapped.sum(-1, keepdim=True)
            shares = torch.where(total > 0, mapped / torch.where(total > 0, total, 1.0), 1 / flat.shape[-1])
            result[rows] = shares.clamp(min=NLL_FLOOR).log().to(flat.dtype)
        return result.reshape(logits.shape).masked_fill(torch.isneginf(logits), -math.inf)

    def _probabilities(self, logits: Tensor) -> Tensor:
        """Return softmax(logits) in float64, without the last bits, so that rounding breaks no ties."""
        coarse = self.coarse and logits.dtype != torch.float64
        probs: Tensor = without_last_bits(without_floor(torch.softmax(logits.double(), dim=-1)), coarse=coarse)
        return probs

    def _columns(self, logits: Tensor) -> Array:
        """Return the probabilities (classes, rows) that `_apply` maps."""
        result = torch.empty(logits.shape[::-1], dtype=torch.float64, device="cpu")
        first = 0
        for rows in logits.split(max(1, BLOCK_ELEMENTS // logits.shape[1])):
            result[:, first : first + len(rows)] = self._probabilities(rows).T
            first += len(rows)
        return result.numpy()

    def _mapped(self, probs: Tensor, lengths: Tensor, breakpoints: Tensor, values: Tensor) -> Tensor:
        """Return g of probabilities (C, M)."""
        last = (lengths - 1)[:, None]
        above = torch.searchsorted(breakpoints, probs)
        if not self.linear:
            return values.gather(1, torch.minimum((above - 1).clamp(min=0), last))
        above = torch.minimum(above, last)
        below = (above - 1).clamp(min=0)
        left, low = breakpoints.gather(1, below), values.gather(1, below)
        width, rise = breakpoints.gather(1, above) - left, values.gather(1, above) - low
        share = torch.where(width > 0, (probs - left) / width.clamp(min=torch.finfo(width.dtype).tiny), 0.0)
        return low + rise * share.clamp(0.0, 1.0)

    def _check_params(self) -> None:
        """Nothing to check."""

    def _check_learned(self) -> None:
        super()._check_learned()
        lengths, breakpoints, values = self.lengths_, self.places_, self.values_
        if len(lengths) != self.num_classes_ or (lengths < 1).any() or (lengths != np.floor(lengths)).any():
            raise InputError(f"calibrator JSON: lengths must be {self.num_classes_} whole numbers above 0")
        if not len(breakpoints) == len(values) == lengths.sum():
            raise InputError("calibrator JSON: places and values must be as many as lengths says")
        starts = np.zeros(len(breakpoints), dtype=bool)
        starts[np.cumsum(lengths).astype(np.int64)[:-1]] = True
        if values.min() < 0 or values.max() > 1 or (np.diff(breakpoints) < 0)[~starts[1:]].any():
            raise InputError("calibrator JSON: places must rise in each class, and values be from 0 to 1")


class IsotonicCalibration(OneVsRest):
    """Isotonic regression, one class against the rest (Zadrozny & Elkan 2002, https://doi.org/10.1145/775047.775151).

        p_k = g_k(q_k) / Σ_j g_j(q_j),    q = softmax(z)
        g_k = argmin Σ_i (g(q_ik) − 1[label_i = k])²    over rising g

    The same as `CalibratedClassifierCV(method="isotonic")` of scikit-learn: g is linear between the rows of the fit and
    constant outside. A probability can become exactly 0, which counts as 1e-12; the NLL of few rows suffers from that.
    With posterior samples each sample is a row, and each is mapped before the mean; to calibrate the mean itself, pass
    `logits_from_probs(mean)`. Scaled logits c z have other probabilities q, so their result is another; of huge logits
    every q is 0 or 1: apply a temperature first.

    Learned attributes:
        lengths_, places_, values_: the number of points of each g, and the points, class after class.
        loss_: NLL of the rows of the fit; of evenly spaced rows if there are more than a million probabilities.
        temperature_: 1, because there is none.

    >>> logits, labels = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]]), np.array([0, 1, 0, 1])
    >>> IsotonicCalibration().fit(logits, labels).predict_proba(logits)[:, 1].round(6)
    array([0. , 0.5, 0.5, 1. ])
    """

    name: ClassVar[str] = "isotonic"
    linear: ClassVar[bool] = True

    def __init__(self) -> None:
        pass

    def _function(self, probs: Array, labelled: Array, weight: Array | None) -> tuple[Array, Array]:
        if weight is None:
            return isotonic_shares(probs, np.sort(probs[labelled]))
        return isotonic_regression(probs, *hits_and_weights(probs, labelled, weight))


class HistogramBinning(OneVsRest):
    """Histogram binning, one class against the rest (Zadrozny & Elkan 2001).

        p_k = g_k(q_k) / Σ_j g_j(q_j),    q = softmax(z)
        g_k(q) = share of label k among the rows whose q_k is in the same bin as q

    A bin without rows keeps its middle. A share can be exactly 0, which counts as 1e-12. Posterior samples and
    scaled logits are treated as by `IsotonicCalibration`.

    Args:
        bins: number of bins; with equal probabilities there are fewer.
        strategy: "quantile", bins of equally many rows, or "uniform", bins ((l − 1)/bins, l/bins].

    Learned attributes:
        lengths_, places_, values_: the number of bins of each class, their lower ends and shares, class after class.
        loss_: NLL of the rows of the fit; of evenly spaced rows if there are more than a million probabilities.
        temperature_: 1, because there is none.

    >>> logits, labels = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]]), np.array([0, 1, 1, 1])
    >>> HistogramBinning(bins=2).fit(logits, labels).predict_proba(logits)[:, 1].round(6)
    array([0.5, 0.5, 1. , 1. ])
    """

    name: ClassVar[str] = "histogram"
    linear: ClassVar[bool] = False

    def __init__(self, bins: int = 15, *, strategy: str = "quantile") -> None:
        self.bins = bins
        self.strategy = strategy

    def _function(self, probs: Array, labelled: Array, weight: Array | None) -> tuple[Array, Array]:
        hit, weight = hits_and_weights(probs, labelled, weight)
        if self.strategy == "uniform":
            lower_ends = np.arange(self.bins) / self.bins
        else:
            points, mass = distinct(probs, weight)[:2]
            reached = np.cumsum(mass)
            # the point at which the k-th part of the rows is complete; the edge is half-way to the next one
            cuts = np.searchsorted(reached * (1 + 1e-12), reached[-1] * np.arange(1, self.bins) / self.bins)
            cuts = np.unique(cuts[cuts < len(points) - 1])
            lower_ends = np.append(0.0, (points[cuts] + points[cuts + 1]) / 2)
        inside = np.maximum(np.searchsorted(lower_ends, probs) - 1, 0)
        mass, hits = (np.bincount(inside, each, len(lower_ends)) for each in (weight, weight * hit))
        middle = (lower_ends + np.append(lower_ends[1:], 1.0)) / 2
        return lower_ends, np.where(mass > 0, hits / np.where(mass > 0, mass, 1), middle)

    def _check_params(self) -> None:
        if not isinstance(self.bins, int) or isinstance(self.bins, bool) or not 1 <= self.bins <= 10_000:
            raise InputError(f"bins must be a whole number from 1 to 10,000; found {self.bins!r}")
        if self.strategy not in STRATEGIES:
            raise InputError(f"strategy must be one of {STRATEGIES}; found {self.strategy!r}")


def hits_and_weights(probs: Array, labelled: Array, weight: Array | None) -> tuple[Array, Array]:
    """Return which rows are hits, and the weight of every row."""
    hit = np.zeros(len(probs), dtype=bool)
    hit[labelled] = True
    return hit, np.ones(len(probs)) if weight is None else weight
