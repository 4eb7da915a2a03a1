"""Two sorted samples of scores and their common order, for data too large for float64 copies. NumPy only.

The two samples are wrong and correct predictions by confidence or by entropy, or in-distribution and OOD inputs by
entropy. Each is one sorted array in the precision of its values. Whatever needs the order of all values is computed one
chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from avuc.metrics.arrays import Array
from avuc.metrics.ties import TieGroups, group_ties

# values that are converted to float64 at a time
CHUNK = 1 << 18


class SortedSample:
    """Values in ascending order, with the sums before each chunk."""

    def __init__(self, values: Array) -> None:
        """Args:
        values: (N,) floats; the array is sorted in place.
        """
        values.sort()
        self.values = values
        starts = range(0, len(values), CHUNK)
        sums = [values[start : start + CHUNK].sum(dtype=np.float64) for start in starts]
        self._before = np.concatenate([[0.0], np.cumsum(sums)])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def total(self) -> float:
        """Sum of all values."""
        return float(self._before[-1])

    def at_most(self, bounds: Array) -> Array:
        """Return how many values are ≤ each bound."""
        narrow = self._narrow(bounds)
        # The largest number of this precision that is not above the bound. With a bound of higher precision,
        # searchsorted would copy all values.
        narrow = np.where(narrow > bounds, np.nextafter(narrow, -np.inf, dtype=narrow.dtype), narrow)
        return np.asarray(np.searchsorted(self.values, narrow, side="right"))

    def below(self, bounds: Array) -> Array:
        """Return how many values are < each bound."""
        narrow = self._narrow(bounds)
        narrow = np.where(narrow < bounds, np.nextafter(narrow, np.inf, dtype=narrow.dtype), narrow)
        return np.asarray(np.searchsorted(self.values, narrow, side="left"))

    def sum_before(self, rows: Array) -> Array:
        """Return the sum of the first `rows` values, for ascending numbers of rows."""
        sums = np.empty(len(rows))
        chunks = rows // CHUNK
        for chunk in np.unique(chunks):
            here = chunks == chunk
            part = self.values[chunk * CHUNK : (chunk + 1) * CHUNK].astype(np.float64)
            inside = np.concatenate([[0.0], np.cumsum(part)])
            sums[here] = self._before[chunk] + inside[rows[here] - chunk * CHUNK]
        return sums

    def quantiles(self, count: int) -> Array:
        """Return at most `count` values, evenly spaced in rank, including the largest."""
        if len(self) == 0:
            return np.empty(0)
        return self.values[np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.int64)].astype(np.float64)

    def _narrow(self, bounds: Array) -> Array:
        return np.asarray(bounds, np.float64).astype(self.values.dtype)


class ValueGroups(NamedTuple):
    """Values in K consecutive groups, from which the bootstrap for large data draws. All arrays have shape (K,).

    The values of a group count as spread evenly between its lowest and its highest one.

    low, high                   lowest and highest value
    negative, positive          number of values of each sample
    negative_sum, positive_sum  sum of the values of each sample
    """

    low: Array
    high: Array
    negative: Array
    positive: Array
    negative_sum: Array
    positive_sum: Array


class SortedPair:
    """A negative and a positive sample in one order: wrong and correct, or in-distribution and OOD."""

    def __init__(self, negative: Array, positive: Array) -> None:
        """Args:
        negative: (N,) floats, sorted in place.
        positive: (M,) floats, sorted in place.
        """
        self.negative: SortedSample = SortedSample(negative)
        self.positive: SortedSample = SortedSample(positive)

    def __len__(self) -> int:
        return len(self.negative) + len(self.positive)

    @property
    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest value of both samples."""
        held = [sample.values for sample in (self.negative, self.positive) if len(sample)]
        return float(min(values[0] for values in held)), float(max(values[-1] for values in held))

    def at_most(self, bounds: Array) -> tuple[Array, Array]:
        """Return how many negative and how many positive values are ≤ each bound."""
        negative, positive = self.negative.at_most(bounds), self.positive.at_most(bounds)
        return negative.astype(np.float64), positive.astype(np.float64)

    def tie_groups(self) -> Iterator[TieGroups]:
        """Yield every distinct value with its positive (`right`) and negative (`wrong`) counts, ascending.

        Each part covers at most 2 · CHUNK values; ties are never divided between parts.
        """
        cuts = np.unique(
            np.concatenate([sample.values[CHUNK - 1 :: CHUNK] for sample in (self.negative, self.positive)])
        ).astype(np.float64)
        starts = [0, 0]
        for cut in [*cuts, np.inf]:
            bound = np.array([cut])
            first = int(self.negative.below(bound)[0]), int(self.positive.below(bound)[0])
            wrong, right = self.negative.values[starts[0] : first[0]], self.positive.values[starts[1] : first[1]]
            if len(wrong) + len(right):
                values = np.concatenate([wrong, right]).astype(np.float64)
                yield group_ties(values, np.arange(len(values)) >= len(wrong))
            if cut < np.inf:
                # ties at the cut may be more than a chunk: they form one group and are only counted
                starts = [int(self.negative.at_most(bound)[0]), int(self.positive.at_most(bound)[0])]
                yield TieGroups(bound, np.array([float(starts[1] - first[1])]), np.array([float(starts[0] - first[0])]))

    def value_groups(self, count: int, edges: Array, alone: int = 0) -> ValueGroups:
        """Divide the values into about `count` groups, half of them of equal size in each sample.

        Args:
            count: number of groups.
            edges: values that no group may cross.
            alone: this many smallest and largest distinct values of each sample get groups of their own.
        """
        cuts = np.unique(
            np.concatenate(
                [
                    self.negative.quantiles(count // 2),
                    self.positive.quantiles(count // 2),
                    edges,
                    *self._outermost(alone),
                ]
            )
        )
        cuts = np.append(cuts[cuts < self.extremes[1]], self.extremes[1])
        negative, positive = (np.append(0, sample.at_most(cuts)) for sample in (self.negative, self.positive))
        sums = [sample.sum_before(rows) for sample, rows in ((self.negative, negative), (self.positive, positive))]
        held = np.diff(negative + positive) > 0
        low, high = np.full(len(held), np.inf), np.full(len(held), -np.inf)
        for sample, rows in ((self.negative, negative), (self.positive, positive)):
            some = np.diff(rows) > 0
            low[some] = np.minimum(low[some], sample.values[rows[:-1][some]])
            high[some] = np.maximum(high[some], sample.values[rows[1:][some] - 1])
        return ValueGroups(*(column[held] for column in (low, high, *map(np.diff, (negative, positive, *sums)))))

    def _outermost(self, count: int) -> Iterator[Array]:
        for sample in (self.negative, self.positive):
            if count == 0 or len(sample) == 0:
                continue
            low, high = [sample.values[0]], [sample.values[-1]]
            for _ in range(count - 1):
                after, before = sample.at_most(np.array([low[-1]]))[0], sample.below(np.array([high[-1]]))[0]
                low += [sample.values[after]] if after < len(sample) else []
                high += [sample.values[before - 1]] if before > 0 else []
            # a group ends at each of them; the group of the first of the largest begins after the value before it
            before = sample.below(np.array([high[-1]]))[0]
            yield np.array([*low, *high, *([sample.values[before - 1]] if before > 0 else [])], np.float64)
