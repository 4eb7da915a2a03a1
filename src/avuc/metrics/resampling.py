"""Every metric of the suite on many resamples at once.

A resample is a vector of weights: how often each row was drawn. Sums over its rows are then weighted sums over the
original ones, so a thousand resamples cost a few passes over a (resamples × rows) block; the (N, C) matrix is read
once for as many resamples as fit in a few megabytes. The functions of counts that follow are those of the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from avuc.metrics import calibration
from avuc.metrics.absolute import Errors
from avuc.metrics.avu import Threshold
from avuc.metrics.resampled import (
    CONFIDENCE_METRICS,
    ENTROPY_METRICS,
    Below,
    Collected,
    confidence_metrics,
    entropy_metrics,
)
from avuc.metrics.statistics import Array, Statistics, bin_edges, cumulative, digitise, float_blocks

__all__ = ["Resampler", "draws", "replicate", "weight_blocks"]

# elements of one (resamples × rows) block of float64 work
BLOCK = 1 << 18
# elements of the weights, and of the class-wise residuals, that are held at a time
HELD = 1 << 25
Advance = Callable[[int], object]


def draws(rows: int, replicates: int, seed: int) -> Iterator[Array]:
    """One resample after the other as row numbers, drawn with replacement; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(replicates):
        yield torch.randint(rows, (rows,), generator=generator).numpy()


def weight_blocks(rows: int, replicates: int, seed: int, most: int) -> Iterator[Array]:
    """The same as weights, at most `most` resamples at a time."""
    step = max(1, min(most, HELD // rows))
    drawn = draws(rows, replicates, seed)
    for start in range(0, replicates, step):
        # no row is drawn 65,536 times: with so many rows each is drawn once on average
        weights = np.empty((min(step, replicates - start), rows), np.uint16)
        for row in weights:
            row[:] = np.bincount(next(drawn), minlength=rows)
        yield weights


def replicate(
    samplers: Sequence[Resampler], replicates: int, seed: int, advance: Advance | None = None
) -> list[dict[str, Errors]]:
    """How far each metric of each sampler may be above or below the truth, all from the same resamples of their rows.

    `advance` is told how many resamples are done.
    """
    collected = [Collected(*sampler.evaluate(np.ones((1, sampler.rows)))) for sampler in samplers]
    for weights in weight_blocks(samplers[0].rows, replicates, seed, min(sampler.most for sampler in samplers)):
        # never more parts than resamples: an empty part has no metrics
        for block in np.array_split(weights, min(len(weights), max(1, weights.size // (16 * BLOCK)))):
            for one, sampler in zip(collected, samplers, strict=True):
                one.add(*sampler.evaluate(block))
            if advance is not None:
                advance(len(block))
    tables = [calibration.confidence_table(sampler.statistics, sampler.bins) for sampler in samplers]
    return [one.errors(replicates, seed, table) for one, table in zip(collected, tables, strict=True)]


class Resampler:
    """Prepared once from probabilities and their statistics; `evaluate(weights)` gives each metric for each weights."""

    def __init__(
        self, probs: Any, statistics: Statistics, names: Collection[str], *, threshold: Threshold, bins: int
    ) -> None:
        self.names, self.threshold, self.bins = set(names), threshold, bins
        self.statistics = s = statistics
        self.rows = len(s)
        # averages over rows, and the summed entropies of right rows that the auto threshold needs
        self._columns = np.stack([s.correct, s.nll, s.brier, s.entropy, s.entropy * s.correct], 1)
        self._confidence = _Order(s.confidence, s.correct, s.confidence, bin_edges(bins, s.dtype))
        self._entropy = _Order(s.entropy, s.correct, s.uncertainty, bin_edges(bins))
        self._classwise = _Classwise(probs, s, bins) if "classwise_ece" in self.names else None

    @property
    def most(self) -> int:
        """How many resamples it takes at a time."""
        return HELD if self._classwise is None else HELD // (4 * self.bins * self.statistics.num_classes)

    def evaluate(self, weights: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """Each wanted metric for weights (B, N), as (B); and the signed terms (B, K) of those that sum absolute values.

        The debiased error comes as its square, before it is cut at 0 and rooted.
        """
        step = max(1, BLOCK // self.rows)
        parts = [self._block(weights[start : start + step]) for start in range(0, len(weights), step)]
        out, pieces = ({name: np.concatenate([p[i][name] for p in parts]) for name in parts[0][i]} for i in (0, 1))
        if self._classwise is not None:
            pieces["classwise_ece"] = self._classwise.residuals(weights)
        out |= {name: np.abs(piece).sum(-1) for name, piece in pieces.items()}
        return {n: out[n] for n in self.names}, {n: piece for n, piece in pieces.items() if n in self.names}

    def _block(self, weights: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        names = self.names
        pieces: dict[str, Array] = {}
        sums = (weights.astype(np.float64) @ self._columns).T
        out: dict[str, Array] = dict(zip(("accuracy", "nll", "brier", "mean_entropy"), sums / self.rows, strict=False))
        if names & CONFIDENCE_METRICS:
            below = self._confidence.below(weights)
            values, terms = confidence_metrics(below, self._confidence.cuts, names)
            out, pieces = out | values, terms
        if names & ENTROPY_METRICS:
            below = self._entropy.below(weights)
            right_sum, wrong_sum = sums[4], sums[3] - sums[4]
            values, terms = entropy_metrics(
                below, self._entropy.cuts, self._entropy.values, None, self.threshold, right_sum, wrong_sum
            )
            out, pieces = out | values, pieces | terms
        return out, pieces


class _Order:
    """Rows sorted by a value, equal values as one group, with the borders of the bins of what is stated."""

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

    def below(self, weights: Array) -> Below:
        sorted_weights = np.take(weights, self.order, axis=1).astype(np.float64)
        right = sorted_weights * self.correct
        sums = [cumulative(right), cumulative(sorted_weights - right), cumulative(sorted_weights * self.stated)]
        return Below(*(sums_[:, self.ends] for sums_ in sums)) if self.tied else Below(*sums)


class _Classwise:
    """The class-wise residuals Σ (p_k − 1[k = label]) by class and bin of p_k, for any weights."""

    def __init__(self, probs: Any, statistics: Statistics, bins: int) -> None:
        self.probs, self.classes, self.bins = probs, statistics.num_classes, bins
        edges, labels = bin_edges(bins, statistics.dtype), statistics.labels
        rows, cells, values, hits = [], [], [], []
        for start, block in _array_blocks(probs):
            row, column = np.nonzero(block > edges[1])
            high = block[row, column]
            rows.append(row + start)
            cells.append(column * bins + digitise(high, edges))
            values.append(high)
            label = labels[start : start + len(block)]
            hits.append(label * bins + digitise(block[np.arange(len(block)), label], edges))
        self.row, self.cell, self.value, self.hit = (np.concatenate(x) for x in (rows, cells, values, hits))

    def residuals(self, weights: Array) -> Array:
        """(B, C · bins), divided by C · N."""
        columns = np.zeros((len(weights), self.classes))
        for start, block in _array_blocks(self.probs):
            columns += weights[:, start : start + len(block)].astype(np.float64) @ block
        out = np.empty((len(weights), self.classes * self.bins))
        for w, sums, residual in zip(weights, columns, out, strict=True):
            # NumPy counts no weights at all as whole numbers
            table = np.bincount(self.cell, w[self.row] * self.value, len(residual)).astype(np.float64)
            table = table.reshape(self.classes, self.bins)
            # only probabilities above the first bin were put into bins; what remains of a column's sum is the first bin
            table[:, 0] = sums - table.sum(1)
            residual[:] = table.reshape(-1) - np.bincount(self.hit, w, len(residual))
        out /= self.classes * weights.shape[1]
        return out


def _array_blocks(probs: Any) -> Iterator[tuple[int, Array]]:
    start = 0
    # large blocks: the threads of a matrix product meet once in each
    for block in float_blocks(probs, 1 << 22):
        yield start, block.cpu().numpy()
        start += len(block)
