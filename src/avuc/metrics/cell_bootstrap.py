"""Intervals for many rows at a cost that does not grow with them: a bootstrap over cells of similar rows.

If rows are drawn with replacement, the number of draws from a cell is close to a Poisson number, independent of the
other cells. So a resample is one Poisson number for each cell and each kind of row (right or wrong) instead of one
number per row; every metric divides by the rows that were drawn. A cell holds about 0.1 % of the rows, ends at
the borders of the bins, and is narrow enough for its rows to count as spread evenly. Each family of metrics has its own
cells and its own draws, which is enough for an interval of one metric. A difference between two models needs draws of
the same rows for both, and comes from `resampling.py`.

Hanley & MacGibbon 2006, https://doi.org/10.1016/j.cmpb.2006.04.006; Chamandy et al. 2012, "Estimating uncertainty for
massive data streams" (the Poisson bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from avuc.metrics.absolute import Errors
from avuc.metrics.avu import Threshold
from avuc.metrics.detection import from_counts
from avuc.metrics.large import LargeStatistics
from avuc.metrics.ranking import Cells, Ranking
from avuc.metrics.resampled import (
    CONFIDENCE_METRICS,
    Below,
    Collected,
    confidence_metrics,
    entropy_metrics,
)
from avuc.metrics.resampling import BLOCK, Advance
from avuc.metrics.statistics import Array, bin_edges, cumulative

__all__ = ["cell_detection_errors", "cell_errors"]

CELL_COUNT = 1024
# The area under AvU runs between the extreme entropies that were drawn, so the outermost rows have cells of their own:
# all of 64 values are left out of a resample with probability e^−64.
ALONE = 64


def cell_errors(
    statistics: LargeStatistics, replicates: int, seed: int, *, threshold: Threshold, advance: Advance | None = None
) -> dict[str, Errors]:
    """Draws of estimate − truth for every metric of the suite."""
    s, generator = statistics, torch.Generator().manual_seed(seed)
    residuals = s.residuals
    assert residuals is not None
    families = [
        _means(s, replicates, generator),
        _by_confidence(s, replicates, generator),
        _by_entropy(s, threshold, replicates, generator),
    ]
    errors: dict[str, Errors] = {}
    table = s.confidence_table()
    for share, family in enumerate(families, 1):
        whole = next(family)
        collected = Collected(*whole)
        for block in family:
            collected.add(*block)
        errors |= collected.errors(replicates, seed, table)
        _tell(advance, replicates, share, len(families) + 1)
    estimate = residuals.estimate()[None]
    classwise = Collected({"classwise_ece": np.abs(estimate).sum(-1)}, {"classwise_ece": estimate})
    for terms in residuals.resamples(replicates, seed):
        classwise.add({}, {"classwise_ece": terms})
    _tell(advance, replicates, len(families) + 1, len(families) + 1)
    return errors | classwise.errors(replicates, seed, None)


def cell_detection_errors(
    entropies: Ranking, replicates: int, seed: int, advance: Advance | None = None
) -> dict[str, Errors]:
    """Draws of estimate − truth for the metrics of `detection`; inside rows are negative, outside rows positive."""
    cells, generator = entropies.cells(CELL_COUNT, np.empty(0)), torch.Generator().manual_seed(seed)
    middle = (cells.negative_sum + cells.positive_sum) / (cells.negative + cells.positive)
    values = from_counts(middle, cells.negative[None], cells.positive[None], spread=True)
    errors: dict[str, list[Array]] = {name: [] for name in values}
    for negative, positive in _drawn(cells, replicates, generator):
        # each sample keeps its size, as it does when rows are drawn: precision depends on the ratio of the two
        negative = negative * (len(entropies.negative) / np.maximum(negative.sum(-1, keepdims=True), 1))
        positive = positive * (len(entropies.positive) / np.maximum(positive.sum(-1, keepdims=True), 1))
        for name, samples in from_counts(middle, negative, positive, spread=True).items():
            errors[name].append(values[name] - samples)
        if advance is not None:
            advance(len(negative))
    return {name: Errors(*2 * (np.concatenate(parts),)) for name, parts in errors.items()}


Figures = tuple[Mapping[str, Array], Mapping[str, Array]]


def _means(s: LargeStatistics, replicates: int, generator: torch.Generator) -> Iterator[Figures]:
    """NLL and the Brier score: the first block is the data itself, here as in the families below."""
    held = {name: one.rows > 0 for name, one in s.histograms.items()}
    rows = {name: one.rows[held[name]] for name, one in s.histograms.items()}
    mean = {name: one.sums[held[name]] / rows[name] for name, one in s.histograms.items()}
    yield {name: np.array([rows[name] @ mean[name] / rows[name].sum()]) for name in rows}, {}
    drawn = {name: _poisson(np.broadcast_to(rows[name], (replicates, len(rows[name]))), generator) for name in rows}
    yield {name: (counts @ mean[name]) / np.maximum(counts.sum(-1), 1) for name, counts in drawn.items()}, {}


def _by_confidence(s: LargeStatistics, replicates: int, generator: torch.Generator) -> Iterator[Figures]:
    edges = bin_edges(s.bins, s.dtype)
    cells = s.confidence.cells(CELL_COUNT, edges[1:-1])
    cuts = _cuts(cells, edges)
    for wrong, right in _whole_and_drawn(cells, replicates, generator):
        below = _below(cells, wrong, right, 1.0)
        accuracy = below.right[:, -1] / below.rows[:, 0]
        values, pieces = confidence_metrics(below, cuts, CONFIDENCE_METRICS)
        yield _absolute(values | {"accuracy": accuracy}, pieces), pieces


def _by_entropy(
    s: LargeStatistics, threshold: Threshold, replicates: int, generator: torch.Generator
) -> Iterator[Figures]:
    edges = s.uncertainty_edges()
    cells = s.entropy.cells(CELL_COUNT, edges[1:-1], ALONE)
    cuts, (wrong_mean, right_mean) = _cuts(cells, edges), _cell_means(cells)
    for wrong, right in _whole_and_drawn(cells, replicates, generator):
        below = _below(cells, wrong, right, s.top)
        sums = right @ right_mean, wrong @ wrong_mean
        values, pieces = entropy_metrics(below, cuts, cells.high, cells.low, threshold, *sums)
        values["mean_entropy"] = (sums[0] + sums[1]) / below.rows[:, 0]
        yield _absolute(values, pieces), pieces


def _absolute(values: dict[str, Array], pieces: Mapping[str, Array]) -> dict[str, Array]:
    return values | {name: np.abs(piece).sum(-1) for name, piece in pieces.items()}


def _below(cells: Cells, wrong: Array, right: Array, scale: float) -> Below:
    wrong_mean, right_mean = _cell_means(cells)
    stated = (wrong * wrong_mean + right * right_mean) / scale if scale > 0 else np.zeros_like(wrong)
    return Below(cumulative(right), cumulative(wrong), cumulative(stated))


def _cell_means(cells: Cells) -> tuple[Array, Array]:
    return cells.negative_sum / np.maximum(cells.negative, 1), cells.positive_sum / np.maximum(cells.positive, 1)


def _cuts(cells: Cells, edges: Array) -> Array:
    """The first cell of each bin, and the end of the last."""
    return np.concatenate([[0], np.searchsorted(cells.high, edges[1:-1], side="right"), [len(cells.high)]])


def _whole_and_drawn(cells: Cells, replicates: int, generator: torch.Generator) -> Iterator[tuple[Array, Array]]:
    yield cells.negative[None].astype(np.float64), cells.positive[None].astype(np.float64)
    yield from _drawn(cells, replicates, generator)


def _drawn(cells: Cells, replicates: int, generator: torch.Generator) -> Iterator[tuple[Array, Array]]:
    """Negative and positive rows of each cell, (B, K), for blocks of resamples that fit in the cache."""
    count = len(cells.low)
    step = max(1, BLOCK // (2 * count))
    rates = np.concatenate([cells.negative, cells.positive]).astype(np.float64)
    for start in range(0, replicates, step):
        drawn = _poisson(np.broadcast_to(rates, (min(step, replicates - start), 2 * count)), generator)
        # no rows at all are possible only where there are a handful; such a resample says nothing
        empty = drawn.sum(-1) == 0
        drawn[empty] = rates
        yield drawn[:, :count], drawn[:, count:]


def _poisson(rates: Array, generator: torch.Generator) -> Array:
    return torch.poisson(torch.from_numpy(np.array(rates, np.float64)), generator).numpy()


def _tell(advance: Advance | None, replicates: int, share: int, shares: int) -> None:
    """One family of metrics is done: its share of the replicates."""
    if advance is not None:
        advance(replicates * share // shares - replicates * (share - 1) // shares)
