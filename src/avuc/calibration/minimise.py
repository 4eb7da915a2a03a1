"""L-BFGS with a preconditioner, for convex problems whose curvature is roughly known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

Evaluate = Callable[[Tensor], tuple[float, Tensor]]
MEMORY = 12
# a step is shortened if it lowers the value by less than this share of what the slope predicts
ENOUGH = 1e-4
MOST_SHORTENINGS = 30


class Optimum(NamedTuple):
    """The position of the minimum, and the length of the last gradient in units of the curvature."""

    theta: Tensor
    length: float


def minimised(
    evaluate: Evaluate, theta: Tensor, solve: Callable[[Tensor], Tensor], tolerance: float, max_iterations: int
) -> Optimum:
    """Return the minimum of a smooth function.

    The search stops when √(gᵀ H⁻¹ g) ≤ tolerance for the gradient g and the approximate Hessian H. The value is then
    about tolerance²/2 above its minimum.

    Args:
        evaluate: returns value and gradient.
        theta: where to start.
        solve: returns H₀⁻¹ g of a gradient g, for a rough Hessian H₀.
        tolerance: length of the gradient at which to stop.
        max_iterations: limit on the iterations.

    >>> import torch
    >>> square = lambda x: (float((x - 3) @ (x - 3)), 2 * (x - 3))
    >>> minimised(square, torch.zeros(2), lambda g: g / 2, 1e-6, 10).theta
    tensor([3., 3.])
    """
    value, gradient = evaluate(theta)
    pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=MEMORY)
    length, size = 0.0, 1.0
    for left in range(max_iterations, -1, -1):
        direction = _newton_step(gradient, pairs, solve, size)
        slope = float((gradient * direction).sum())
        length = max(-slope, 0.0) ** 0.5
        if length <= tolerance or left == 0:
            break
        step = 1.0
        for _ in range(MOST_SHORTENINGS):
            moved = theta + step * direction
            new_value, new_gradient = evaluate(moved)
            end_slope = float((new_gradient * direction).sum())
            # the function falls at both ends of the step, up to the rounding of the values
            falling = end_slope <= 0 and new_value <= value + 1e-9 * abs(value)
            if falling or new_value <= value + ENOUGH * step * slope:
                break
            curvature = (end_slope - slope) / step
            step *= min(max(-slope / (curvature * step), 0.1), 0.7) if curvature > 0 else 0.5
        else:
            break
        change, turn = moved - theta, new_gradient - gradient
        product = float((change * turn).sum())
        if product > 1e-10 * float((change * change).sum()) ** 0.5 * float((turn * turn).sum()) ** 0.5:
            pairs.append((change, turn, product))
            size = product / float((turn * solve(turn)).sum())
        theta, value, gradient = moved, new_value, new_gradient
    return Optimum(theta, length)


def _newton_step(
    gradient: Tensor, pairs: deque[tuple[Tensor, Tensor, float]], solve: Callable[[Tensor], Tensor], size: float
) -> Tensor:
    """Return −H⁻¹ g by the two loops of L-BFGS; `size` scales the rough Hessian to the last step."""
    q, shares = gradient, []
    for change, turn, product in reversed(pairs):
        share = float((change * q).sum()) / product
        q = q - share * turn
        shares.append(share)
    q = solve(q) * size
    for (change, turn, product), share in zip(pairs, reversed(shares), strict=True):
        q = q + (share - float((turn * q).sum()) / product) * change
    return -q
