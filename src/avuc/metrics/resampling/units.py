"""What a bootstrap draws with replacement: rows (rows.py), or random cells of rows (cell_units.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from avuc.metrics.arrays import Array
from avuc.metrics.resampling.resample_metrics import CumulativeCounts
from avuc.metrics.statistics import Statistics


class Ordered(Protocol):
    """Units by ascending confidence or entropy.

    cuts    (bins + 1,) first group of values of each bin, and the number of groups
    values  (G,) value of each group, or the largest of each if `lowest` is given
    lowest  (G,) smallest value of each group; None: all values of a group are equal
    """

    cuts: Array
    values: Array
    lowest: Array | None

    def below(self, weights: Array) -> CumulativeCounts:
        """Return the cumulative counts of resamples, from weights (B, U)."""
        ...


class Classwise(Protocol):
    """The class-wise sums Σ (p_k − 1[k = label]) by class and by bin of p_k, for any weights."""

    def residuals(self, weights: Array) -> Array:
        """Return the sums divided by C · N, (B, C · bins)."""
        ...


@dataclass(frozen=True)
class Units:
    """What a resample draws with replacement: U rows, or U cells of rows, with sums over the rows of each.

    columns     (U, 6) sums of `correct`, NLL, Brier score, entropy, entropy of correct rows, and number of rows
    confidence  by ascending confidence
    entropy     by ascending entropy
    classwise   None if the class-wise error is not wanted
    """

    columns: Array
    confidence: Ordered
    entropy: Ordered
    classwise: Classwise | None

    def __len__(self) -> int:
        return len(self.columns)


def columns_of(statistics: Statistics) -> list[Array]:
    """Return the columns (N,) that `Units.columns` sums."""
    s = statistics
    return [s.correct, s.nll, s.brier, s.entropy, s.entropy * s.correct, np.ones(len(s))]
