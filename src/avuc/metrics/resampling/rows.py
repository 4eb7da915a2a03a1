"""The ordinary bootstrap: predictions (rows) drawn with replacement, every metric on many resamples at once.

A resample is a vector of weights: how often each row was drawn. Sums over its rows are weighted sums over the original
rows, so a thousand resamples cost a few passes over a (resamples × rows) block. The (N, C) matrix is read once for as
many resamples as fit in a few megabytes. The metrics are computed from counts by the functions of the metrics
themselves. `Units` are what is drawn: rows here, random cells of rows in cell_units.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

import avuc.metrics.calibration as calibration
from avuc.metrics.arrays import Array
from avuc.metrics.binning import bin_edges, digitise
from avuc.metrics.resampling.absolute_error import grouped_spread
from avuc.metrics.resampling.percentile import Errors, few_groups_factor
from avuc.metrics.resampling.resample_metrics import (
    CONFIDENCE_METRICS,
    ENTROPY_METRICS,
    CumulativeCounts,
    ErrorCollector,
    confidence_metrics,
    entropy_metrics,
)
from avuc.metrics.resampling.units import Units, columns_of
from avuc.metrics.statistics import Statistics, float_blocks
from avuc.metrics.threshold import Threshold
from avuc.metrics.ties import cumulative

# elements of one (resamples × rows) block of float64 work
BLOCK = 1 << 18
# elements of the weights, and of the class-wise residuals, in memory at a time
HELD = 1 << 25
Advance = Callable[[int], object]


def resampled_rows(rows: int, replicates: int, seed: int, groups: Array | None = None) -> Iterator[Array]:
    """Yield `replicates` resamples as arrays of row numbers, drawn with replacement; of groups, all rows of each.

    >>> [index.shape for index in resampled_rows(5, 2, seed=0)]
    [(5,), (5,)]
    >>> sorted(next(resampled_rows(5, 1, seed=0, groups=np.array([0, 0, 0, 1, 1]))).tolist())
    [0, 1, 2, 3, 4]
    """
    generator = torch.Generator().manual_seed(seed)
    units = rows
    if groups is not None:
        sizes = np.bincount(groups)
        members, units = np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1]), len(sizes)
    for _ in range(replicates):
        drawn = torch.randint(units, (units,), generator=generator, device="cpu").numpy()
        yield drawn if groups is None else np.concatenate([members[number] for number in drawn])


def weight_blocks(rows: int, replicates: int, seed: int, most: int, groups: Array | None = None) -> Iterator[Array]:
    """Yield the resamples of `resampled_rows` as weights, (at most `most`, rows) at a time."""
    step = max(1, min(most, HELD // rows))
    units = rows if groups is None else int(groups.max()) + 1
    drawn = resampled_rows(units, replicates, seed)
    for start in range(0, replicates, step):
        # uint16 is enough: each row is drawn once on average
        weights = np.empty((min(step, replicates - start), rows), np.uint16)
        for row in weights:
            counts = np.bincount(next(drawn), minlength=units)
            row[:] = counts if groups is None else counts[groups]
        yield weights


def resampled_errors(
    samplers: Sequence[RowResampler],
    replicates: int,
    seed: int,
    advance: Advance | None = None,
    groups: Array | None = None,
) -> list[dict[str, Errors]]:
    """Return the errors of each metric for each sampler, all from the same resamples of the rows.

    Args:
        samplers: one for each model; all have the same rows.
        replicates: number of resamples.
        seed: of the resamples.
        advance: called with the number of resamples that were just finished.
        groups: (N,) numbers of groups 0, 1, …, which are resampled as a whole; None: rows are independent.
    """
    collectors = [
        ErrorCollector(*sampler.evaluate(np.ones((1, sampler.rows))), sampler.hidden(groups), seed)
        for sampler in samplers
    ]
    most = min(sampler.most for sampler in samplers)
    for weights in weight_blocks(samplers[0].rows, replicates, seed, most, groups):
        # at most as many parts as resamples, because an empty part has no metrics
        for block in np.array_split(weights, min(len(weights), max(1, weights.size // (16 * BLOCK)))):
            for collector, sampler in zip(collectors, samplers, strict=True):
                collector.add(*sampler.evaluate(block))
            if advance is not None:
                advance(len(block))
    results = []
    for collector, sampler in zip(collectors, samplers, strict=True):
        table = calibration.confidence_table(sampler.statistics, sampler.bins)
        spread = None if groups is None else sampler.spread(groups)
        results.append(collector.errors(replicates, seed, table, spread, sampler.square))
    return (
        results
        if groups is None
        else [
            {name: wider(errors, int(groups.max()) + 1) for name, errors in by_metric.items()} for by_metric in results
        ]
    )


def wider(errors: Errors, groups: int) -> Errors:
    """Return the errors of a bootstrap over few groups, scaled by `few_groups_factor`."""
    factor = few_groups_factor(groups)
    return Errors(factor * errors.over, factor * errors.under)


class RowResampler:
    """Computes the metrics of resamples that are given as weights of the rows, or of other units."""

    def __init__(
        self,
        probs: Any,
        statistics: Statistics,
        names: Collection[str],
        *,
        threshold: Threshold,
        bins: int,
        square: float | None = None,
        units: Units | None = None,
    ) -> None:
        """Args:
        probs: (N, C) probabilities; read again only for `classwise_ece`.
        statistics: their statistics.
        names: which metrics of `METRICS` are wanted.
        threshold: entropy up to which a prediction is certain, or "auto".
        bins: number of bins of the calibration errors.
        square: the squared debiased error of all rows, if these are a sample of them; None: they are not.
        units: what is drawn; None: rows.
        """
        self.square: float | None = square
        self.names: set[str] = set(names)
        self.threshold = threshold
        self.bins: int = bins
        self.statistics = statistics
        self._units = _rows_as_units(probs, statistics, self.names, bins) if units is None else units
        self.rows: int = len(self._units)

    @property
    def most(self) -> int:
        """Largest number of resamples that `evaluate` takes at a time."""
        return HELD if self._units.classwise is None else HELD // (4 * self.bins * self.statistics.num_classes)

    def spread(self, groups: Array) -> Array:
        """Return the standard error of the gap of each bin of confidence, if rows of a group are not independent."""
        s = self.statistics
        bin_index = digitise(s.confidence, bin_edges(self.bins, s.dtype))
        return grouped_spread(s.correct - s.confidence, bin_index, groups, self.bins)

    def hidden(self, groups: Array | None) -> dict[str, Array]:
        """Return the standard errors of terms whose resamples show no noise; rows of a group count as one."""
        if "adaptive_ece" not in self.names:
            return {}
        rows_of_unit = 1 if groups is None else self.rows / (groups.max() + 1)
        found = self._units.confidence.below(np.ones((1, self.rows))).hidden(self.bins)
        return {name: spread * np.sqrt(rows_of_unit) for name, spread in found.items()}

    def evaluate(self, weights: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the wanted metrics (B,) for weights (B, U), and signed terms (B, K) of the calibration errors.

        The debiased error is returned as its square.
        """
        step = max(1, BLOCK // self.rows)
        parts = [self._block(weights[start : start + step]) for start in range(0, len(weights), step)]
        out, terms = ({name: np.concatenate([p[i][name] for p in parts]) for name in parts[0][i]} for i in (0, 1))
        if self._units.classwise is not None:
            terms["classwise_ece"] = self._units.classwise.residuals(weights)
        out |= {name: np.abs(term).sum(-1) for name, term in terms.items()}
        return {n: out[n] for n in self.names}, {n: term for n, term in terms.items() if n in self.names}

    def _block(self, weights: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        names, units = self.names, self._units
        terms: dict[str, Array] = {}
        sums = (weights.astype(np.float64) @ units.columns).T
        means = sums / sums[5]  # resamples of groups have different numbers of rows
        out: dict[str, Array] = dict(zip(("accuracy", "nll", "brier", "mean_entropy"), means, strict=False))
        if names & CONFIDENCE_METRICS:
            below = units.confidence.below(weights)
            values, terms = confidence_metrics(below, units.confidence.cuts, names)
            out |= values
        if names & ENTROPY_METRICS:
            below, order = units.entropy.below(weights), units.entropy
            right_sum, wrong_sum = sums[4], sums[3] - sums[4]
            values, more = entropy_metrics(
                below, order.cuts, order.values, order.lowest, self.threshold, right_sum, wrong_sum
            )
            out, terms = out | values, terms | more
        return out, terms


def _rows_as_units(probs: Any, statistics: Statistics, names: Collection[str], bins: int) -> Units:
    s = statistics
    return Units(
        np.stack(columns_of(s), 1),
        _SortedRows(s.confidence, s.correct, s.confidence, bin_edges(bins, s.dtype)),
        _SortedRows(s.entropy, s.correct, s.uncertainty, bin_edges(bins)),
        _ClasswiseSums(probs, s, bins) if "classwise_ece" in names else None,
    )


class _SortedRows:
    """Rows sorted by a value, with equal values as one group, and the edges of the bins of the stated value."""

    lowest: Array | None = None

    def __init__(self, values: Array, correct: Array, stated: Array, edges: Array) -> None:
        self.order = np.argsort(values)
        ordered = values[self.order]
        new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        starts = np.flatnonzero(new)
        self.values, self.ends = ordered[starts], np.append(starts, len(values))
        self.tied = len(starts) < len(values)
        self.correct, self.stated = correct[self.order].astype(np.float64), stated[self.order]
        inner = np.searchsorted(self.stated[starts], edges[1:-1], side="right")
        self.cuts = np.concatenate([[0], inner, [len(starts)]])

    def below(self, weights: Array) -> CumulativeCounts:
        sorted_weights = np.take(weights, self.order, axis=1).astype(np.float64)
        right = sorted_weights * self.correct
        sums = [cumulative(right), cumulative(sorted_weights - right), cumulative(sorted_weights * self.stated)]
        return CumulativeCounts(*(column[:, self.ends] for column in sums)) if self.tied else CumulativeCounts(*sums)


class _ClasswiseSums:
    """`Classwise` of rows."""

    def __init__(self, probs: Any, statistics: Statistics, bins: int) -> None:
        self.probs, self.classes, self.bins = probs, statistics.num_classes, bins
        edges, labels = bin_edges(bins, statistics.dtype), statistics.labels
        rows, bin_numbers, values, hits = [], [], [], []
        for start, block in _array_blocks(probs):
            row, column = np.nonzero(block > edges[1])
            high = block[row, column]
            rows.append(row + start)
            bin_numbers.append(column * bins + digitise(high, edges))
            values.append(high)
            label = labels[start : start + len(block)]
            hits.append(label * bins + digitise(block[np.arange(len(block)), label], edges))
        self.row, self.bin, self.value, self.hit = (np.concatenate(x) for x in (rows, bin_numbers, values, hits))

    def residuals(self, weights: Array) -> Array:
        columns = np.zeros((len(weights), self.classes))
        for start, block in _array_blocks(self.probs):
            columns += weights[:, start : start + len(block)].astype(np.float64) @ block
        out = np.empty((len(weights), self.classes * self.bins))
        for w, sums, residual in zip(weights, columns, out, strict=True):
            # np.bincount of no weights at all returns integers
            table = np.bincount(self.bin, w[self.row] * self.value, len(residual)).astype(np.float64)
            table = table.reshape(self.classes, self.bins)
            # only probabilities above the first bin were sorted into bins; the first bin gets the rest of the sum
            table[:, 0] = sums - table.sum(1)
            residual[:] = table.reshape(-1) - np.bincount(self.hit, w, len(residual))
        out /= self.classes * weights.sum(1)[:, None]
        return out


def _array_blocks(probs: Any) -> Iterator[tuple[int, Array]]:
    start = 0
    # large blocks: the threads of a matrix product synchronise once in each
    for block in float_blocks(probs, 1 << 22):
        yield start, block.cpu().numpy()
        start += len(block)
