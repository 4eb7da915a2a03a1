"""Conversion between bytes and numbers in [0, 1], as every corruption does it."""

from __future__ import annotations

import torch
from torch import Tensor

# ITU-R BT.601, as in the published generator
_LUMA = (0.299, 0.587, 0.114)


def unit(images: Tensor) -> Tensor:
    """Return bytes as float32 in [0, 1]."""
    return images.float().div_(255)


def to_bytes(values: Tensor) -> Tensor:
    """Return numbers in [0, 1] as bytes: clipped and truncated, as in the published generator.

    A value that float32 rounding put just below a whole number becomes that number. Otherwise a blur of a flat area
    would darken some pixels, depending on the order of summation.

    >>> to_bytes(torch.tensor([-1.0, 0.5, 99.99999 / 255, 2.0])).tolist()
    [0, 127, 100, 255]
    """
    return values.mul(255).add_(2.0**-10).clamp_(0, 255).to(torch.uint8)


def grey(values: Tensor) -> Tensor:
    """Return the luma (N, H, W) of images (N, H, W, C)."""
    if values.shape[3] == 1:
        return values[..., 0]
    red, green, blue = values.unbind(3)
    return red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2]
