"""The class-wise residuals of random groups of rows: what a bootstrap of the class-wise error needs of many rows.

Rows are dealt at random into groups, and each group keeps one table of Σ p_k − 1[k = label] by class and by bin of p_k.
Drawing groups with replacement instead of rows gives the same covariance of these sums on average, because the rows of
a group are a random sample; with 1,000 groups a standard error is known to about 2 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from avuc.metrics.statistics import Array, bin_edges, digitise, float_blocks

__all__ = ["GroupedResiduals"]

MOST_GROUPS, FEWEST_GROUPS = 1024, 32
# numbers in all tables together: 128 MB
HELD = 1 << 24
# elements of one block of probabilities
BLOCK = 1 << 19
REPLICATES = 64


class GroupedResiduals:
    """Tables (G, C · bins) of G random groups of rows, added up block by block."""

    def __init__(self, rows: int, classes: int, bins: int, dtype: torch.dtype, seed: int) -> None:
        self.classes, self.bins = classes, bins
        self.groups = self.groups_for(rows, classes, bins)
        self._edges = bin_edges(bins, dtype)
        self._generator = torch.Generator().manual_seed(seed)
        self.tables = np.zeros((self.groups, classes * bins))
        self.rows = np.zeros(self.groups)

    @staticmethod
    def groups_for(rows: int, classes: int, bins: int) -> int:
        return max(1, min(rows, max(FEWEST_GROUPS, min(MOST_GROUPS, HELD // (classes * bins)))))

    def add(self, probs: Any, labels: Array) -> None:
        flat, cells, start = self.tables.reshape(-1), self.classes * self.bins, 0
        for block in float_blocks(probs, BLOCK):
            values = block.cpu().numpy()
            group = torch.randint(self.groups, (len(values),), generator=self._generator).numpy()
            label = labels[start : start + len(values)]
            start += len(values)
            self.rows += np.bincount(group, minlength=self.groups)
            # a row has few probabilities above the first bin; only these are put into bins, and what remains of a
            # column's sum is the first bin
            column = (group * self.classes)[:, None] + np.arange(self.classes)
            sums = np.bincount(column.reshape(-1), values.reshape(-1), self.groups * self.classes)
            self.tables[:, :: self.bins] += sums.reshape(self.groups, self.classes)
            row, kind = np.nonzero(values > self._edges[1])
            high = values[row, kind]
            first = group[row] * cells + kind * self.bins
            np.add.at(flat, first, -high)
            np.add.at(flat, first + digitise(high, self._edges), high)
            chosen = values[np.arange(len(values)), label]
            np.add.at(flat, group * cells + label * self.bins + digitise(chosen, self._edges), -1.0)

    def estimate(self) -> Array:
        """(C · bins) residuals of all rows, divided by C · N: their absolute sum is the class-wise error."""
        return np.asarray(self.tables.sum(0) / (self.classes * self.rows.sum()))

    def resamples(self, replicates: int, seed: int) -> Iterator[Array]:
        """(B, C · bins) the same of resamples, in blocks of at most 64."""
        generator = torch.Generator().manual_seed(seed)
        for start in range(0, replicates, REPLICATES):
            count = min(REPLICATES, replicates - start)
            weights = torch.poisson(torch.ones(count, self.groups, dtype=torch.float64), generator).numpy()
            # by matrix products with the groups' tables; a resample of no rows at all has no residuals
            rows = np.maximum(weights @ self.rows, 1)
            yield weights @ self.tables / (self.classes * rows)[:, None]
