"""How much a metric changes on the same rows, with its 95 % interval; rows of one group may depend on each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from avuc.metrics.arrays import Array
from avuc.metrics.binning import bin_edges, digitise
from avuc.metrics.resampling.absolute_error import AbsoluteSum
from avuc.metrics.resampling.one_outcome import widened_difference
from avuc.metrics.resampling.percentile import NORMAL as NORMAL
from avuc.metrics.resampling.percentile import difference_interval, student_quantile
from avuc.metrics.resampling.rows import resampled_rows, wider
from avuc.metrics.statistics import NLL_FLOOR, Statistics

REPLICATES = 200
LEVEL = 0.95
# counts of resampled rows in memory at a time
HELD = 1 << 20


class MetricChange(NamedTuple):
    """One metric on held-out rows without and with the calibrator; [low, high] is the 95 % interval of the change."""

    before: float
    after: float
    change: float
    low: float
    high: float


class Figures(NamedTuple):
    """NLL, Brier score and ECE of the same rows."""

    nll: float
    brier: float
    ece: float

    def worse(self, than: Figures) -> list[str]:
        """Return the names of the figures that are higher than others; NaN counts as higher."""
        return [
            name for name, value, other_value in zip(self._fields, self, than, strict=True) if not value <= other_value
        ]


def figures(probs: Tensor, labels: Tensor, weight: Array | None = None, bins: int = 15) -> Figures:
    """Return the (weighted) means of NLL and of the Brier score, and ECE, equal to those of `avuc.metrics`.

    Args:
        probs: (N, C) probabilities.
        labels: (N,) class numbers.
        weight: (N,) weights; None: all rows count the same.
        bins: number of bins of ECE.

    >>> import torch
    >>> figures(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
    Figures(nll=0.34657359027997264, brier=0.25, ece=0.25)
    """
    chosen = probs.gather(-1, labels[:, None])[:, 0]
    brier = (probs.square().sum(-1) - 2 * chosen + 1).double().numpy()
    loss = -np.log(np.maximum(chosen.double().numpy(), NLL_FLOOR))
    confidence, predicted = (column.numpy() for column in probs.max(-1))
    gap = (predicted == labels.numpy()) - confidence.astype(np.float64)
    share = np.full(len(gap), 1 / len(gap)) if weight is None else weight / weight.sum()
    bin_index = digitise(confidence, bin_edges(bins, probs.dtype))
    ece = float(np.abs(np.bincount(bin_index, share * gap, bins)).sum())
    return Figures(float(share @ loss), float(share @ brier), ece)


def mean_change(before: Array, after: Array, weight: Array | None, groups: Array | None = None) -> MetricChange:
    """Return the (weighted) mean difference of paired rows with Student's interval.

    Args:
        before: (N,).
        after: (N,).
        weight: (N,) weights; None: all rows count the same.
        groups: (N,) numbers of groups; None: rows are independent.

    >>> mean_change(np.array([1.0, 2.0]), np.array([0.5, 1.5]), None)
    MetricChange(before=1.5, after=1.0, change=-0.5, low=-0.5, high=-0.5)
    """
    change, error = mean_and_error(after - before, weight, groups)
    many = len(before) if groups is None else len(np.unique(groups))
    reach = student_quantile(many - 1) * error if error else 0.0
    first, second = (float(np.average(values, weights=weight)) for values in (before, after))
    return MetricChange(first, second, change, change - reach, change + reach)


def mean_and_error(values: Array, weight: Array | None = None, groups: Array | None = None) -> tuple[float, float]:
    """Return the (weighted) mean of rows, and its standard error.

    Args:
        values: (N,).
        weight: (N,) weights; None: all rows count the same.
        groups: (N,) numbers of groups; rows of one group may depend on each other. None: every row is independent.

    >>> mean_and_error(np.array([1.0, 2.0, 3.0]))  # the deviation is 1, and 1/√3 = 0.577
    (2.0, 0.5773502691896257)
    >>> mean_and_error(np.array([1.0, 1.0, 3.0, 3.0]), groups=np.array([0, 0, 1, 1]))
    (2.0, 1.0)
    """
    if not len(values):
        return math.nan, math.inf
    share = np.full(len(values), 1 / len(values)) if weight is None else weight / weight.sum()
    mean = float(share @ values)
    parts = share * (values - mean)
    if groups is not None:
        parts = np.bincount(np.unique(groups, return_inverse=True)[1], weights=parts)
    many = len(parts)
    return mean, math.sqrt(float(parts @ parts) * many / (many - 1)) if many > 1 else math.inf


def ece_change(
    before: Statistics, after: Statistics, *, bins: int = 15, seed: int = 0, groups: Array | None = None
) -> MetricChange:
    """Return the change of ECE with the interval of a paired bootstrap, as `avuc.metrics.paired_intervals` has it.

    Args:
        before: without the calibrator.
        after: with it, for the same rows.
        bins: number of bins.
        seed: of the bootstrap.
        groups: (N,) numbers of groups, which are resampled as a whole; None: rows are.
    """
    terms = [_terms(statistics, bins) for statistics in (after, before)]
    rows, unit = len(before), None
    if groups is not None:
        unit = np.unique(groups, return_inverse=True)[1]
    values = [float(np.abs(np.bincount(index, residual, bins)).sum()) / rows for index, residual in terms]
    if np.array_equal(before.confidence, after.confidence) and np.array_equal(before.correct, after.correct):
        return MetricChange(values[1], values[0], 0.0, 0.0, 0.0)
    many = rows if unit is None else int(unit.max()) + 1
    bin_sums = _row_sums(terms, bins) if unit is None else _group_sums(terms, bins, unit, many)
    sums = [AbsoluteSum(side / rows) for side in np.split(bin_sums(np.ones((1, many)))[0, :-1], 2)]
    drawn, step = resampled_rows(many, REPLICATES, seed), max(1, HELD // many)
    for start in range(0, REPLICATES, step):
        some = [np.bincount(next(drawn), minlength=many) for _ in range(min(step, REPLICATES - start))]
        found = bin_sums(np.stack(some))
        for side, absolute_sum in enumerate(sums):
            absolute_sum.add(found[:, side * bins : (side + 1) * bins] / found[:, -1:])
    a, b = (absolute_sum.errors() for absolute_sum in sums)
    if groups is not None:
        a, b = wider(a, many), wider(b, many)
    interval = difference_interval("ece", values[0], a, values[1], b, LEVEL)
    accuracies = float(np.mean(after.correct)), float(np.mean(before.correct))
    interval = widened_difference("ece", interval, accuracies, many, LEVEL)
    return MetricChange(values[1], values[0], *interval)


def _row_sums(terms: list[tuple[Array, Array]], bins: int) -> Callable[[Array], Array]:
    """Return a function from weights (B, N) to sums of the bins of both sides and of the weights, (B, 2 · bins + 1).

    It reads the rows for each resample, because a table (N, 2 · bins + 1) would be larger than the probabilities.
    """

    def sums(weights: Array) -> Array:
        each = [[np.bincount(index, w * residual, bins) for index, residual in terms] for w in weights]
        return np.stack([np.concatenate([*sides, [w.sum()]]) for sides, w in zip(each, weights, strict=True)])

    return sums


def _group_sums(terms: list[tuple[Array, Array]], bins: int, unit: Array, many: int) -> Callable[[Array], Array]:
    """Return the same for weights of groups; a resample of groups has a number of rows of its own."""
    first = unit * (2 * bins + 1)
    at = np.concatenate((first + terms[0][0], first + terms[1][0] + bins, first + 2 * bins))
    each = np.concatenate((terms[0][1], terms[1][1], np.ones(len(unit))))
    units = np.bincount(at, each, many * (2 * bins + 1)).reshape(many, -1)
    return lambda weights: weights.astype(np.float64) @ units


def _terms(statistics: Statistics, bins: int) -> tuple[Array, Array]:
    """Return the bin and correct − confidence of each row."""
    index = digitise(statistics.confidence, bin_edges(bins, statistics.dtype))
    return index, statistics.correct - statistics.confidence
