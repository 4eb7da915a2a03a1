"""Temperatures outside the default range: a range that goes with the scale of the logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from avuc.calibration.base import Array
from avuc.calibration.scalar_search import Minimum
from avuc.calibration.scaled_logits import ScaledLogits

# right rows, and wrong rows, that a range other than the default needs: the rule of Peduzzi et al. 1996
LEAST_EVENTS = 10
# The range, in units of the typical margin between the two largest logits of a row, and that with fewer events: as
# wide as the default one. Rows with margins beyond `MARGINS` are left alone.
LOWEST, HIGHEST = 1e-3, 1e4
FEW_LOWEST, FEW_HIGHEST = 1 / 40, 10.0
MARGINS = 1e-12, 1e12
# the margin comes from evenly spaced rows with about this many logits
MARGIN_ELEMENTS = 1 << 18


class Scaler(Protocol):
    """What a search in another range needs: the range, and the curve of the search."""

    _range: tuple[float, float] | None
    curve_: tuple[Array, Array]


def is_doubtful(scaled: ScaledLogits, minimum: Minimum, losses: Array) -> bool:
    """Return whether a T comes from the range and not from the data.

    It is at the end of the range, all temperatures are equally good, or many or all mistakes are at the floor.

    Args:
        scaled: the rows.
        minimum: at T.
        losses: of temperatures all over the range.
    """
    if minimum.at_bound or np.ptp(losses) <= 1e-12 * abs(losses[0]):
        return True
    floored, wrong = scaled.floored(math.exp(minimum.x)), ~scaled.right
    many = int((floored & ~scaled.impossible).sum()) >= LEAST_EVENTS
    return many or (bool(wrong.any()) and bool(floored[wrong].all()))


def has_events(scaled: ScaledLogits) -> bool:
    """Return whether enough rows are right and enough are wrong for a temperature outside the default range."""
    return min(scaled.num_right, scaled.rows - scaled.num_right) >= LEAST_EVENTS


def minimum_by_scale(scaler: Scaler, scaled: ScaledLogits, minimum: Minimum, search: Callable[[], Minimum]) -> Minimum:
    """Return the minimum in a range that goes with the scale of the logits, or `minimum` if there is none inside.

    Logits c z get the temperature c T. At the new T, enough right and wrong rows must be above the floor: without
    mistakes that count, T would go to 0. With fewer events than `LEAST_EVENTS` the range is as wide as the default one,
    and only a higher T is taken: few mistakes are no reason for more confidence.

    Args:
        scaler: its `_range` is that of the result.
        scaled: the rows.
        minimum: of the default range.
        search: searches in `scaler._range`.
    """
    many = has_events(scaled)
    low, high, least = (LOWEST, HIGHEST, LEAST_EVENTS) if many else (FEW_LOWEST, FEW_HIGHEST, 1)
    if not least <= scaled.num_right <= scaled.rows - least:  # such as separable rows
        return minimum
    margin, curve = _margin(scaled), scaler.curve_
    if not MARGINS[0] <= margin <= MARGINS[1]:
        return minimum
    scaler._range = low * margin, high * margin
    found = search()
    known = not found.at_bound and (many or found.x > minimum.x)
    counts = ~scaled.floored(math.exp(found.x))
    events = min(int((counts & scaled.right).sum()), int((counts & ~scaled.right).sum()))
    if not known or not found.value < minimum.value * (1 - 1e-9) or events < least:
        scaler._range, scaler.curve_ = None, curve
        return minimum
    return found


def _margin(scaled: ScaledLogits) -> float:
    """Return the median distance of the two largest logits of a row, of rows that have one; else 0."""
    if scaled.num_classes < 2:
        return 0.0
    top = scaled.subsample(MARGIN_ELEMENTS).logits.double().topk(2, dim=-1).values
    margins = (top[..., 0] - top[..., 1]).flatten()
    margins = margins[(margins > 0) & margins.isfinite()]
    return float(margins.median()) if len(margins) else 0.0
