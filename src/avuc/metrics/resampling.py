"""Every metric of the suite on many resamples at once.

A resample is a vector of weights: how often each row was drawn. Sums over its rows are then weighted sums over the
original ones, so a thousand resamples cost a few passes over a (resamples × rows) block and never touch the (N, C)
matrix; the functions of counts that follow are those of the metrics themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from avuc.metrics import calibration, selective
from avuc.metrics.absolute import AbsoluteSum, Errors, maximum_errors, root_errors
from avuc.metrics.avu import Counts, Threshold, area, cells, midpoint, thresholds_between
from avuc.metrics.statistics import (
    Array,
    BinTable,
    Groups,
    Statistics,
    bin_edges,
    bin_index,
    digitise,
    float_blocks,
    summarise,
)

__all__ = ["Resampler", "draws"]

# elements of one (resamples × rows) block
BLOCK = 1 << 18


def draws(rows: int, replicates: int, seed: int) -> Iterator[Array]:
    """Blocks of (resamples, rows) row numbers, drawn with replacement; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    step = max(1, BLOCK // rows)
    for start in range(0, replicates, step):
        many = min(step, replicates - start)
        yield torch.stack([torch.randint(rows, (rows,), generator=generator) for _ in range(many)]).numpy()


class _Order(NamedTuple):
    """Rows sorted by a value: their order, where each group of equals starts, and the groups' values."""

    rows: Array
    starts: Array
    values: Array


class Resampler:
    """Prepared once from probabilities and labels; `evaluate(weights)` gives each metric for each vector of weights."""

    def __init__(self, probs: Any, labels: Any, names: Collection[str], *, threshold: Threshold, bins: int) -> None:
        self.names, self.threshold, self.bins = set(names), threshold, bins
        self.probs = probs
        self.statistics = s = summarise(probs, labels)
        self._means = {"accuracy": s.correct, "nll": s.nll, "brier": s.brier, "mean_entropy": s.entropy}
        self._confidence = _sort(s.confidence)
        self._entropy = _sort(s.entropy)
        self._confidence_bin = bin_index(s.confidence, bins, s.dtype)
        self._uncertainty_bin = bin_index(s.uncertainty, bins)
        self._entries = _classwise_entries(probs, s, bins) if "classwise_ece" in self.names else None

    def replicate(self, replicates: int, seed: int) -> dict[str, Errors]:
        """How far each metric may be above or below the truth, from `replicates` resamples."""
        rows = len(self.statistics)
        values, pieces = self.evaluate(np.ones((1, rows)))
        kinked = {name: AbsoluteSum(piece[0]) for name, piece in pieces.items()}
        regular: dict[str, list[Array]] = {name: [] for name in self.names - set(kinked)}
        for index in draws(rows, replicates, seed):
            offset = np.arange(len(index))[:, None] * rows
            weights = np.bincount((index + offset).ravel(), minlength=index.size).reshape(index.shape)
            samples, pieces = self.evaluate(weights.astype(np.float64))
            for name, piece in pieces.items():
                kinked[name].add(piece)
            for name, parts in regular.items():
                parts.append(values[name] - samples[name])
        errors = {name: Errors(*2 * (np.concatenate(parts),)) for name, parts in regular.items()}
        errors |= {name: kink.errors() for name, kink in kinked.items()}
        if "debiased_ece" in errors:
            errors["debiased_ece"] = root_errors(float(values["debiased_ece"][0]), errors["debiased_ece"].over)
        if "mce" in self.names:
            table = calibration.confidence_table(self.statistics, self.bins)
            errors["mce"] = maximum_errors(table, replicates, seed)
        return errors

    def evaluate(self, weights: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """Each wanted metric for weights (B, N), as (B); and the signed terms (B, K) of those that sum absolute values.

        The debiased error comes as its square, before it is cut at 0 and rooted.
        """
        s, names = self.statistics, self.names
        out = {name: weights @ column / len(s) for name, column in self._means.items()}
        pieces: dict[str, Array] = {}
        if names & {"ece", "mce", "debiased_ece"}:
            table = _weighted_table(weights, self._confidence_bin, s.confidence, s.correct, self.bins)
            pieces["ece"] = (table.event - table.value) / len(s)
            out["mce"] = calibration.maximum_gap(table)
            out["debiased_ece"] = calibration.debiased_square(table)
        if "uce" in names:
            table = _weighted_table(weights, self._uncertainty_bin, s.uncertainty, ~s.correct, self.bins)
            pieces["uce"] = (table.event - table.value) / len(s)
        if names & {"adaptive_ece", "aurc"}:
            groups = _weighted_groups(weights, self._confidence, s.correct)
            if "aurc" in names:
                out["aurc"] = selective.risk_area(groups)
            stated = groups.values * (groups.right + groups.wrong)
            if "adaptive_ece" in names:
                pieces["adaptive_ece"] = calibration.equal_mass_pieces(groups.right, groups.wrong, stated, self.bins)
        if names & {"avu", "avu_auc", "p_accurate_given_certain", "p_uncertain_given_inaccurate"}:
            out |= self._avu(weights)
        if self._entries is not None:
            pieces["classwise_ece"] = self._classwise(weights)
        out |= {name: np.abs(piece).sum(-1) for name, piece in pieces.items()}
        return {n: out[n] for n in names}, {n: piece for n, piece in pieces.items() if n in names}

    def _avu(self, weights: Array) -> dict[str, Array]:
        s = self.statistics
        groups = _weighted_groups(weights, self._entropy, s.correct)
        drawn = (groups.right + groups.wrong) > 0
        low = groups.values[drawn.argmax(-1)]
        high = groups.values[drawn.shape[-1] - 1 - drawn[:, ::-1].argmax(-1)]
        if self.threshold == "auto":
            sums = groups.right @ groups.values, groups.wrong @ groups.values
            at = midpoint(*sums, groups.right.sum(-1), groups.wrong.sum(-1), low, high)
        else:
            at = np.full(len(weights), float(self.threshold))
        # the threshold itself and the curve's points in one look-up
        counts = cells(groups, np.concatenate([at[:, None], thresholds_between(low, high)], -1))
        here = Counts(*(cell[:, 0] for cell in counts))
        return {
            "avu": here.avu,
            "avu_auc": area(counts.avu[:, 1:]),
            "p_accurate_given_certain": here.accurate_given_certain,
            "p_uncertain_given_inaccurate": here.uncertain_given_inaccurate,
        }

    def _classwise(self, weights: Array) -> Array:
        assert self._entries is not None
        row, cell, value = self._entries
        classes, bins = self.statistics.num_classes, self.bins
        column_sums: Array = np.zeros((len(weights), classes))
        done = 0
        for block in float_blocks(self.probs):
            column_sums += weights[:, done : done + len(block)] @ block.cpu().numpy()
            done += len(block)
        residuals = []
        for w, sums in zip(weights, column_sums, strict=True):
            table = np.bincount(cell, weights=w[row] * value, minlength=classes * bins).reshape(classes, bins)
            # the entries took the high probabilities out of the first bin; the column's sum puts the low ones in
            table[:, 0] += sums
            residuals.append(table.reshape(-1) / (classes * len(w)))
        return np.array(residuals)


def _sort(values: Array) -> _Order:
    rows = np.argsort(values)
    ordered = values[rows]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return _Order(rows, starts, ordered[starts])


def _weighted_groups(weights: Array, order: _Order, correct: Array) -> Groups:
    sorted_weights = weights[:, order.rows]
    right = sorted_weights * correct[order.rows]
    if len(order.starts) < len(order.rows):
        sorted_weights = np.add.reduceat(sorted_weights, order.starts, axis=1)
        right = np.add.reduceat(right, order.starts, axis=1)
    return Groups(order.values, right, sorted_weights - right)


def _weighted_table(weights: Array, index: Array, value: Array, event: Array, bins: int) -> BinTable:
    # one matrix product: membership of each bin, times 1, the value, the event
    member = (index[:, None] == np.arange(bins)).astype(np.float64)
    return BinTable(*(weights @ (member * column[:, None]) for column in (np.ones(len(index)), value, event)))


def _classwise_entries(probs: Any, statistics: Statistics, bins: int) -> tuple[Array, Array, Array]:
    """(row, class · bins + bin, value) whose weighted sums by cell are the class-wise residuals, column sums aside."""
    edges = bin_edges(bins, statistics.dtype)
    rows, cells_, values, chosen = [], [], [], []
    done = 0
    for block_ in float_blocks(probs):
        block = block_.cpu().numpy()
        row, column = np.nonzero(block > edges[1])
        high = block[row, column]
        rows += [row + done, row + done]
        cells_ += [column * bins + digitise(high, edges), column * bins]
        values += [high, -high]
        chosen.append(block[np.arange(len(block)), statistics.labels[done : done + len(block)]])
        done += len(block)
    rows.append(np.arange(done))
    cells_.append(statistics.labels * bins + digitise(np.concatenate(chosen), edges))
    values.append(np.full(done, -1.0))
    return np.concatenate(rows), np.concatenate(cells_), np.concatenate(values)
