"""Two sorted samples and their common order, for data with too many rows for one float64 per row and figure.

Right and wrong rows by confidence, or by entropy; rows of the data set and rows of another one by entropy. Each sample
is one sorted array in the precision of its values. What needs the order of all rows is computed one stretch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from avuc.metrics.statistics import Array, Groups, group

__all__ = ["Cells", "Ranking", "Sample"]

# rows that are taken to float64 at a time
CHUNK = 1 << 18


class Sample:
    """Values in ascending order (the array is sorted in place), with their sum before any row."""

    def __init__(self, values: Array) -> None:
        values.sort()
        self.values = values
        starts = range(0, len(values), CHUNK)
        sums = [values[start : start + CHUNK].sum(dtype=np.float64) for start in starts]
        self._before = np.concatenate([[0.0], np.cumsum(sums)])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def total(self) -> float:
        return float(self._before[-1])

    def at_most(self, bounds: Array) -> Array:
        """How many values are ≤ each bound."""
        narrow = self._narrow(bounds)
        # the largest number of this precision that is not above the bound: a wider bound would copy all values
        narrow = np.where(narrow > bounds, np.nextafter(narrow, -np.inf, dtype=narrow.dtype), narrow)
        return np.asarray(np.searchsorted(self.values, narrow, side="right"))

    def below(self, bounds: Array) -> Array:
        """How many values are < each bound."""
        narrow = self._narrow(bounds)
        narrow = np.where(narrow < bounds, np.nextafter(narrow, np.inf, dtype=narrow.dtype), narrow)
        return np.asarray(np.searchsorted(self.values, narrow, side="left"))

    def sum_before(self, rows: Array) -> Array:
        """Sum of the first `rows` values, for ascending numbers of rows."""
        sums = np.empty(len(rows))
        chunks = rows // CHUNK
        for chunk in np.unique(chunks):
            here = chunks == chunk
            part = self.values[chunk * CHUNK : (chunk + 1) * CHUNK].astype(np.float64)
            inside = np.concatenate([[0.0], np.cumsum(part)])
            sums[here] = self._before[chunk] + inside[rows[here] - chunk * CHUNK]
        return sums

    def spread(self, count: int) -> Array:
        """At most `count` values, evenly spaced in rank, the last one included."""
        if len(self) == 0:
            return np.empty(0)
        return self.values[np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.int64)].astype(np.float64)

    def _narrow(self, bounds: Array) -> Array:
        return np.asarray(bounds, np.float64).astype(self.values.dtype)


class Cells(NamedTuple):
    """Rows in consecutive cells of ascending value: what a bootstrap over cells draws from. All arrays have shape (K).

    The rows of a cell count as spread evenly between its lowest and its highest value.
    """

    low: Array
    high: Array
    negative: Array
    positive: Array
    negative_sum: Array  # of the values of the negative rows
    positive_sum: Array


class Ranking:
    """Negative and positive rows (wrong and right, inside and outside) in one order."""

    def __init__(self, negative: Array, positive: Array) -> None:
        self.negative, self.positive = Sample(negative), Sample(positive)

    def __len__(self) -> int:
        return len(self.negative) + len(self.positive)

    @property
    def extremes(self) -> tuple[float, float]:
        held = [sample.values for sample in (self.negative, self.positive) if len(sample)]
        return float(min(values[0] for values in held)), float(max(values[-1] for values in held))

    def at_most(self, bounds: Array) -> tuple[Array, Array]:
        """Negative and positive rows whose value is ≤ each bound."""
        negative, positive = self.negative.at_most(bounds), self.positive.at_most(bounds)
        return negative.astype(np.float64), positive.astype(np.float64)

    def groups(self) -> Iterator[Groups]:
        """Every distinct value with its positive rows (`right`) and negative rows (`wrong`), ascending, in stretches
        of at most 2 · CHUNK rows; equal values are never divided."""
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
                yield group(values, np.arange(len(values)) >= len(wrong))
            if cut < np.inf:
                # the cut itself may hold more rows than a stretch: they are one group, and only counted
                starts = [int(self.negative.at_most(bound)[0]), int(self.positive.at_most(bound)[0])]
                yield Groups(bound, np.array([float(starts[1] - first[1])]), np.array([float(starts[0] - first[0])]))

    def cells(self, count: int, edges: Array, alone: int = 0) -> Cells:
        """About `count` cells of equal mass of either sample, none of which crosses one of the `edges`; the `alone`
        smallest and largest distinct values have cells of their own."""
        cuts = np.unique(
            np.concatenate(
                [self.negative.spread(count // 2), self.positive.spread(count // 2), edges, *self._outermost(alone)]
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
        return Cells(*(column[held] for column in (low, high, *map(np.diff, (negative, positive, *sums)))))

    def _outermost(self, count: int) -> Iterator[Array]:
        for sample in (self.negative, self.positive):
            if count == 0 or len(sample) == 0:
                continue
            low, high = [sample.values[0]], [sample.values[-1]]
            for _ in range(count - 1):
                after, before = sample.at_most(np.array([low[-1]]))[0], sample.below(np.array([high[-1]]))[0]
                low += [sample.values[after]] if after < len(sample) else []
                high += [sample.values[before - 1]] if before > 0 else []
            # a cell ends at each of them; the first of the largest begins where the value before it ends
            before = sample.below(np.array([high[-1]]))[0]
            yield np.array([*low, *high, *([sample.values[before - 1]] if before > 0 else [])], np.float64)
