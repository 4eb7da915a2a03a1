"""Which columns of a table are probabilities: those whose rows sum to 1, as exactly as their digits allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from avuc.evaluation.files.columns import Sample

__all__ = ["summing_columns"]

# what float32 leaves of a sum of 1
TOLERANCE = 1e-5
# numbers with at most so many decimals count as rounded
MOST_DIGITS = 6
# the most that rounding may take from or add to a sum
MOST_ROUNDING = 5e-2
NEGATIVE_TOLERANCE = 1e-6


def summing_columns(sample: Sample | None, names: Sequence[str]) -> list[str] | None:
    """The columns that sum to 1 in every row of the sample: all of those within 0 … 1, or all but one of them.

    None where no set does, where two sets do, and where the sums do not tell whether some column belongs to the set:
    a flag that is 0 in every row changes no sum.
    """
    if sample is None or len(names) < 2:
        return None
    rows = sample.rows(names)
    if not len(rows):
        return None
    with np.errstate(invalid="ignore"):
        inside = (rows >= -NEGATIVE_TOLERANCE) & (rows <= 1 + NEGATIVE_TOLERANCE)  # NaN is not
    good = np.flatnonzero(inside.all(0)).tolist()
    names, rows = [names[place] for place in good], rows[:, good]
    count = len(names)
    if count < 2:
        return None
    digits, total = _digits(rows), rows.sum(1)
    sets = []
    if np.abs(total - 1).max() <= _tolerance(int(digits.max()), count):
        sets.append(list(range(count)))
    if count > 2:
        off = np.abs(total[:, None] - rows - 1).max(0)
        order = np.argsort(digits, kind="stable")
        for left_out in np.flatnonzero(off <= MOST_ROUNDING).tolist():
            most = int(digits[order[-1] if order[-1] != left_out else order[-2]])
            if off[left_out] <= _tolerance(most, count - 1):
                sets.append([place for place in range(count) if place != left_out])
            if len(sets) > 1:
                return None
    if len(sets) != 1:
        return None
    chosen = sets[0]
    if rows[:, chosen].max(0).min() <= 2 * _tolerance(int(digits[chosen].max()), len(chosen)):
        return None  # without this column the sums would be 1 as well
    return [names[place] for place in chosen]


def _tolerance(digits: int, count: int) -> float:
    """How far a sum of this many numbers with so many decimals may be from 1."""
    if not 2 <= digits <= MOST_DIGITS:
        return TOLERANCE
    return max(TOLERANCE, min(MOST_ROUNDING, count * 10.0**-digits / 2 + 1e-9))


def _digits(rows: np.ndarray) -> np.ndarray:
    """The fewest decimals that hold every number of a column; more than `MOST_DIGITS` where it takes more."""
    found = np.full(rows.shape[1], MOST_DIGITS + 1)
    for digits in range(MOST_DIGITS, -1, -1):
        times = rows * 10**digits
        # 0.17 * 100 is 17 except for the rounding of float32
        found[(np.abs(times - np.round(times)) <= 1.2e-7 * np.abs(times) + 1e-9).all(0)] = digits
    return found
