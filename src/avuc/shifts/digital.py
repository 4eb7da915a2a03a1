"""Digital corruptions: contrast, saturation, pixelation, elastic distortion. JPEG is in `jpeg.py`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from avuc.shifts import filters, resample
from avuc.shifts.filters import Border
from avuc.shifts.pixels import to_bytes, unit
from avuc.shifts.protocol import Corruption
from avuc.shifts.streams import ImageStreams, streams


def _contrast(images: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    """m + factor·(x − m), where m is the mean of the channel over the image."""
    # a sum of integers is exact, so it does not depend on the batch
    total = images.sum((1, 2), keepdim=True, dtype=torch.int64)
    mean = (total.double() / (255 * images.shape[1] * images.shape[2])).float()
    return to_bytes(unit(images).sub_(mean).mul_(factor).add_(mean))


def _saturate(images: Tensor, constants: tuple[float, float], generator: torch.Generator) -> Tensor:
    """(a, b): HSV saturation S′ = a·S + b, clipped to [0, 1]; hue and value do not change.

    A channel is V·(1 − S·f) with f in [0, 1] given by the hue. Grey pixels have hue 0 (red): f = (0, 1, 1).
    """
    if images.shape[3] == 1:
        return images.clone()
    factor, shift = constants
    values = unit(images)
    value, least = values.amax(3, keepdim=True), values.amin(3, keepdim=True)
    chroma = value - least
    saturation = torch.where(value > 0, chroma / value, 0).mul_(factor).add_(shift).clamp_(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0], device=images.device)
    hue = torch.where(chroma > 0, (value - values) / chroma, red)
    return to_bytes(value - value * saturation * hue)


def _pixelate(images: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    """Resize to factor·side with a box filter, and back."""
    height, width = images.shape[1:3]
    small = resample.box_resize(images.float(), max(1, int(height * factor)), max(1, int(width * factor)))
    return resample.box_resize(small, height, width).to(torch.uint8)


def _elastic(images: Tensor, constants: tuple[float, float, float], generator: torch.Generator) -> Tensor:
    """(α, σ, jitter), in units of the shorter side: a random affine map, then smooth random displacements.

    The affine map moves three corners of the central square by up to ±jitter. Displacements are α times uniform numbers
    in (−1, 1), smoothed by a Gaussian of width σ cut at 3σ.
    """
    values = unit(images)
    for rows, columns, mode in _elastic_steps(images, constants, generator):
        values = resample.bilinear(values, rows, columns, mode)
    return to_bytes(values)


def _elastic_labels(
    images: Tensor, labels: Tensor, constants: tuple[float, float, float], generator: torch.Generator
) -> Tensor:
    """Move labels (N, H, W) as `_elastic` moves the pixels of their images: each is the label of the nearest pixel."""
    values = labels[..., None]
    for rows, columns, mode in _elastic_steps(images, constants, generator):
        values = resample.nearest(values, rows, columns, mode)
    return values[..., 0]


def _elastic_steps(
    images: Tensor, constants: tuple[float, float, float], generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, Border]]:
    """Yield, for one map after the other, the rows and columns (N, H, W) at which pixels are read, and the border."""
    height, width = images.shape[1:3]
    side = min(height, width)
    alpha, sigma, jitter = (constant * side for constant in constants)
    random = streams(images, generator)
    row = torch.arange(height, device=images.device, dtype=torch.float32).view(1, -1, 1)
    column = torch.arange(width, device=images.device, dtype=torch.float32).view(1, 1, -1)
    if side >= 3:
        yield *_affine(random, row, column, jitter), "mirror"
    if alpha == 0:
        return
    field = random.uniform(2 * height, width).mul_(2).sub_(1).view(-1, height, width)
    down, right = (
        filters.gaussian_blur(field, sigma, mode="reflect", truncate=3).mul_(alpha).view(-1, 2, height, width).unbind(1)
    )
    yield row + down, column + right, "reflect"


def _affine(random: ImageStreams, row: Tensor, column: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """Return the rows and columns (N, H, W) at which each pixel of the mapped image is read.

    If the corners p₁, p₂, p₃ are mapped to q₁, q₂, q₃, the pixel q₂ + a·(q₁ − q₂) + b·(q₃ − q₂) is read at
    p₂ + a·(p₁ − p₂) + b·(p₃ − p₂).
    """
    height, width = row.shape[1], column.shape[2]
    reach = min(height, width) // 3
    x, y = width // 2, height // 2
    corners = torch.tensor(
        [[x + reach, y + reach], [x + reach, y - reach], [x - reach, y - reach]],
        dtype=torch.float32,
        device=row.device,
    )
    moved = random.uniform(3, 2).mul_(2).sub_(1).mul_(jitter).add_(corners)[..., None, None]
    origin = moved[:, 1]
    first, second = moved[:, 0] - origin, moved[:, 2] - origin
    across, down = column - origin[:, 0], row - origin[:, 1]
    area = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    a = (across * second[:, 1] - down * second[:, 0]) / area
    b = (first[:, 0] * down - first[:, 1] * across) / area
    return a.mul_(2 * reach).add_(y - reach), b.mul_(-2 * reach).add_(x + reach)


contrast: Corruption = Corruption(_contrast, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05))
saturate: Corruption = Corruption(
    _saturate,
    ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
)
pixelate: Corruption = Corruption(_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25))
# ImageNet-C's constants are written for 244 pixels but applied to images of 224
_OVER = 244 / 224
elastic_transform: Corruption = Corruption(
    _elastic,
    ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    tuple(
        (alpha * _OVER, sigma * _OVER, jitter * _OVER)
        for alpha, sigma, jitter in (
            (2, 0.7, 0.1),
            (2, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        )
    ),
    labels=_elastic_labels,
)
