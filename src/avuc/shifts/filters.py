"""Correlation with small kernels, computed as sums of shifted copies.

A sum of shifted copies has the same order of additions for every batch; matrix products and convolution routines do not
guarantee that. Borders follow SciPy ("nearest", "reflect") and OpenCV ("mirror", there called REFLECT_101).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Border = Literal["nearest", "reflect", "mirror"]


def border(index: Tensor, length: int, mode: Border) -> Tensor:
    """Map indices outside 0…length − 1 into that range: nearest aaa|abc, reflect cba|abc, mirror dcb|abcd.

    Args:
        index: whole numbers, of an integer or a float dtype; the result has the same dtype. Floats are faster.
        length: number of samples.
        mode: the border.

    >>> border(torch.tensor([-2, -1, 3, 4]), 3, "reflect").tolist()
    [1, 0, 2, 1]
    """
    if mode == "nearest" or length == 1:
        return index.clamp(0, length - 1)
    last = 2 * length - (1 if mode == "reflect" else 2)
    period = last + 1 if mode == "reflect" else last
    if index.is_floating_point():
        wrapped = index - (index / period).floor_().mul_(period)
    else:
        wrapped = index.remainder(period)
    return torch.minimum(wrapped, last - wrapped)


def padded(values: Tensor, dim: int, before: int, after: int, mode: Border) -> Tensor:
    """Return `values` with `before` and `after` border samples added along one axis."""
    if not before and not after:
        return values
    length = values.shape[dim]
    index = torch.arange(-before, length + after, device=values.device)
    return values.index_select(dim, border(index, length, mode))


def gaussian_weights(sigma: float, truncate: float) -> list[float]:
    """Return the weights of SciPy's Gaussian filter: radius ⌊truncate·σ + ½⌋, sum 1.

    >>> gaussian_weights(0.1, 4.0)
    [1.0]
    """
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return [1.0]
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return [float(weight) for weight in weights / weights.sum()]


def correlate_axis(values: Tensor, weights: Sequence[float], dim: int, mode: Border) -> Tensor:
    """Return Σₖ wₖ·x[i + k − r] along one axis, with radius r."""
    radius, length = len(weights) // 2, values.shape[dim]
    if radius == 0:
        return values * weights[0]
    if len(weights) > 2 * length:
        return _correlate_folded(values, weights, dim, mode)
    source = padded(values, dim, radius, radius, mode)
    total = source.narrow(dim, 0, length) * weights[0]
    for tap, weight in enumerate(weights[1:], start=1):
        total.add_(source.narrow(dim, tap, length), alpha=weight)
    return total


def _correlate_folded(values: Tensor, weights: Sequence[float], dim: int, mode: Border) -> Tensor:
    """Like `correlate_axis`, for kernels wider than the image: weights of the same sample are added first."""
    length, radius = values.shape[dim], len(weights) // 2
    reach = torch.arange(length)[:, None] + torch.arange(-radius, radius + 1)
    matrix = torch.zeros(length, length, dtype=torch.float64)
    matrix.scatter_add_(
        1, border(reach, length, mode), torch.tensor(weights, dtype=torch.float64).expand(length, -1).contiguous()
    )
    return along_axis(values, matrix, dim)


def along_axis(values: Tensor, matrix: Tensor, dim: int) -> Tensor:
    """Apply a square matrix along one axis; terms are added in the order of the matrix's columns."""
    shape = [1] * values.ndim
    shape[dim] = len(matrix)
    columns = matrix.to(values)
    total = torch.zeros_like(values)
    for sample in range(len(matrix)):
        total.addcmul_(columns[:, sample].reshape(shape), values.narrow(dim, sample, 1))
    return total


def gaussian_blur(values: Tensor, sigma: float, *, mode: Border = "nearest", truncate: float = 4.0) -> Tensor:
    """Smooth the rows and columns of (N, H, W) or (N, H, W, C) with a Gaussian."""
    weights = gaussian_weights(sigma, truncate)
    return correlate_axis(correlate_axis(values, weights, 1, mode), weights, 2, mode)


def box_blur(values: Tensor) -> Tensor:
    """Return the sums over 3×3 pixels of (N, H, W), with mirrored borders; divide by 9 for the mean."""
    ones = [1.0, 1.0, 1.0]
    return correlate_axis(correlate_axis(values, ones, 1, "mirror"), ones, 2, "mirror")


def correlate(values: Tensor, kernel: NDArray[np.float64], mode: Border) -> Tensor:
    """Correlate (N, H, W) or (N, H, W, C) with a kernel of odd sides; zeros of the kernel are skipped."""
    height, width = values.shape[1:3]
    rows, columns = kernel.shape[0] // 2, kernel.shape[1] // 2
    source = padded(padded(values, 1, rows, rows, mode), 2, columns, columns, mode)
    total = torch.zeros_like(values)
    for row, column in zip(*np.nonzero(kernel), strict=True):
        shifted = source[:, row : row + height, column : column + width]
        total.add_(shifted, alpha=float(kernel[row, column]))
    return total
