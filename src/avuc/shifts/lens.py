"""Spatter: drops of water or mud on the lens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from avuc.shifts import edges, filters
from avuc.shifts.pixels import grey, to_bytes, unit
from avuc.shifts.protocol import Corruption
from avuc.shifts.streams import streams

_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)
_RELIEF = np.array([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
_FARTHEST = 20


def _spatter(
    images: Tensor, constants: tuple[float, float, float, float, float, bool], generator: torch.Generator
) -> Tensor:
    """(mean, std, σ, cut, strength, mud): drops are where noise, smoothed by σ, exceeds `cut`."""
    mean, std, sigma, cut, strength, mud = constants
    noise = streams(images, generator).normal(*images.shape[1:3]).mul_(std).add_(mean)
    liquid = filters.gaussian_blur(noise, sigma)
    liquid = liquid.masked_fill(liquid < cut, 0)
    if mud:
        cover = filters.gaussian_blur((liquid > cut).float(), strength)
        cover = cover.masked_fill(cover < 0.8, 0)[..., None]
        return to_bytes(unit(images) * (1 - cover) + cover * _colour(_MUD, images))
    return to_bytes(unit(images) + _shine(liquid, strength)[..., None] * _colour(_WATER, images))


def _shine(liquid: Tensor, strength: float) -> Tensor:
    """Return the brightness of the water (N, H, W): depth times a relief of the distance to the edges of drops."""
    depth = liquid.mul(255).to(torch.int32).bitwise_and_(255)
    distance = edges.distance_to(edges.canny(depth, 50, 150), _FARTHEST)
    relief = _equalised(filters.box_blur(distance).div_(9).floor_())
    relief = filters.correlate(relief, _RELIEF, "mirror").clamp_(0, 255)
    shine = filters.box_blur(relief).div_(9).round_().mul_(depth)
    most = shine.amax((1, 2), keepdim=True)
    # without drops the maximum is 0; the published generator divides 0 by 0 there
    return torch.where(most > 0, shine / most, 0).mul_(strength)


def _equalised(levels: Tensor) -> Tensor:
    """Equalise the histogram of whole levels 0…20 to 0…255 like OpenCV: the lowest level present becomes 0."""
    flat = levels.flatten(1).long()
    histogram = torch.zeros(len(flat), _FARTHEST + 1, dtype=torch.int64, device=levels.device)
    histogram.scatter_add_(1, flat, torch.ones_like(flat))
    up_to = histogram.cumsum(1)
    at_lowest = histogram.gather(1, flat.amin(1, keepdim=True))
    spread = flat.shape[1] - at_lowest
    table = ((up_to - at_lowest) * 255 / spread).round_()
    equal = table.gather(1, flat).view_as(levels)
    return torch.where(spread[..., None] > 0, equal, levels)


def _colour(colour: tuple[float, float, float], images: Tensor) -> Tensor:
    shade = torch.tensor(colour, device=images.device).view(1, 1, 1, 3)
    return shade if images.shape[3] == 3 else grey(shade)[..., None]


spatter: Corruption = Corruption(
    _spatter,
    (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    (
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ),
)
