"""Weather: brightness, fog, frost, snow. Drops on the lens are in `lens.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from avuc.shifts import resample
from avuc.shifts.frost_pictures import Scale, frost_pictures
from avuc.shifts.pixels import grey, to_bytes, unit
from avuc.shifts.protocol import Corruption
from avuc.shifts.streams import ImageStreams, streams


def _brightness(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """HSV value V′ = min(V + amount, 1). Hue and saturation stay: channels scale by V′/V, and black becomes grey."""
    values = unit(images)
    value = values.amax(3, keepdim=True)
    brighter = (value + amount).clamp_(max=1)
    return to_bytes(torch.where(value > 0, values * (brighter / value), brighter))


def _fog(images: Tensor, constants: tuple[float, float], generator: torch.Generator) -> Tensor:
    """(weight, decay): (x + weight·plasma)·m/(m + weight), where m is the largest value of the image."""
    weight, decay = constants
    values = unit(images)
    cloud = plasma(streams(images, generator), images.shape[1], images.shape[2], decay)
    most = values.amax((1, 2, 3), keepdim=True)
    return to_bytes(values.add_(cloud[..., None], alpha=weight).mul_(most / (most + weight)))


def plasma(random: ImageStreams, height: int, width: int, decay: float) -> Tensor:
    """Return random clouds (N, height, width) in [0, 1], by the diamond-square algorithm on a torus.

    Source: Fournier, Fussell & Carpenter 1982. On the smallest square with a power of two as side that covers the
    image, each level sets the centres of squares, then of diamonds, to the mean of their four neighbours plus a uniform
    number in ±w², then divides w (100 at first) by `decay`.

    Args:
        random: the streams of N images.
        height, width: size of the image.
        decay: larger values give smoother clouds.
    """
    side = max(2, 1 << (max(height, width) - 1).bit_length())
    cloud = torch.zeros(len(random.keys), side, side, device=random.keys.device)
    step, wibble = side, 100.0
    while step >= 2:
        half, cells = step // 2, side // step
        noise = random.uniform(3, cells, cells).mul_(2).sub_(1).mul_(wibble * wibble)
        corner = cloud[:, ::step, ::step]
        right, below = corner.roll(-1, 2), corner.roll(-1, 1)
        centre = (corner + right + below + right.roll(-1, 1)).mul_(0.25).add_(noise[:, 0])
        cloud[:, half::step, half::step] = centre
        top = (corner + right + centre + centre.roll(1, 1)).mul_(0.25).add_(noise[:, 1])
        left = (corner + below + centre + centre.roll(1, 2)).mul_(0.25).add_(noise[:, 2])
        cloud[:, ::step, half::step] = top
        cloud[:, half::step, ::step] = left
        step, wibble = half, wibble / decay
    # the square is normalised before the image is cut out, as in the published generator
    low, high = cloud.amin((1, 2), keepdim=True), cloud.amax((1, 2), keepdim=True)
    return cloud.sub_(low).div_(high - low)[:, :height, :width]


def _frost(images: Tensor, constants: tuple[float, float, Scale], generator: torch.Generator) -> Tensor:
    """(a, b, scale): a·x + b·(a random part of a random frost picture), truncated."""
    image_weight, frost_weight, scale = constants
    height, width, channels = images.shape[1:]
    pictures = frost_pictures(height, width, scale, images.device)
    random = streams(images, generator)
    which = random.below(torch.full_like(random.keys, len(pictures.start)))
    top = random.below(pictures.height[which] - height)
    left = random.below(pictures.width[which] - width)
    row = torch.arange(height, device=images.device).view(1, -1, 1) + top.view(-1, 1, 1)
    column = torch.arange(width, device=images.device) + left.view(-1, 1, 1)
    position = row * pictures.width[which].view(-1, 1, 1) + column + pictures.start[which].view(-1, 1, 1)
    ice = unit(pictures.pixels.index_select(0, position.flatten()).view(*position.shape, 3))
    if channels == 1:
        ice = grey(ice)[..., None]
    return to_bytes(ice.mul_(frost_weight).add_(unit(images), alpha=image_weight))


def _snow(
    images: Tensor, constants: tuple[float, float, float, float, int, float, float], g: torch.Generator
) -> Tensor:
    """(mean, std, zoom, cut, radius, σ, keep): snow flakes over a whitened image.

    Flakes are zoomed noise above `cut`, blurred in the direction in which they fall, and added twice, the second time
    rotated by 180°. The image is first whitened to keep·x + (1 − keep)·max(x, 1.5·grey + 0.5).
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


brightness: Corruption = Corruption(_brightness, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5))
fog: Corruption = Corruption(
    _fog,
    ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
)
frost: Corruption = Corruption(
    _frost,
    tuple((a, b, "fifth") for a, b in ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    tuple((a, b, "full") for a, b in ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))),
)
snow: Corruption = Corruption(
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
