"""Metrics that are computed on request, with their intervals: SmoothECE, overconfidence, underconfidence and AUGRC.

They depend only on the confidences and on which predictions are correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
import torch

from avuc.metrics.arrays import Array
from avuc.metrics.binning import BinTable, bin_edges, digitise
from avuc.metrics.blockwise import needs_blocks
from avuc.metrics.calibration import confidence_table
from avuc.metrics.checks import any_layout
from avuc.metrics.resampling.absolute_error import AbsoluteSum, Implied
from avuc.metrics.resampling.cell_units import CellSums, ValueCounts, dealt
from avuc.metrics.resampling.one_outcome import widened
from avuc.metrics.resampling.percentile import Errors, Interval, check_bootstrap, error_interval
from avuc.metrics.resampling.random_cells import MOST_CELLS
from avuc.metrics.resampling.rows import resampled_rows, weight_blocks, wider
from avuc.metrics.selective import augrc, generalised_risk_area, generalised_risk_area_below
from avuc.metrics.smooth import CELLS as GRID
from avuc.metrics.smooth import cosine_waves, grid_positions, residual_masses, smooth_ece, smooth_error, smoothed
from avuc.metrics.statistics import Statistics, prediction_statistics

# draws of the noise of SmoothECE that the confidences imply
IMPLIED = 256
# resamples of cells at a time
CELL_RESAMPLES = 64


@any_layout
def overconfidence(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the part of ECE from bins whose confidence is above their accuracy.

        Σ_l n_l/N max(0, mean confidence_l − accuracy_l)

    Overconfidence and underconfidence add up to ECE. Lower is better.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins of equal width.

    >>> round(overconfidence([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 6)
    0.3
    """
    return _sides(confidence_table(prediction_statistics(probs, labels), bins))[0]


@any_layout
def underconfidence(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the part of ECE from bins whose confidence is below their accuracy.

        Σ_l n_l/N max(0, accuracy_l − mean confidence_l)

    Overconfidence and underconfidence add up to ECE. Lower is better.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins of equal width.

    >>> round(underconfidence([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 6)
    0.1
    """
    return _sides(confidence_table(prediction_statistics(probs, labels), bins))[1]


MORE_METRICS: dict[str, Callable[..., float]] = {
    "smooth_ece": smooth_ece,
    "overconfidence": overconfidence,
    "underconfidence": underconfidence,
    "augrc": augrc,
}
"""Metrics that `avuc evaluate --more` adds, by name."""


def _sides(table: BinTable) -> tuple[float, float]:
    """Return over- and underconfidence."""
    gap = (table.value - table.event) / table.rows.sum()
    return float(np.maximum(gap, 0).sum()), float(np.maximum(-gap, 0).sum())


def more_intervals(
    statistics: Statistics,
    names: Iterable[str] = tuple(MORE_METRICS),
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    bins: int = 15,
    groups: Array | None = None,
) -> dict[str, Interval]:
    """Return the value and the bootstrap interval of each of `MORE_METRICS`; without replicates the ends are NaN.

    Sums of absolute values get intervals as ECE does (`resampling.absolute_error`); SmoothECE at its bandwidth. With
    more than 100,000 independent rows, random groups of rows are resampled (`resampling/cell_units.py`).

    Args:
        statistics: of the predictions.
        names: those of `MORE_METRICS` that are wanted.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        bins: number of bins of over- and underconfidence.
        groups: (N,) numbers 0, 1, … of the groups of dependent rows; None: rows are independent.
    """
    wanted = list(names)
    parts = [part for part in (_Smooth, _Sides, _Area) if set(part.names) & set(wanted)]
    rows_of_unit = 1.0 if groups is None else len(statistics) / (int(groups.max()) + 1)
    cell = None
    if groups is None and needs_blocks(len(statistics), statistics.num_classes):
        cell = dealt(len(statistics), seed) % MOST_CELLS
    collectors = [part(statistics, bins, rows_of_unit, seed, cell) for part in parts]
    values = {name: value for part in collectors for name, value in zip(part.names, part.values, strict=True)}
    if not replicates:
        return {name: Interval(values[name], float("nan"), float("nan")) for name in wanted}
    check_bootstrap(replicates, level)
    resamples = resampled_rows(len(statistics), replicates, seed, groups)
    if cell is not None:
        resamples = weight_blocks(MOST_CELLS, replicates, seed, CELL_RESAMPLES)
    for drawn in resamples:
        for part in collectors:
            part.add(drawn)
    errors = {name: error for part in collectors for name, error in zip(part.names, part.errors(), strict=True)}
    if groups is not None:
        errors = {name: wider(error, int(groups.max()) + 1) for name, error in errors.items()}
    intervals = {name: error_interval(values[name], errors[name], level) for name in wanted}
    clipped = {name: Interval(each.value, max(each.low, 0.0), min(each.high, 1.0)) for name, each in intervals.items()}
    units = len(statistics) if groups is None else int(groups.max()) + 1
    return widened(clipped, float(statistics.correct.mean()), units, level)


def _outcome_variance(statistics: Statistics) -> Array:
    """Return c (1 − c), the variance of "correct" if the confidence c of each row is right."""
    confidence = np.clip(statistics.confidence, 0, 1)  # float32 rounding can give 1.0000001
    variance: Array = confidence * (1 - confidence)
    return variance


def _every(statistics: Statistics, cell: Array | None) -> Array:
    """Return the resample that has each row once, as `add` of the classes below takes it."""
    return np.arange(len(statistics)) if cell is None else np.ones((1, MOST_CELLS))


class _Smooth:
    """SmoothECE of resamples, at the bandwidth of all rows.

    A resample is given as numbers of rows (N,). If `cell`, the cell of each row, is given, cells are drawn, and several
    resamples are given as weights of the cells (B, G); the same holds for the classes below.
    """

    names = ("smooth_ece",)

    def __init__(
        self,
        statistics: Statistics,
        bins: int,
        rows_of_unit: float = 1.0,
        seed: int = 0,
        cell: Array | None = None,
    ) -> None:
        self.residual = statistics.confidence - statistics.correct
        self.below, self.share = grid_positions(statistics.confidence)
        value, self.bandwidth = smooth_error(statistics.confidence, statistics.correct)
        self.values = (value,)
        self.cells: CellSums | None = None
        if cell is not None:
            lower, upper = self.residual * (1 - self.share), self.residual * self.share
            self.cells = CellSums(cell, GRID + 1, (self.below, lower), (self.below + 1, upper))
        implied = self._implied(_outcome_variance(statistics), rows_of_unit, seed)
        self.sum = AbsoluteSum(self._terms(_every(statistics, cell))[0], implied=implied)

    def _implied(self, variance: Array, rows_of_unit: float, seed: int) -> Implied:
        """Return normal noise at the points of the grid, smoothed; the same `IMPLIED` draws serve all resamples."""
        spread = np.sqrt(residual_masses(self.below, self.share, variance) / len(variance))
        generator = torch.Generator().manual_seed(seed)
        normal = torch.randn(IMPLIED, len(spread), generator=generator, dtype=torch.float64, device="cpu").numpy()
        noise = smoothed(cosine_waves(normal * spread), self.bandwidth)
        turn = count()

        def draw(resamples: int) -> Array:
            return np.asarray(np.sqrt(rows_of_unit) * noise[[next(turn) % IMPLIED for _ in range(resamples)]])

        return Implied(noise.std(0), draw)

    def _terms(self, drawn: Array) -> Array:
        if self.cells is not None:
            masses = self.cells.means(drawn)
        else:
            masses = residual_masses(self.below[drawn], self.share[drawn], self.residual[drawn])[None]
        return smoothed(cosine_waves(masses), self.bandwidth)

    def add(self, drawn: Array) -> None:
        self.sum.add(self._terms(drawn))

    def errors(self) -> tuple[Errors, ...]:
        return (self.sum.errors(),)


class _Sides:
    """Over- and underconfidence of resamples: max(0, g) = (|g| + g)/2 for the gap g of each bin."""

    names = ("overconfidence", "underconfidence")

    def __init__(
        self,
        statistics: Statistics,
        bins: int,
        rows_of_unit: float = 1.0,
        seed: int = 0,
        cell: Array | None = None,
    ) -> None:
        self.bins, self.residual = bins, statistics.confidence - statistics.correct
        self.bin = digitise(statistics.confidence, bin_edges(bins, statistics.dtype))
        self.values = _sides(confidence_table(statistics, bins))
        self.cells = None if cell is None else CellSums(cell, bins, (self.bin, self.residual))
        spread = np.sqrt(np.bincount(self.bin, _outcome_variance(statistics), bins)) / len(statistics)
        generator = torch.Generator().manual_seed(seed)

        def draw(resamples: int) -> Array:
            normal = torch.randn(resamples, bins, generator=generator, dtype=torch.float64, device="cpu").numpy()
            return np.asarray(np.sqrt(rows_of_unit) * normal * spread)

        self.sum = AbsoluteSum(self._gaps(_every(statistics, cell))[0], implied=Implied(spread, draw))
        self.shift: list[float] = []

    def _gaps(self, drawn: Array) -> Array:
        if self.cells is not None:
            return self.cells.means(drawn)
        sums: Array = np.bincount(self.bin[drawn], weights=self.residual[drawn], minlength=self.bins)
        return sums[None] / len(drawn)

    def add(self, drawn: Array) -> None:
        gaps = self._gaps(drawn)
        self.sum.add(gaps)
        self.shift += (gaps.sum(1) - self.sum.estimate.sum()).tolist()

    def errors(self) -> tuple[Errors, ...]:
        total, moved, shift = self.sum.errors(), self.sum.moved(), np.array(self.shift)
        return tuple(Errors((total.over + sign * moved) / 2, (total.under + sign * shift) / 2) for sign in (1.0, -1.0))


class _Area:
    """AUGRC of resamples."""

    names = ("augrc",)

    def __init__(
        self,
        statistics: Statistics,
        bins: int,
        rows_of_unit: float = 1.0,
        seed: int = 0,
        cell: Array | None = None,
    ) -> None:
        self.cells: ValueCounts | None = None
        if cell is not None:
            edges, confidence = bin_edges(bins, statistics.dtype), statistics.confidence
            self.cells = ValueCounts(confidence, statistics.correct, confidence, edges, cell)
        self.order = np.argsort(-statistics.confidence, kind="stable")
        self.wrong = ~statistics.correct[self.order]
        # the first row of each group of equal scores
        self.starts = np.flatnonzero(np.diff(statistics.confidence[self.order], prepend=np.inf))
        self.values = (generalised_risk_area(self.wrong, np.ones(len(statistics)), self.starts),)
        self.missed: list[float] = []

    def add(self, drawn: Array) -> None:
        if self.cells is not None:
            below = self.cells.below(drawn)
            areas = generalised_risk_area_below(below.right, below.wrong)
        else:
            weights = np.bincount(drawn, minlength=len(self.order))[self.order].astype(np.float64)
            areas = np.array([generalised_risk_area(self.wrong, weights, self.starts)])
        self.missed += (self.values[0] - areas).tolist()

    def errors(self) -> tuple[Errors, ...]:
        return (Errors(np.array(self.missed), np.array(self.missed)),)
