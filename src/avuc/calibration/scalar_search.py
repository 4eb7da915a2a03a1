"""Search on an interval: Newton's method for a convex function, Brent's method for any other, and a root finder."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from avuc.calibration.scaled_logits import Derivatives

Array = np.ndarray[Any, np.dtype[Any]]
GOLDEN = (3 - math.sqrt(5)) / 2
NEAR_END = 3  # grid points that count as near the end of the range
# a minimum of a loss with jumps counts as an end of the range if log T is this close to that end
NEAR_BOUND = 0.02


class Minimum(NamedTuple):
    """The position and value of a minimum, and whether it is an end of the interval where the function still falls."""

    x: float
    value: float
    at_bound: bool


def newton_minimum(
    at: Callable[[float], Derivatives], start: float, low: float, high: float, tolerance: float
) -> Minimum:
    """Minimise a convex function on [low, high] by Newton's method.

    The sign of each slope shrinks a bracket around the minimum. Once the steps shrink fast, the change of curvature
    estimates the third derivative. It improves the step (Halley's method) and bounds the remaining error, so no
    evaluation is needed to confirm the result.

    Args:
        at: returns value, slope and curvature at x.
        start: first x.
        low: lower end of the interval, above 0.
        high: upper end of the interval.
        tolerance: relative precision of x.

    >>> minimum = newton_minimum(lambda x: Derivatives((x - 2) ** 2, 2 * (x - 2), 2.0), 1.0, 0.1, 10.0, 1e-6)
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
            end = right if here.slope < 0 else left
            if end in seen or end not in (low, high):
                return Minimum(x, here.value, False)
            # a start this close to an end of the interval does not tell whether the function still falls there
            previous, x = x, end
            continue
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
    """Return x if it lies in the bracket, else the end that it passed, or the middle if that end is known already."""
    if left < x < right:
        return x
    end = left if x <= left else right
    return math.sqrt(left * right) if end in seen else end


def brent_minimum(f: Callable[[float], float], low: float, middle: float, high: float, tolerance: float) -> Minimum:
    """Minimise f on [low, high] by Brent's method: parabolas, and golden sections where they fail (Brent 1973).

    Args:
        f: function to minimise; it is not evaluated at the ends.
        low: lower end of the interval.
        middle: first x.
        high: upper end of the interval.
        tolerance: precision of x.

    >>> round(brent_minimum(lambda x: (x - 2) ** 2, 0.0, 1.0, 5.0, 1e-6).x, 5)
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


def grid_minimum(
    loss: Callable[[float], float],
    curve: tuple[Array, Array],
    same: bool,
    neutral: float,
    tolerance: float,
    *,
    rough: bool = False,
    jumps: bool = False,
) -> Minimum:
    """Minimise over log T: take the best point of a grid, and refine it with Brent's method.

    Args:
        loss: loss on all rows.
        curve: temperatures of the grid, and losses there on some of the rows.
        same: whether these are all rows.
        neutral: the T of the result if all temperatures are equally good.
        tolerance: precision of log T.
        rough: whether the loss has small jumps, where rows cross a threshold. A minimum next to the end of the range
            is then taken for the end, unless the loss at the end is clearly higher.
        jumps: whether the loss consists of such jumps only; the same then holds for the last points of the grid.
    """
    temperatures, losses = curve
    if np.ptp(losses) <= 1e-12 * abs(losses[0]):
        # all temperatures are equally good
        return Minimum(math.log(neutral), float(losses[0]), False)
    x, best, end = np.log(temperatures).tolist(), int(np.argmin(losses)), len(losses) - 1
    near_end = 0 if best <= NEAR_END else end if best >= end - NEAR_END else None
    if jumps and near_end is not None and losses[near_end] - losses[best] <= 0.01 * np.ptp(losses):
        return Minimum(x[near_end], loss(temperatures[near_end]), True)
    if not same and loss(temperatures[best]) > loss(temperatures[middle_point := len(x) // 2]):
        # the subsample is misleading
        best = middle_point
    tried = {best}
    while True:
        left, right = max(best - 1, 0), min(best + 1, end)
        middle = x[best] if left < best < right else (x[left] + x[right]) / 2
        minimum = brent_minimum(lambda t: loss(math.exp(t)), x[left], middle, x[right], tolerance / 3)
        edge = left if minimum.x < middle else right
        if rough and edge in (0, end) and abs(minimum.x - x[edge]) < NEAR_BOUND:
            at_end = loss(temperatures[edge])
            if at_end - minimum.value <= NEAR_BOUND * float(np.ptp(losses)):
                return Minimum(x[edge], at_end, True)
        if abs(minimum.x - x[edge]) > 10 * tolerance:
            return minimum
        if edge in (0, end):
            return Minimum(x[edge], loss(temperatures[edge]), True)
        if edge in tried:
            return minimum
        # the best point of the subsample is not next to the best point of all rows
        tried.add(best := edge)


def decreasing_root(
    f: Callable[[float], float], low: float, high: float, at_low: float, at_high: float, tolerance: float
) -> float:
    """Return the x at which a decreasing function crosses 0; f is never positive at the returned x.

    The Illinois variant of the secant method, with bisection where it converges slowly, as for a function with jumps.

    Args:
        f: decreasing function.
        low: lower end of the interval.
        high: upper end of the interval.
        at_low: f(low) > 0.
        at_high: f(high) ≤ 0.
        tolerance: precision of x.

    >>> round(decreasing_root(lambda x: 4 - x * x, 0.0, 5.0, 4.0, -21.0, 1e-9), 6)
    2.0
    """
    moved, slow = "", 0
    while high - low > tolerance:
        width = high - low
        x = high - at_high * width / (at_high - at_low) if slow < 3 else (low + high) / 2
        # not nearer to an end than half the tolerance: the next bracket is then small enough
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
