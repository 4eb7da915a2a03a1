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

from avuc.metrics import calibration, selective
from avuc.metrics.absolute import AbsoluteSum, Errors, maximum_errors, root_errors
from avuc.metrics.avu import Counts, Threshold, area, cells_below, midpoint, thresholds_between
from avuc.metrics.statistics import (
    Array,
    BinTable,
    Statistics,
    bin_edges,
    cumulative,
    digitise,
    float_blocks,
)
from avuc.uncertainty import highest_certain

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
    collected = [_Collected(sampler) for sampler in samplers]
    for weights in weight_blocks(samplers[0].rows, replicates, seed, min(sampler.most for sampler in samplers)):
        for block in np.array_split(weights, max(1, weights.size // (16 * BLOCK))):
            for one in collected:
                one.add(block)
            if advance is not None:
                advance(len(block))
    return [one.errors(replicates, seed) for one in collected]


class _Collected:
    """The errors of one sampler, block by block."""

    def __init__(self, sampler: Resampler) -> None:
        self.sampler = sampler
        self.values, pieces = sampler.evaluate(np.ones((1, sampler.rows)))
        self.kinked = {name: AbsoluteSum(piece[0]) for name, piece in pieces.items()}
        self.regular: dict[str, list[Array]] = {name: [] for name in sampler.names - set(pieces)}

    def add(self, weights: Array) -> None:
        samples, pieces = self.sampler.evaluate(weights)
        for name, piece in pieces.items():
            self.kinked[name].add(piece)
        for name, parts in self.regular.items():
            parts.append(self.values[name] - samples[name])

    def errors(self, replicates: int, seed: int) -> dict[str, Errors]:
        errors = {name: Errors(*2 * (np.concatenate(parts),)) for name, parts in self.regular.items()}
        errors |= {name: kink.errors() for name, kink in self.kinked.items()}
        if "debiased_ece" in errors:
            errors["debiased_ece"] = root_errors(float(self.values["debiased_ece"][0]), errors["debiased_ece"].over)
        if "mce" in errors:
            table = calibration.confidence_table(self.sampler.statistics, self.sampler.bins)
            errors["mce"] = maximum_errors(table, replicates, seed)
        return errors


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
        names, pieces = self.names, {}
        sums = (weights.astype(np.float64) @ self._columns).T
        out = dict(zip(("accuracy", "nll", "brier", "mean_entropy"), sums / self.rows, strict=False))
        if names & {"ece", "mce", "debiased_ece", "adaptive_ece", "aurc"}:
            right, wrong, stated = self._confidence.below(weights)
            table = self._confidence.table(right, wrong, stated, right)
            pieces["ece"] = (table.event - table.value) / self.rows
            out["mce"], out["debiased_ece"] = calibration.maximum_gap(table), calibration.debiased_square(table)
            if "aurc" in names:
                out["aurc"] = selective.risk_area_below(right, wrong)
            if "adaptive_ece" in names:
                stated -= right
                pieces["adaptive_ece"] = calibration.equal_mass_pieces(
                    np.add(right, wrong, out=right), stated, self.bins
                )
        if names & {"uce", "avu", "avu_auc", "p_accurate_given_certain", "p_uncertain_given_inaccurate"}:
            right, wrong, stated = self._entropy.below(weights)
            table = self._entropy.table(right, wrong, stated, wrong)
            pieces["uce"] = (table.event - table.value) / self.rows
            out |= self._avu(right, wrong, sums[4], sums[3] - sums[4])
        return out, pieces

    def _avu(self, right: Array, wrong: Array, right_sum: Array, wrong_sum: Array) -> dict[str, Array]:
        values = self._entropy.values
        # the extreme entropies that were drawn
        ends = [
            (np.searchsorted(below[1:], 0, "right"), np.searchsorted(below[1:], self.rows)) for below in right + wrong
        ]
        low, high = values[np.array(ends).T]
        if self.threshold == "auto":
            at = midpoint(right_sum, wrong_sum, right[:, -1], wrong[:, -1], low, high)
        else:
            at = np.full(len(right), float(self.threshold))
        # the threshold itself and the curve's points in one look-up
        thresholds = np.concatenate([highest_certain(at)[:, None], thresholds_between(low, high)], -1)
        counts = cells_below(values, right, wrong, thresholds)
        here = Counts(*(cell[:, 0] for cell in counts))
        return {
            "avu": here.avu,
            "avu_auc": area(counts.avu[:, 1:]),
            "p_accurate_given_certain": here.accurate_given_certain,
            "p_uncertain_given_inaccurate": here.uncertain_given_inaccurate,
        }


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

    def below(self, weights: Array) -> tuple[Array, Array, Array]:
        """Right rows, wrong rows and the sum of what is stated below each group, (B, G + 1)."""
        sorted_weights = np.take(weights, self.order, axis=1).astype(np.float64)
        right = sorted_weights * self.correct
        sums = [cumulative(right), cumulative(sorted_weights - right), cumulative(sorted_weights * self.stated)]
        right, wrong, stated = (sums_[:, self.ends] for sums_ in sums) if self.tied else sums
        return right, wrong, stated

    def table(self, right: Array, wrong: Array, stated: Array, event: Array) -> BinTable:
        rights, wrongs, values, events = (np.diff(sums[:, self.cuts]) for sums in (right, wrong, stated, event))
        return BinTable(rights + wrongs, values, events)


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
