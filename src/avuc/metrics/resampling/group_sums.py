"""The bootstrap over groups of dependent rows for metrics that are sums over rows: only the sums of groups are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.metrics.arrays import Array
from avuc.metrics.binning import bin_edges, digitise
from avuc.metrics.resampling.absolute_error import AbsoluteSum
from avuc.metrics.resampling.percentile import Errors
from avuc.metrics.resampling.rows import resampled_rows, wider
from avuc.metrics.statistics import Statistics

MEANS = ("accuracy", "nll", "brier", "mean_entropy")
# elements of the counts of resampled groups in memory at a time
HELD = 1 << 22


class GroupSums:
    """Sums of each of K groups: rows, the columns of `MEANS`, and the gaps of the bins of ECE and of UCE.

    Args:
        groups: number of groups K.
        bins: number of bins.
    """

    def __init__(self, groups: int, bins: int) -> None:
        self.bins: int = bins
        self.sums: Array = np.zeros((groups, 1 + len(MEANS) + 2 * bins))

    def add(self, s: Statistics, groups: Array) -> None:
        """Add rows.

        Args:
            s: their statistics.
            groups: (N,) the number of the group of each row.
        """
        columns: list[Any] = [np.ones(len(s)), s.correct, s.nll, s.brier, s.entropy]
        count = len(self.sums)
        parts = [np.bincount(groups, column, count) for column in columns]
        self.sums[:, : len(columns)] += np.stack(parts, 1)
        stated = (
            (s.confidence, s.correct, bin_edges(self.bins, s.dtype)),
            (s.uncertainty, ~s.correct, bin_edges(self.bins)),
        )
        for first, (value, event, edges) in zip((len(columns), len(columns) + self.bins), stated, strict=True):
            cell = groups * self.bins + digitise(value, edges)
            gaps = np.bincount(cell, event - value, count * self.bins).reshape(count, self.bins)
            self.sums[:, first : first + self.bins] += gaps

    def errors(self, replicates: int, seed: int) -> dict[str, Errors]:
        """Return the resampled errors of `MEANS`, ECE and UCE, as `resampled_errors` does from all rows."""
        groups, first = len(self.sums), 1 + len(MEANS)
        total = self.sums.sum(0)
        estimate = total[1:] / total[0]
        absolute = {
            name: AbsoluteSum(estimate[at : at + self.bins])
            for name, at in (("ece", first - 1), ("uce", first - 1 + self.bins))
        }
        drawn, step, means = resampled_rows(groups, replicates, seed), max(1, HELD // groups), []
        for start in range(0, replicates, step):
            some = [np.bincount(next(drawn), minlength=groups) for _ in range(min(step, replicates - start))]
            resampled = np.stack(some).astype(np.float64) @ self.sums
            resampled = resampled[:, 1:] / resampled[:, :1]
            means.append(estimate[: len(MEANS)] - resampled[:, : len(MEANS)])
            absolute["ece"].add(resampled[:, first - 1 : first - 1 + self.bins])
            absolute["uce"].add(resampled[:, first - 1 + self.bins :])
        errors = {name: Errors(error, error) for name, error in zip(MEANS, np.concatenate(means).T, strict=True)}
        errors |= {name: absolute_sum.errors() for name, absolute_sum in absolute.items()}
        return {name: wider(error, groups) for name, error in errors.items()}
