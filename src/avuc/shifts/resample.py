"""Reading images between their pixels: SciPy's zoom, Pillow's box resize, bilinear look-up, steps along a line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from avuc.shifts.filters import Border, border

__all__ = ["ZoomPlan", "bilinear", "box_resize", "motion_blur", "pick", "zoom"]


@dataclass(frozen=True)
class ZoomPlan:
    """Along one axis: crop `crop` samples from the middle, stretch them to `stretched`, keep the middle `length`."""

    length: int
    crop: int
    stretched: int

    @classmethod
    def of(cls, length: int, factor: float) -> ZoomPlan:
        crop = math.ceil(length / factor)
        return cls(length, crop, max(round(crop * factor), length))

    def taps(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Lower index, upper index and the upper one's weight, for each output; end samples map onto end samples."""
        place = torch.arange(self.length, dtype=torch.float64) + (self.stretched - self.length) // 2
        place *= (self.crop - 1) / max(self.stretched - 1, 1)
        lower = place.floor()
        top = (self.length - self.crop) // 2
        upper = (lower + 1).clamp(max=self.crop - 1)
        return (lower.long() + top).to(device), (upper.long() + top).to(device), (place - lower).float().to(device)


def zoom(values: Tensor, rows: ZoomPlan, columns: ZoomPlan, *, dim: int) -> Tensor:
    """Linear zoom into the middle of images whose rows are axis `dim` and columns the next one; the size stays."""
    for axis, plan in ((dim, rows), (dim + 1, columns)):
        if plan.crop == plan.stretched:
            continue
        lower, upper, weight = plan.taps(values.device)
        shape = [1] * values.ndim
        shape[axis] = plan.length
        values = values.index_select(axis, lower).lerp_(values.index_select(axis, upper), weight.reshape(shape))
    return values


def box_resize(values: Tensor, height: int, width: int) -> Tensor:
    """Pillow's BOX resize of (N, H, W, C) bytes held as floats: columns first, then rows, each rounded to bytes."""
    for dim, size in ((2, width), (1, height)):
        length = values.shape[dim]
        if size == length:
            continue
        index, weights = _box_taps(length, size)
        shape = [1] * values.ndim
        shape[dim] = size
        total = torch.zeros(1, device=values.device)
        for tap in range(index.shape[1]):
            part = values.index_select(dim, torch.from_numpy(index[:, tap]).to(values.device))
            total = part.mul_(torch.from_numpy(weights[:, tap]).to(values).reshape(shape)).add_(total)
        # 2⁻¹² lifts what rounding left just below a half, where exact arithmetic rounds up
        values = total.add_(0.5 + 2.0**-12).floor_()
    return values


def _box_taps(length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Which inputs each output averages, and with what weight: those whose centres lie in the output's box."""
    scale = length / size
    reach = max(scale, 1.0) / 2
    centre = (np.arange(size) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach + 0.5).astype(np.int64), length)
    index = first[:, None] + np.arange((last - first).max())
    offset = (index - centre[:, None] + 0.5) / (2 * reach)
    weights = ((offset > -0.5) & (offset <= 0.5) & (index < last[:, None])).astype(np.float64)
    return np.minimum(index, length - 1), weights / weights.sum(axis=1, keepdims=True)


def pick(values: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """values[n, rows[n], columns[n]] for int32 indices that broadcast to (N, H, W); values (N, H, W, C)."""
    count, height, width, channels = values.shape
    image = torch.arange(count, device=values.device, dtype=torch.int32).view(-1, 1, 1) * (height * width)
    flat = (rows * width + columns).add(image)
    return values.reshape(-1, channels).index_select(0, flat.flatten()).view(*flat.shape, channels)


def bilinear(values: Tensor, rows: Tensor, columns: Tensor, mode: Border) -> Tensor:
    """Linear interpolation of (N, H, W, C) at real coordinates (N, H, W)."""
    height, width = values.shape[1:3]
    top, left = rows.floor(), columns.floor()
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    upper, lower = (border(top + step, height, mode).to(torch.int32) for step in (0, 1))
    near, far = (border(left + step, width, mode).to(torch.int32) for step in (0, 1))
    above = pick(values, upper, near).lerp_(pick(values, upper, far), right)
    below = pick(values, lower, near).lerp_(pick(values, lower, far), right)
    return above.lerp_(below, down)


def motion_blur(values: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """ImageMagick's motion blur of (N, H, W, C): half a Gaussian along a line of whole-pixel steps, edges repeated.

    out(p) = Σᵢ wᵢ·x(p + ⌈i·(cos a, sin a) − ½⌉), i = 0 … 2·radius, one angle a per image.
    """
    height, width = values.shape[1:3]
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    angle = torch.deg2rad(degrees.double())
    row = torch.arange(height, device=values.device, dtype=torch.int32).view(1, -1, 1)
    column = torch.arange(width, device=values.device, dtype=torch.int32).view(1, 1, -1)
    total = torch.zeros_like(values)
    for step, weight in enumerate(weights.tolist()):
        down = (step * angle.sin() - 0.5).ceil().to(torch.int32).view(-1, 1, 1)
        right = (step * angle.cos() - 0.5).ceil().to(torch.int32).view(-1, 1, 1)
        shifted = pick(values, (row + down).clamp(0, height - 1), (column + right).clamp(0, width - 1))
        total.add_(shifted, alpha=weight)
    return total
