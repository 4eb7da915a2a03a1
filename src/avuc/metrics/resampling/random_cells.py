"""Class-wise sums of random cells of predictions, from which the class-wise error of large data is resampled.

Predictions are assigned to cells at random, and each cell keeps one table of Σ (p_k − 1[k = label]) by class and by
bin of p_k. Drawing cells instead of predictions gives the same covariance of these sums on average, because each cell
is a random sample; with 1,000 cells a standard error is known to about 2 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from avuc.metrics.arrays import Array
from avuc.metrics.binning import bin_edges, digitise
from avuc.metrics.statistics import float_blocks

MOST_CELLS, FEWEST_CELLS = 1024, 32
# numbers in all tables together: 128 MB
HELD = 1 << 24
# elements of one block of probabilities
BLOCK = 1 << 19
REPLICATES = 64


class RandomCells:
    """Tables (G, C · bins) of G random cells of predictions, summed block by block."""

    def __init__(self, rows: int, classes: int, bins: int, dtype: torch.dtype, seed: int) -> None:
        """Args:
        rows: number of predictions that will be added.
        classes: number of classes C.
        bins: number of bins of p_k.
        dtype: of the probabilities; bin edges are rounded to it.
        seed: of the assignment to cells.
        """
        self.classes: int = classes
        self.bins: int = bins
        self.cells: int = self.cells_for(rows, classes, bins)
        self._edges = bin_edges(bins, dtype)
        self._generator = torch.Generator().manual_seed(seed)
        self.tables: Array = np.zeros((self.cells, classes * bins))
        self.rows: Array = np.zeros(self.cells)

    @staticmethod
    def cells_for(rows: int, classes: int, bins: int) -> int:
        """Return the number of cells: 1,024, or fewer if their tables would take more than 128 MB."""
        return max(1, min(rows, max(FEWEST_CELLS, min(MOST_CELLS, HELD // (classes * bins)))))

    def add(self, probs: Any, labels: Array, cells: Array | None = None) -> None:
        """Add a block of predictions: probabilities (N, C), labels (N,), and the cell of each; None: at random."""
        flat, table_size, start = self.tables.reshape(-1), self.classes * self.bins, 0
        for block in float_blocks(probs, BLOCK):
            values = block.cpu().numpy()
            here = slice(start, start + len(values))
            cell = self._random(len(values)) if cells is None else cells[here]
            label = labels[here]
            start += len(values)
            self.rows += np.bincount(cell, minlength=self.cells)
            # A row has few probabilities above the first bin. Only these are put into bins; the rest of a column's sum
            # is the first bin.
            column = (cell * self.classes)[:, None] + np.arange(self.classes)
            sums = np.bincount(column.reshape(-1), values.reshape(-1), self.cells * self.classes)
            self.tables[:, :: self.bins] += sums.reshape(self.cells, self.classes)
            row, kind = np.nonzero(values > self._edges[1])
            high = values[row, kind]
            first = cell[row] * table_size + kind * self.bins
            np.add.at(flat, first, -high)
            np.add.at(flat, first + digitise(high, self._edges), high)
            chosen = values[np.arange(len(values)), label]
            np.add.at(flat, cell * table_size + label * self.bins + digitise(chosen, self._edges), -1.0)

    def estimate(self) -> Array:
        """Return the sums of all predictions divided by C · N, (C · bins,).

        The sum of their absolute values is the class-wise error.
        """
        return np.asarray(self.tables.sum(0) / (self.classes * self.rows.sum()))

    def _random(self, rows: int) -> Array:
        return torch.randint(self.cells, (rows,), generator=self._generator, device="cpu").numpy()

    def resamples(self, replicates: int, seed: int) -> Iterator[Array]:
        """Yield the same for resamples, (B, C · bins), in blocks of at most 64."""
        generator = torch.Generator().manual_seed(seed)
        for start in range(0, replicates, REPLICATES):
            count = min(REPLICATES, replicates - start)
            weights = torch.poisson(torch.ones(count, self.cells, dtype=torch.float64, device="cpu"), generator).numpy()
            yield self.resample(weights)

    def resample(self, weights: Array) -> Array:
        """Return the same for resamples that are given as weights of the cells, (B, G) float64."""
        # matrix products with the tables of the cells; the sums of an empty resample are 0
        rows = np.maximum(weights @ self.rows, 1)
        return np.asarray(weights @ self.tables / (self.classes * rows)[:, None])
