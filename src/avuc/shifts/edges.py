"""Canny edges and the distance to them for batches, as OpenCV computes them; `spatter` shades water drops with them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from avuc.shifts.filters import padded


def canny(grey: Tensor, low: int, high: int) -> Tensor:
    """Return the edges (N, H, W) bool of integer grey levels: Sobel, thinning along the gradient, hysteresis."""
    level = padded(padded(grey.to(torch.int32), 1, 1, 1, "nearest"), 2, 1, 1, "nearest")
    across = level[:, :, 2:] - level[:, :, :-2]
    across = across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:]
    down = level[:, 2:] - level[:, :-2]
    down = down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:]
    strength = across.abs() + down.abs()
    thin = (strength > low) & _is_ridge(strength, across, down)
    return _connected(thin & (strength > high), thin)


def _is_ridge(strength: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Return where no neighbour along the gradient (rounded to 45°) is stronger."""
    height, width = strength.shape[1:]
    framed = pad(strength, (1, 1, 1, 1))

    def at(row: int, column: int) -> Tensor:
        return framed[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    x, y = across.abs(), down.abs() << 15  # at most 1020 · 2¹⁶: fits 32 bits
    flat = x * 13573  # tan 22.5° in 15-bit fixed point; tan 67.5° = tan 22.5° + 2
    steep = flat + (x << 16)
    horizontal = (strength > at(0, -1)) & (strength >= at(0, 1))
    vertical = (strength > at(-1, 0)) & (strength >= at(1, 0))
    falling = (strength > at(-1, -1)) & (strength > at(1, 1))
    rising = (strength > at(-1, 1)) & (strength > at(1, -1))
    diagonal = torch.where((across ^ down) < 0, rising, falling)
    return torch.where(y < flat, horizontal, torch.where(y > steep, vertical, diagonal))


def _connected(seed: Tensor, allowed: Tensor) -> Tensor:
    """Return all pixels of `allowed` that are connected to `seed` through 8-neighbours."""
    while True:
        grown = seed
        for _ in range(4):
            framed = pad(grown, (1, 1, 1, 1))
            wide = framed[:, :, :-2] | framed[:, :, 1:-1] | framed[:, :, 2:]
            grown = (wide[:, :-2] | wide[:, 1:-1] | wide[:, 2:]) & allowed
        if torch.equal(grown, seed):
            return seed
        seed = grown


def distance_to(edges: Tensor, most: int) -> Tensor:
    """Return the 5×5 chamfer distance (steps 1, 1.4 and 2.1969) to the nearest edge, at most `most`, float32 (N, H, W).

    For every vertical offset the distance grows with the horizontal one, so the nearest edge of each row is enough.
    """
    near = _along_row(edges, most).flatten()
    table = _chamfer(most).to(edges.device)
    best = table[0].index_select(0, near).view(edges.shape)
    for step in range(1, min(edges.shape[1] - 1, most) + 1):
        if edges.device.type == "cpu" and step >= float(best.amax()):
            break  # rows farther away cannot be nearer
        cost = table[step].index_select(0, near).view(edges.shape)
        torch.minimum(best[:, step:], cost[:, :-step], out=best[:, step:])
        torch.minimum(best[:, :-step], cost[:, step:], out=best[:, :-step])
    return best


def _along_row(edges: Tensor, most: int) -> Tensor:
    """Return the distance in pixels to the nearest edge of the same row; `most` + 1 if none is that near."""
    width = edges.shape[2]
    column = torch.arange(width, device=edges.device)
    far = 2 * (width + most)
    left = column - torch.where(edges, column, -far).cummax(2).values
    right = torch.where(edges, column, far).flip(2).cummin(2).values.flip(2) - column
    return torch.minimum(left, right).clamp_(max=most + 1)


def _chamfer(most: int) -> Tensor:
    """Return the distance of each offset, (most + 1, most + 2), at most `most`; the last column means no edge."""
    rows, columns = torch.meshgrid(torch.arange(most + 1.0), torch.arange(most + 2.0), indexing="ij")
    long, short = torch.maximum(rows, columns), torch.minimum(rows, columns)
    # near the axis: knight's moves and straight steps; near the diagonal: knight's moves and diagonal steps
    straight = 2.1969 * short + (long - 2 * short)
    diagonal = 2.1969 * (long - short) + 1.4 * (2 * short - long)
    table = torch.where(long >= 2 * short, straight, diagonal).clamp_(max=most)
    table[:, -1] = most
    return table
