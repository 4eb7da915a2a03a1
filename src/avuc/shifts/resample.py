"""Interpolation: SciPy's zoom, Pillow's box resize, bilinear interpolation, motion blur along a line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from avuc.shifts.filters import Border, border


@dataclass(frozen=True)
class ZoomPlan:
    """Zoom along one axis: crop the central `crop` samples, stretch them to `stretched`, keep the central `length`."""

    length: int
    crop: int
    stretched: int

    @classmethod
    def of(cls, length: int, factor: float) -> ZoomPlan:
        """Return the plan for `length` samples and a zoom factor of at least 1."""
        crop = math.ceil(length / factor)
        return cls(length, crop, max(round(crop * factor), length))

    def taps(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return lower index, upper index and weight of the upper one per output; end samples map to end samples."""
        position = torch.arange(self.length, dtype=torch.float64) + (self.stretched - self.length) // 2
        position *= (self.crop - 1) / max(self.stretched - 1, 1)
        lower = position.floor()
        top = (self.length - self.crop) // 2
        upper = (lower + 1).clamp(max=self.crop - 1)
        return (lower.long() + top).to(device), (upper.long() + top).to(device), (position - lower).float().to(device)


def zoom(values: Tensor, rows: ZoomPlan, columns: ZoomPlan, *, dim: int) -> Tensor:
    """Zoom linearly into the centre of images whose rows are axis `dim` and columns the next one; keep the size."""
    for axis, plan in ((dim, rows), (dim + 1, columns)):
        if plan.crop == plan.stretched:
            continue
        lower, upper, weight = plan.taps(values.device)
        shape = [1] * values.ndim
        shape[axis] = plan.length
        values = values.index_select(axis, lower).lerp_(values.index_select(axis, upper), weight.reshape(shape))
    return values


def box_resize(values: Tensor, height: int, width: int) -> Tensor:
    """Resize (N, H, W, C) whole numbers like Pillow's BOX filter: columns, then rows, each rounded to bytes."""
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
        # 2⁻¹² corrects values that float32 rounding put just below a half, which exact arithmetic rounds up
        values = total.add_(0.5 + 2.0**-12).floor_()
    return values


def _box_taps(length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs of each output and their weights: an output averages the inputs with centres in its box."""
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
    """Return values[n, rows[n], columns[n]] for values (N, H, W, C) and int32 indices that broadcast to (N, H, W)."""
    count, height, width, channels = values.shape
    image = torch.arange(count, device=values.device, dtype=torch.int32).view(-1, 1, 1) * (height * width)
    flat = (rows * width + columns).add(image)
    return values.reshape(-1, channels).index_select(0, flat.flatten()).view(*flat.shape, channels)


def bilinear(values: Tensor, rows: Tensor, columns: Tensor, mode: Border) -> Tensor:
    """Interpolate (N, H, W, C) bilinearly at real coordinates (N, H, W)."""
    height, width = values.shape[1:3]
    top, left = rows.floor(), columns.floor()
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    upper, lower = (border(top + step, height, mode).to(torch.int32) for step in (0, 1))
    near, far = (border(left + step, width, mode).to(torch.int32) for step in (0, 1))
    above = pick(values, upper, near).lerp_(pick(values, upper, far), right)
    below = pick(values, lower, near).lerp_(pick(values, lower, far), right)
    return above.lerp_(below, down)


def nearest(values: Tensor, rows: Tensor, columns: Tensor, mode: Border) -> Tensor:
    """Read (N, H, W, C), of any type, at the pixels nearest to real coordinates (N, H, W)."""
    height, width = values.shape[1:3]
    near_row, near_column = (
        border((coordinate + 0.5).floor(), size, mode).long() for coordinate, size in ((rows, height), (columns, width))
    )
    return pick(values, near_row.to(torch.int32), near_column.to(torch.int32))


def motion_blur(values: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """Blur (N, H, W, C) like ImageMagick's motion blur: half a Gaussian along a line of whole pixels, edges repeated.

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
