"""The bootstrap of several models on large data: it draws random cells of rows, the same cells for each model.

The cells of cells.py hold similar predictions of one model. Another model has other cells and other draws, but a
difference between two models needs the same draws for both. So rows are dealt at random to 1,024 cells of equal size,
and a resample draws cells with replacement, as rows.py draws rows. A cell is a random sample of the rows, so these
resamples have the variance of the bootstrap over rows on average; with 1,024 cells a standard error is known to about
2 %.

A resample is one product of its weights with the sums over the rows of each cell. Accuracy, NLL, Brier score, mean
entropy, ECE, UCE, debiased ECE and class-wise ECE of a resample are those of its rows, to float64 rounding. The metrics
of ranks (AURC, adaptive ECE, AvU and its parts) count rows with similar values together, as cells.py does. If no more
than 512 values of each of the correct and the wrong rows differ, these are exact, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from avuc.metrics.arrays import Array
from avuc.metrics.binning import bin_edges, uncertainty_edges
from avuc.metrics.resampling.cells import ALONE, CELLS, first_cells
from avuc.metrics.resampling.random_cells import MOST_CELLS, RandomCells
from avuc.metrics.resampling.resample_metrics import CumulativeCounts
from avuc.metrics.resampling.units import Units, columns_of
from avuc.metrics.sorted_samples import SortedPair
from avuc.metrics.statistics import Statistics
from avuc.metrics.ties import cumulative


def cells_as_units(probs: Any, statistics: Statistics, names: Collection[str], bins: int, seed: int) -> Units:
    """Return at most 1,024 random cells of rows; models with the same number of rows have the same cells.

    Args:
        probs: (N, C) probabilities; read again only for `classwise_ece`.
        statistics: their statistics.
        names: metrics of `METRICS`.
        bins: number of bins of the calibration errors.
        seed: of the cells.
    """
    s, order = statistics, dealt(len(statistics), seed)
    cells = min(len(s), MOST_CELLS)
    cell = order % cells
    columns = np.stack([np.bincount(cell, column, cells) for column in columns_of(s)], 1)
    edges = bin_edges(bins, s.dtype), uncertainty_edges(s.num_classes, bins)
    return Units(
        columns,
        ValueCounts(s.confidence, s.correct, s.confidence, edges[0], cell),
        ValueCounts(s.entropy, s.correct, s.uncertainty, edges[1], cell, ALONE),
        _CellTables(probs, s, bins, order) if "classwise_ece" in names else None,
    )


def dealt(rows: int, seed: int) -> Array:
    """Return 0, 1, … rows − 1 in random order; modulo a number of cells it is the cell of each row.

    >>> np.bincount(dealt(10, seed=0) % 5)
    array([2, 2, 2, 2, 2])
    """
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed), device="cpu").numpy()


class CellSums:
    """Sums of the rows of each cell by an index, such as a bin, from which means of resamples follow."""

    def __init__(self, cell: Array, size: int, *parts: tuple[Array, Array]) -> None:
        """Args:
        cell: (N,) cell of each row.
        size: number of sums of a cell.
        parts: indices (N,) from 0 to size − 1, and the values (N,) that are added there.
        """
        self._rows = np.bincount(cell).astype(np.float64)
        shape = len(self._rows), size
        self._table = np.zeros(shape)
        for index, values in parts:
            self._table += np.bincount(cell * size + index, values, self._table.size).reshape(shape)

    def means(self, weights: Array) -> Array:
        """Return the sums of resamples divided by their rows, (B, size), from weights of the cells (B, G)."""
        drawn = weights.astype(np.float64)
        return np.asarray(drawn @ self._table / (drawn @ self._rows)[:, None])


class ValueCounts:
    """`Ordered` of cells: for each cell, how many correct and wrong rows have a value of each group of values."""

    def __init__(self, values: Array, correct: Array, stated: Array, edges: Array, cell: Array, alone: int = 0) -> None:
        groups = SortedPair(values[~correct], values[correct]).value_groups(CELLS, edges[1:-1], alone)
        self.values: Array = groups.high
        self.lowest: Array | None = groups.low
        self.cuts: Array = first_cells(groups, edges)
        many, cells = len(groups.high), int(cell.max()) + 1
        group = np.searchsorted(groups.high, values)
        counts = np.bincount((2 * cell + ~correct) * many + group, minlength=cells * 2 * many)
        sums = np.bincount(cell * many + group, stated, cells * many)
        self._table = np.concatenate([counts.reshape(cells, -1), sums.reshape(cells, -1)], 1, dtype=np.float64)

    def below(self, weights: Array) -> CumulativeCounts:
        drawn = weights.astype(np.float64) @ self._table
        return CumulativeCounts(*map(cumulative, np.split(drawn, 3, axis=1)))


class _CellTables:
    """`Classwise` of cells; with many classes of fewer cells, whose tables are large, drawn by the first weights."""

    def __init__(self, probs: Any, statistics: Statistics, bins: int, order: Array) -> None:
        s = statistics
        self._cells = RandomCells(len(s), s.num_classes, bins, s.dtype, seed=0)
        self._cells.add(probs, s.labels, order % self._cells.cells)

    def residuals(self, weights: Array) -> Array:
        return self._cells.resample(weights[:, : self._cells.cells].astype(np.float64))
