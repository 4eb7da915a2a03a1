"""The bootstrap for large data: it draws cells of similar predictions, at a cost that does not grow with the rows.

If rows are drawn with replacement, the number of draws from a cell is nearly a Poisson number, independent of the
other cells. A resample is therefore one Poisson number for each cell of correct rows and each cell of wrong rows,
instead of one number per row. Every metric divides by the number of rows that were drawn. A cell holds about 0.1 % of
the rows, does not cross the edge of a bin, and is narrow enough for its rows to count as spread evenly. Each family of
metrics has its own cells and its own draws, which is enough for an interval of one metric. A difference between two
models needs the same draws for both; it comes from cell_units.py. The JSON of `avuc evaluate` calls this bootstrap
"cells".

Hanley & MacGibbon 2006, https://doi.org/10.1016/j.cmpb.2006.04.006; Chamandy et al. 2012, "Estimating uncertainty for
massive data streams" (the Poisson bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from avuc.metrics.arrays import Array
from avuc.metrics.binning import bin_edges, uncertainty_edges
from avuc.metrics.blockwise import BlockwiseStatistics
from avuc.metrics.detection import detection_and_gains, detection_from_counts
from avuc.metrics.resampling.best_threshold import BestThreshold
from avuc.metrics.resampling.percentile import Errors
from avuc.metrics.resampling.resample_metrics import (
    CONFIDENCE_METRICS,
    CumulativeCounts,
    ErrorCollector,
    confidence_metrics,
    entropy_metrics,
)
from avuc.metrics.resampling.rows import BLOCK, Advance
from avuc.metrics.sorted_samples import SortedPair, ValueGroups
from avuc.metrics.threshold import Threshold
from avuc.metrics.ties import cumulative

CELLS = 1024
# AvU-AUC runs between the extreme entropies of a resample, so the outermost values have cells of their own: a resample
# misses all of 64 values with probability e^−64.
ALONE = 64


def cell_errors(
    statistics: BlockwiseStatistics, replicates: int, seed: int, *, threshold: Threshold, advance: Advance | None = None
) -> dict[str, Errors]:
    """Return the errors of every metric of `METRICS`.

    Args:
        statistics: what was collected with `resampled=True`.
        replicates: number of resamples.
        seed: of the resamples.
        threshold: entropy up to which a prediction is certain, or "auto".
        advance: called with the number of resamples that were just finished.
    """
    s, generator = statistics, torch.Generator().manual_seed(seed)
    random_cells = s.random_cells
    assert random_cells is not None
    families = [
        _means(s, replicates, generator),
        _by_confidence(s, replicates, generator),
        _by_entropy(s, threshold, replicates, generator),
    ]
    errors: dict[str, Errors] = {}
    table = s.confidence_table()
    hidden = _hidden(s)
    for share, family in enumerate(families, 1):
        whole = next(family)
        collected = ErrorCollector(*whole, hidden, seed)
        for block in family:
            collected.add(*block)
        errors |= collected.errors(replicates, seed, table)
        _report(advance, replicates, share, len(families) + 1)
    estimate = random_cells.estimate()[None]
    classwise = ErrorCollector({"classwise_ece": np.abs(estimate).sum(-1)}, {"classwise_ece": estimate})
    for terms in random_cells.resamples(replicates, seed):
        classwise.add({}, {"classwise_ece": terms})
    _report(advance, replicates, len(families) + 1, len(families) + 1)
    return errors | classwise.errors(replicates, seed, None)


def cell_detection_errors(
    entropies: SortedPair, replicates: int, seed: int, advance: Advance | None = None
) -> dict[str, Errors]:
    """Return the errors of the metrics of `detection`.

    Args:
        entropies: in-distribution entropies as its negative sample, OOD entropies as its positive one.
        replicates: number of resamples.
        seed: of the resamples.
        advance: called with the number of resamples that were just finished.
    """
    cells, generator = entropies.value_groups(CELLS, np.empty(0)), torch.Generator().manual_seed(seed)
    middle = (cells.negative_sum + cells.positive_sum) / (cells.negative + cells.positive)
    values = detection_from_counts(middle, cells.negative[None], cells.positive[None], spread=True)
    errors: dict[str, list[Array]] = {name: [] for name in values}
    best = BestThreshold(cells.negative, cells.positive, (len(entropies.negative), len(entropies.positive)))
    for negative, positive in _drawn(cells, replicates, generator):
        # Each sample keeps its size, as it does if rows are drawn: precision depends on the ratio of the two sizes.
        negative = negative * (len(entropies.negative) / np.maximum(negative.sum(-1, keepdims=True), 1))
        positive = positive * (len(entropies.positive) / np.maximum(positive.sum(-1, keepdims=True), 1))
        resampled, gains = detection_and_gains(middle, negative, positive, spread=True)
        for name, samples in resampled.items():
            errors[name].append(values[name] - samples)
        best.add(gains)
        if advance is not None:
            advance(len(negative))
    regular = {name: Errors(*2 * (np.concatenate(parts),)) for name, parts in errors.items()}
    return regular | {"detection_accuracy": best.errors()}


Figures = tuple[Mapping[str, Array], Mapping[str, Array]]


def _means(s: BlockwiseStatistics, replicates: int, generator: torch.Generator) -> Iterator[Figures]:
    """Yield NLL and the Brier score; the first block is the data itself, here and in the families below."""
    held = {name: histogram.rows > 0 for name, histogram in s.histograms.items()}
    rows = {name: histogram.rows[held[name]] for name, histogram in s.histograms.items()}
    mean = {name: histogram.sums[held[name]] / rows[name] for name, histogram in s.histograms.items()}
    yield {name: np.array([rows[name] @ mean[name] / rows[name].sum()]) for name in rows}, {}
    drawn = {name: _poisson(np.broadcast_to(rows[name], (replicates, len(rows[name]))), generator) for name in rows}
    yield {name: (counts @ mean[name]) / np.maximum(counts.sum(-1), 1) for name, counts in drawn.items()}, {}


def _by_confidence(s: BlockwiseStatistics, replicates: int, generator: torch.Generator) -> Iterator[Figures]:
    edges = bin_edges(s.bins, s.dtype)
    cells = s.confidence.value_groups(CELLS, edges[1:-1])
    cuts = first_cells(cells, edges)
    for wrong, right in _whole_and_drawn(cells, replicates, generator):
        below = _below(cells, wrong, right, 1.0)
        accuracy = below.right[:, -1] / below.rows[:, 0]
        values, terms = confidence_metrics(below, cuts, CONFIDENCE_METRICS)
        yield _absolute(values | {"accuracy": accuracy}, terms), terms


def _hidden(s: BlockwiseStatistics) -> dict[str, Array]:
    """Return the standard errors of terms whose resamples show no noise."""
    cells = s.confidence.value_groups(CELLS, bin_edges(s.bins, s.dtype)[1:-1])
    wrong, right = (count[None].astype(np.float64) for count in (cells.negative, cells.positive))
    return _below(cells, wrong, right, 1.0).hidden(s.bins)


def _by_entropy(
    s: BlockwiseStatistics, threshold: Threshold, replicates: int, generator: torch.Generator
) -> Iterator[Figures]:
    edges = uncertainty_edges(s.num_classes, s.bins)
    cells = s.entropy.value_groups(CELLS, edges[1:-1], ALONE)
    cuts, (wrong_mean, right_mean) = first_cells(cells, edges), _cell_means(cells)
    for wrong, right in _whole_and_drawn(cells, replicates, generator):
        below = _below(cells, wrong, right, s.top)
        sums = right @ right_mean, wrong @ wrong_mean
        values, terms = entropy_metrics(below, cuts, cells.high, cells.low, threshold, *sums)
        values["mean_entropy"] = (sums[0] + sums[1]) / below.rows[:, 0]
        yield _absolute(values, terms), terms


def _absolute(values: dict[str, Array], terms: Mapping[str, Array]) -> dict[str, Array]:
    return values | {name: np.abs(term).sum(-1) for name, term in terms.items()}


def _below(cells: ValueGroups, wrong: Array, right: Array, scale: float) -> CumulativeCounts:
    wrong_mean, right_mean = _cell_means(cells)
    stated = (wrong * wrong_mean + right * right_mean) / scale if scale > 0 else np.zeros_like(wrong)
    return CumulativeCounts(cumulative(right), cumulative(wrong), cumulative(stated))


def _cell_means(cells: ValueGroups) -> tuple[Array, Array]:
    return cells.negative_sum / np.maximum(cells.negative, 1), cells.positive_sum / np.maximum(cells.positive, 1)


def first_cells(cells: ValueGroups, edges: Array) -> Array:
    """Return the first cell of each bin, and the number of cells."""
    return np.concatenate([[0], np.searchsorted(cells.high, edges[1:-1], side="right"), [len(cells.high)]])


def _whole_and_drawn(cells: ValueGroups, replicates: int, generator: torch.Generator) -> Iterator[tuple[Array, Array]]:
    yield cells.negative[None].astype(np.float64), cells.positive[None].astype(np.float64)
    yield from _drawn(cells, replicates, generator)


def _drawn(cells: ValueGroups, replicates: int, generator: torch.Generator) -> Iterator[tuple[Array, Array]]:
    """Yield negative and positive rows drawn from each cell, (B, K), in blocks of resamples that fit in the cache."""
    count = len(cells.low)
    step = max(1, BLOCK // (2 * count))
    rates = np.concatenate([cells.negative, cells.positive]).astype(np.float64)
    for start in range(0, replicates, step):
        drawn = _poisson(np.broadcast_to(rates, (min(step, replicates - start), 2 * count)), generator)
        # only a handful of rows can give an empty resample; it is replaced by the data
        empty = drawn.sum(-1) == 0
        drawn[empty] = rates
        yield drawn[:, :count], drawn[:, count:]


def _poisson(rates: Array, generator: torch.Generator) -> Array:
    return torch.poisson(torch.from_numpy(np.array(rates, np.float64)), generator).numpy()


def _report(advance: Advance | None, replicates: int, share: int, shares: int) -> None:
    """Report that one of `shares` families of metrics is done, as its share of the replicates."""
    if advance is not None:
        advance(replicates * share // shares - replicates * (share - 1) // shares)
