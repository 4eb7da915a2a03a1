"""Diamond-square plasma: the cloud that fog is made of (Fournier, Fussell & Carpenter 1982), on a torus."""

from __future__ import annotations

import torch
from torch import Tensor

from avuc.shifts.streams import ImageStreams

__all__ = ["plasma"]


def plasma(random: ImageStreams, height: int, width: int, decay: float) -> Tensor:
    """(N, height, width) clouds in [0, 1]; a larger `decay` makes them smoother.

    On the smallest power-of-two square that covers the image: each level sets the centres of squares, then of diamonds,
    to the mean of their four neighbours plus a uniform number in ±w², and divides w (100 at first) by `decay`.
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
    # the whole square is normalised before the image's part is cut out
    low, high = cloud.amin((1, 2), keepdim=True), cloud.amax((1, 2), keepdim=True)
    return cloud.sub_(low).div_(high - low)[:, :height, :width]
