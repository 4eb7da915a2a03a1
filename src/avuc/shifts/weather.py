"""Weather: fog, frost, snow, brightness; drops on the lens have their own file."""

from __future__ import annotations

import torch
from torch import Tensor

from avuc.shifts import resample
from avuc.shifts.frost_pictures import Scale, frost_pictures
from avuc.shifts.pixels import grey, to_bytes, unit
from avuc.shifts.plasma import plasma
from avuc.shifts.protocol import Corruption
from avuc.shifts.streams import streams

__all__ = ["brightness", "fog", "frost", "snow"]


def _brightness(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """HSV value + amount, clipped at 1. Hue and saturation stay, so every channel scales by V′/V; black turns grey."""
    values = unit(images)
    value = values.amax(3, keepdim=True)
    brighter = (value + amount).clamp_(max=1)
    return to_bytes(torch.where(value > 0, values * (brighter / value), brighter))


def _fog(images: Tensor, constants: tuple[float, float], generator: torch.Generator) -> Tensor:
    """(x + weight·plasma)·m/(m + weight), m the image's largest value."""
    weight, decay = constants
    values = unit(images)
    cloud = plasma(streams(images, generator), images.shape[1], images.shape[2], decay)
    most = values.amax((1, 2, 3), keepdim=True)
    return to_bytes(values.add_(cloud[..., None], alpha=weight).mul_(most / (most + weight)))


def _frost(images: Tensor, constants: tuple[float, float, Scale], generator: torch.Generator) -> Tensor:
    """a·x + b·(a random part of a random frost picture), truncated."""
    image_weight, frost_weight, scale = constants
    height, width, channels = images.shape[1:]
    pictures = frost_pictures(height, width, scale, images.device)
    random = streams(images, generator)
    which = random.below(torch.full_like(random.keys, len(pictures.start)))
    top = random.below(pictures.height[which] - height)
    left = random.below(pictures.width[which] - width)
    row = torch.arange(height, device=images.device).view(1, -1, 1) + top.view(-1, 1, 1)
    column = torch.arange(width, device=images.device) + left.view(-1, 1, 1)
    place = row * pictures.width[which].view(-1, 1, 1) + column + pictures.start[which].view(-1, 1, 1)
    ice = unit(pictures.pixels.index_select(0, place.flatten()).view(*place.shape, 3))
    if channels == 1:
        ice = grey(ice)[..., None]
    return to_bytes(ice.mul_(frost_weight).add_(unit(images), alpha=image_weight))


def _snow(
    images: Tensor, constants: tuple[float, float, float, float, int, float, float], g: torch.Generator
) -> Tensor:
    """(mean, std, zoom, cut, radius, σ, keep): flakes are zoomed noise above a cut, blurred along the fall, laid twice.

    The ground is whitened first: keep·x + (1 − keep)·max(x, 1.5·grey + 0.5).
    """
    mean, std, factor, cut, radius, sigma, keep = constants
    height, width = images.shape[1:3]
    random = streams(images, g)
    flakes = random.normal(height, width).mul_(std).add_(mean)
    flakes = resample.zoom(flakes, resample.ZoomPlan.of(height, factor), resample.ZoomPlan.of(width, factor), dim=1)
    flakes = flakes.masked_fill(flakes < cut, 0).clamp_(0, 1).mul_(255).floor_()[..., None]
    degrees = random.uniform(1)[:, 0] * 90 - 135
    layer = resample.motion_blur(flakes, radius, sigma, degrees).round_().clamp_(0, 255).div_(255)
    values = unit(images)
    white = torch.maximum(values, grey(values)[..., None] * 1.5 + 0.5)
    ground = values.mul_(keep).add_(white, alpha=1 - keep)
    return to_bytes(ground.add_(layer).add_(layer.flip((1, 2))))


brightness = Corruption(_brightness, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5))
fog = Corruption(
    _fog,
    ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
)
frost = Corruption(
    _frost,
    tuple((a, b, "fifth") for a, b in ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    tuple((a, b, "full") for a, b in ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))),
)
snow = Corruption(
    _snow,
    (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
)
