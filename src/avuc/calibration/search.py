"""Searches on an interval: Newton's for the minimum of a convex function with derivatives, grid and Brent for that of
any other, secants for the root of a falling one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from avuc.calibration.scaled import Derivatives

GOLDEN = (3 - math.sqrt(5)) / 2


class Minimum(NamedTuple):
    """Where, how low, and whether the function still falls towards the end of the interval it stopped at."""

    x: float
    value: float
    at_bound: bool


def convex_minimum(
    at: Callable[[float], Derivatives], start: float, low: float, high: float, tolerance: float
) -> Minimum:
    """Minimise a convex function on [low, high], 0 < low, to a relative precision of `tolerance` in x.

    Newton's method inside a bracket that every slope shrinks. Once the steps shrink fast, the change of curvature gives
    the third derivative: it sharpens the step (Halley's) and bounds what the step leaves over, so no evaluation is
    spent on confirming the answer.

    >>> minimum = convex_minimum(lambda x: Derivatives((x - 2) ** 2, 2 * (x - 2), 2.0), 1.0, 0.1, 10.0, 1e-6)
    >>> minimum.x, minimum.at_bound
    (2.0, False)
    """
    x, left, right = min(max(start, low), high), low, high
    seen: dict[float, Derivatives] = {}
    previous: float | None = None
    while True:
        seen[x] = here = at(x)
        if here.slope == 0 or (here.slope < 0 and x >= high) or (here.slope > 0 and x <= low):
            return Minimum(x, here.value, here.slope != 0)
        left, right = (x, right) if here.slope < 0 else (left, x)
        if right - left <= tolerance * x:
            return Minimum(x, here.value, False)
        step = -here.slope / here.curvature if here.curvature > 0 else math.copysign(math.inf, -here.slope)
        leftover, bend = abs(step), 0.0
        if previous is not None and abs(step) <= 0.1 * abs(x - previous):
            bend = (here.curvature - seen[previous].curvature) / (x - previous)
            correction = step * bend / (2 * here.curvature)
            if abs(correction) <= 0.1:
                step, leftover = step / (1 + correction), abs(correction * step)
        if left <= x + step <= right and max(leftover, step * step / x) <= tolerance * x:
            gain = step * (here.slope + step * (here.curvature / 2 + step * bend / 6))
            return Minimum(x + step, here.value + gain, False)
        previous, x = x, _inside(x + step, left, right, seen)


def _inside(x: float, left: float, right: float, seen: dict[float, Derivatives]) -> float:
    """x where it lies in the bracket; else the end it passed, and where that is known already the middle."""
    if left < x < right:
        return x
    end = left if x <= left else right
    return math.sqrt(left * right) if end in seen else end


def bounded_minimum(f: Callable[[float], float], low: float, middle: float, high: float, tolerance: float) -> Minimum:
    """Minimise f on [low, high] to `tolerance` in x by Brent's method: parabolas, golden sections where they fail.

    `middle` is where the search starts; the ends are never evaluated.

    >>> round(bounded_minimum(lambda x: (x - 2) ** 2, 0.0, 1.0, 5.0, 1e-6).x, 5)
    2.0
    """
    best = second = third = middle
    f_best = f_second = f_third = f(middle)
    step = before = 0.0
    while True:
        centre = (low + high) / 2
        if abs(best - centre) <= 2 * tolerance - (high - low) / 2:
            return Minimum(best, f_best, False)
        # the vertex of the parabola through the three lowest points
        near, far = (best - second) * (f_best - f_third), (best - third) * (f_best - f_second)
        numerator, divisor = (best - third) * far - (best - second) * near, 2 * (near - far)
        parabolic = numerator / divisor if divisor else math.inf
        if abs(parabolic) < abs(before) / 2 and low + tolerance < best + parabolic < high - tolerance:
            before, step = step, parabolic
        else:
            before = (low if best >= centre else high) - best
            step = GOLDEN * before
        x = best + (step if abs(step) >= tolerance else math.copysign(tolerance, step))
        value = f(x)
        if value <= f_best:
            low, high = (best, high) if x >= best else (low, best)
            third, second, best = second, best, x
            f_third, f_second, f_best = f_second, f_best, value
            continue
        low, high = (x, high) if x < best else (low, x)
        if value <= f_second or second == best:
            third, second, f_third, f_second = second, x, f_second, value
        elif value <= f_third or third in (best, second):
            third, f_third = x, value


def falling_root(
    f: Callable[[float], float], low: float, high: float, at_low: float, at_high: float, tolerance: float
) -> float:
    """Where f, with f(low) = `at_low` > 0 ≥ `at_high` = f(high), passes 0, to `tolerance` in x: no x that it returns
    has f > 0.

    Secants between the ends of a bracket, an end that stays counted half (Illinois); the bracket's middle where they
    shrink it slowly, as they do for a function that jumps.

    >>> round(falling_root(lambda x: 4 - x * x, 0.0, 5.0, 4.0, -21.0, 1e-9), 6)
    2.0
    """
    moved, slow = "", 0
    while high - low > tolerance:
        width = high - low
        x = high - at_high * width / (at_high - at_low) if slow < 3 else (low + high) / 2
        # never nearer to an end than half the precision: the next bracket is then small enough
        x = min(max(x, low + tolerance / 2), high - tolerance / 2)
        value = f(x)
        if value > 0:
            low, at_low, at_high = x, value, at_high / 2 if moved == "low" else at_high
            moved = "low"
        else:
            high, at_high, at_low = x, value, at_low / 2 if moved == "high" else at_low
            moved = "high"
        slow = slow + 1 if high - low > width / 2 else 0
    return high
