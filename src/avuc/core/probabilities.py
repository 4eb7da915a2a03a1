"""The rule for what counts as probabilities, used by metrics, losses, calibrators, predictions and file readers.

Probabilities are not negative, and every row sums to 1. Probabilities in place of logits, or logits in place of
probabilities, would give wrong metrics without an error, so both are refused.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from avuc.core.errors import InputError

Looks = Literal["probabilities", "rounded probabilities", "percentages"]

# largest distance of a row's sum from 1; bfloat16 probabilities of any number of classes stay within 0.4 %
SUM_TOLERANCE = 1e-2
# so that a sum of 1.01 passes in any precision
WITHIN = SUM_TOLERANCE + 1e-6
# for few rows the limit is tighter: one pair of logits in a thousand sums to 1 within 0.01 by accident
FEW_ROWS, FEW_TOLERANCE = 4, 1e-5
# the most that rounding may change the sum of a row that is read as probabilities
MOST_ROUNDING = 5e-2
# numbers of decimals that `looks_like` tries, and the most that rounding may change a sum there
DIGITS, MOST_LOST = (2, 3), 0.5
# rows that are checked first
PEEK = 256
BOTH_COLUMNS = "for a binary model with the probability p of the positive class, give both columns, [1 − p, p]"


def rounding_error(classes: int, digits: int, most: float = MOST_ROUNDING) -> float:
    """Return how far the sum of a row may be from 1 if each probability was rounded: classes · 10^−digits / 2.

    Args:
        classes: number of probabilities in a row.
        digits: number of decimals.
        most: upper limit (default 0.05): with many classes, rounding would explain any sum.

    >>> rounding_error(10, 3)
    0.005
    """
    return min(most, classes * 10.0**-digits / 2)


def sum_tolerance(classes: int, digits: int | None) -> float:
    """Return how far the sum of a row of probabilities may be from 1: 0.01, or more if the numbers were rounded.

    Args:
        classes: number of probabilities in a row.
        digits: number of decimals that hold every number exactly; None or less than 2 if they are not rounded numbers.

    >>> sum_tolerance(10, None), round(sum_tolerance(5, 2), 4)
    (0.01, 0.025)
    """
    if digits is None or digits < 2:
        return SUM_TOLERANCE
    return max(SUM_TOLERANCE, rounding_error(classes, digits) + 1e-6)


def looks_like(values: Tensor) -> Looks | None:
    """Return what scores (..., C) look like if all rows look like probabilities; None for logits or a single class.

    Fewer than four rows count as probabilities only if their sums are exact. Waits for a GPU.

    >>> looks_like(torch.tensor([[0.2, 0.8]])), looks_like(torch.tensor([[2.0, -1.0]]))
    ('probabilities', None)
    """
    if values.numel() == 0 or values.shape[-1] < 2:
        return None
    rows = values.detach()
    if rows.ndim > 1:
        few = rows[..., :: max(1, rows.shape[-2] // PEEK), :]
        if few.shape != rows.shape and _looks_like(few) is None:
            return None
    return _looks_like(rows)


def _looks_like(rows: Tensor) -> Looks | None:
    if bool((rows < 0).any()):
        return None
    if rows.shape[-1] == 2 and bool((rows[..., 0] == 0).all()):
        return None  # one binary logit for each row, [0, z], can be exactly 1 everywhere
    totals = _sums(rows)
    if totals.numel() < FEW_ROWS:
        return "probabilities" if _off(totals, 1) <= FEW_TOLERANCE else None
    if _off(totals, 1) <= WITHIN:
        return "probabilities"
    if rounded_digits(rows, totals) is not None:
        return "rounded probabilities"
    return "percentages" if _are_percentages(rows, totals) else None


def _are_percentages(rows: Tensor, totals: Tensor) -> bool:
    """Return whether rows sum to 100, also after rounding. Rows of one 100 and zeros are taken for logits."""
    if _off(totals, 100) > 100 * WITHIN and rounded_digits(rows, totals, 100) is None:
        return False
    return bool((rows.amax(-1) < 100).any())


def rounded_digits(rows: Tensor, totals: Tensor, scale: float = 1) -> int | None:
    """Return 2 or 3 if rounding to so many decimals explains why these rows do not sum to `scale`, else None."""
    if not bool(rows.amax() <= scale):  # NaN too
        return None
    for digits in DIGITS:
        allowed = rounding_error(rows.shape[-1], digits, MOST_LOST)
        if _off(totals, scale) > scale * (allowed + 1e-6):
            continue
        wide = rows.to(totals.dtype) * (10.0**digits / scale)
        if bool(((wide - wide.round()).abs() <= 1e-3).all()):
            return digits
    return None


def are_probs(rows: Tensor, totals: Tensor | None = None) -> Tensor:
    """Return one bool, on the same device: whether all rows (N, C) are probabilities. NaN and infinity are not."""
    sums = rows.sum(-1) if totals is None else totals
    fits = ((sums - 1).abs() <= WITHIN).all()
    return fits & (rows.amin() >= 0) if rows.numel() else fits


def check_probs(rows: Tensor, totals: Tensor | None = None, start: int = 0) -> None:
    """Raise `InputError` unless all rows (N, C) are probabilities; `start` is the number of the first row."""
    if bool(are_probs(rows, totals)):
        return
    sums = rows.sum(-1) if totals is None else totals
    for name, entries in (("NaN", rows.isnan()), ("infinity", rows.isinf())):
        bad = entries.any(1)
        if bool(bad.any()):
            raise InputError(f"probabilities contain {name} (row {start + _first(bad)}): remove or repair these rows")
    off = (sums - 1).abs() > WITHIN
    if bool(off.any()):
        row = _first(off)
        raise InputError(
            f"rows of probabilities must sum to 1 (within {SUM_TOLERANCE}), row {start + row} sums to "
            f"{float(sums[row]):.6g}: {_remedy(rows, sums)}"
        )
    bad = (rows < 0).any(1)
    raise InputError(
        f"probabilities must not be negative (row {start + _first(bad)}): apply softmax if these are logits"
    )


def _remedy(rows: Tensor, totals: Tensor) -> str:
    if rows.shape[1] == 1:
        return BOTH_COLUMNS
    if not bool((rows < 0).any()):
        digits = rounded_digits(rows, totals)
        if digits is not None:
            return f"they are rounded to {digits} digits, so divide each row by its sum: p / p.sum(1)[:, None]"
        if _are_percentages(rows, totals):
            return "divide percentages by 100"
        if bool((rows <= 1).all()):
            return "divide each row by its sum if these are one-vs-rest scores; apply softmax if these are logits"
    return "apply softmax if these are logits"


def _sums(rows: Tensor) -> Tensor:
    """Return the sums in float64, or float32 on Apple's GPUs, which have no float64."""
    return rows.sum(-1, dtype=torch.float32 if rows.device.type == "mps" else torch.float64)


def _off(totals: Tensor, scale: float) -> float:
    """Return the largest distance of a sum from `scale`; infinity for NaN."""
    return float((totals - scale).abs().amax().nan_to_num(nan=torch.inf, posinf=torch.inf))


def _first(flags: Tensor) -> int:
    return int(flags.nonzero()[0, 0])
