"""Blurs: Gaussian, defocus, glass, motion, zoom."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from avuc.shifts import filters, resample
from avuc.shifts.pixels import to_bytes, unit
from avuc.shifts.protocol import Corruption
from avuc.shifts.streams import streams


def _gaussian(images: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """Gaussian filter of width σ, cut at 4σ; edge pixels are repeated."""
    return to_bytes(filters.gaussian_blur(unit(images), sigma))


@lru_cache(maxsize=32)
def _disk(radius: float, alias_sigma: float) -> NDArray[np.float64]:
    """Return a disk, smoothed by a Gaussian of 3×3 pixels (5×5 above radius 8) with mirrored borders."""
    reach = max(8, int(radius))
    grid = np.arange(-reach, reach + 1)
    disk = (grid[:, None] ** 2 + grid**2 <= radius**2).astype(np.float64)
    taps = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    weights = np.exp(-0.5 * (taps / alias_sigma) ** 2)
    weights /= weights.sum()
    kernel = torch.from_numpy(disk / disk.sum())[None]
    for dim in (1, 2):
        kernel = filters.correlate_axis(kernel, list(map(float, weights)), dim, "mirror")
    smooth: NDArray[np.float64] = kernel[0].numpy()
    smooth[smooth < 1e-7] = 0  # together less than 1/1000 grey level; each one would cost a shifted copy
    return smooth


def _defocus(images: Tensor, constants: tuple[float, float], generator: torch.Generator) -> Tensor:
    """(radius, σ): correlation with a disk smoothed by σ."""
    return to_bytes(filters.correlate(unit(images), _disk(*constants), "mirror"))


def _zoom(images: Tensor, factors: tuple[float, ...], generator: torch.Generator) -> Tensor:
    """Mean of the image and its zooms by each factor. Factors with the same plan are computed once."""
    height, width = images.shape[1:3]
    plans = Counter((resample.ZoomPlan.of(height, factor), resample.ZoomPlan.of(width, factor)) for factor in factors)
    # with images as the last axis, rows and columns are contiguous in memory
    values = unit(images.permute(1, 2, 3, 0).contiguous())
    total = values.clone()
    for (rows, columns), times in plans.items():
        total.add_(resample.zoom(values, rows, columns, dim=0), alpha=times)
    return to_bytes(total.div_(len(factors) + 1)).permute(3, 0, 1, 2).contiguous()


def _motion(images: Tensor, constants: tuple[int, float], generator: torch.Generator) -> Tensor:
    """(radius, σ): motion blur in a random direction within 45° of the horizontal, rounded as in ImageMagick."""
    radius, sigma = constants
    degrees = streams(images, generator).uniform(1)[:, 0] * 90 - 45
    return resample.motion_blur(images.float(), radius, sigma, degrees).round_().clamp_(0, 255).to(torch.uint8)


def _glass(images: Tensor, constants: tuple[float, int, int], generator: torch.Generator) -> Tensor:
    """(σ, d, passes): blur, replace pixels by random neighbours, blur.

    A pass of the published generator goes from the last row and column down to d + 1 and overwrites each pixel with the
    one at a random offset in [−d, d − 1]² (it does not swap them). A source that the pass has not reached yet has its
    old value; one that it has passed was overwritten, so its own source counts. Following these links by doubling gives
    the exact result of the pass with a few gathers over all images.
    """
    sigma, reach, passes = constants
    count, height, width, channels = images.shape
    values = to_bytes(filters.gaussian_blur(unit(images), sigma))
    random = streams(images, generator)
    position = torch.arange(height * width, device=images.device).view(height, width)
    low, rows, columns = reach + 1, height - 2 * reach, width - 2 * reach
    source = position.expand(count, -1, -1).flatten(1)
    for _ in range(passes if min(rows, columns) > 0 else 0):
        offset = (random.bits16(2, rows, columns) * (2 * reach) >> 16) - reach
        move = offset[:, 0] * width + offset[:, 1]
        link = position.repeat(count, 1, 1)
        link[:, low : low + rows, low : low + columns] += move
        source = source.gather(1, _walk(link.flatten(1)))
    pixels = values.view(count, -1, channels)
    moved = pixels.gather(1, source[..., None].expand(-1, -1, channels)).view_as(images)
    return to_bytes(filters.gaussian_blur(unit(moved), sigma))


# a link points to an overwritten pixel with probability < ½, so a chain of 2⁶ links has probability < 2⁻⁶⁴
_DOUBLINGS = 6


def _walk(link: Tensor) -> Tensor:
    """Return, for links (N, P) and a pass from last to first, the pixel whose old value each pixel gets."""
    position = torch.arange(link.shape[1], device=link.device)
    overwritten = link > position
    if link.device.type == "cpu" and not overwritten.any():
        return link  # with d = 1 no source was overwritten
    end = torch.where(overwritten, link, position)
    for _ in range(_DOUBLINGS):
        end = end.gather(1, end)
    return link.gather(1, end)


def _factors(stop: float, step: float) -> tuple[float, ...]:
    # rounding in arange decides whether the end is included: 7, 12, 16, 21 and 26 factors for CIFAR
    return tuple(np.arange(1, stop, step).tolist())


gaussian_blur: Corruption = Corruption(_gaussian, (0.4, 0.6, 0.7, 0.8, 1), (1, 2, 3, 4, 6))
defocus_blur: Corruption = Corruption(
    _defocus,
    ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
)
glass_blur: Corruption = Corruption(
    _glass,
    ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
)
motion_blur: Corruption = Corruption(
    _motion,
    ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
)
zoom_blur: Corruption = Corruption(
    _zoom,
    tuple(_factors(stop, 0.01) for stop in (1.06, 1.11, 1.16, 1.21, 1.26)),
    (_factors(1.11, 0.01), _factors(1.16, 0.01), _factors(1.21, 0.02), _factors(1.26, 0.02), _factors(1.31, 0.03)),
)
