"""Bytes to numbers and back: how every corruption reads and writes its pixels."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["grey", "to_bytes", "unit"]

# ITU-R BT.601, as the published generator's colour conversion has it
_LUMA = (0.299, 0.587, 0.114)


def unit(images: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1]."""
    return images.float().div_(255)


def to_bytes(values: Tensor) -> Tensor:
    """[0, 1] to bytes: clipped and truncated, as the published generator casts.

    A whole number that float32 rounding left just below itself stays that number; otherwise blurring a flat area
    would darken some of its pixels, which ones depending on the order of summation.

    >>> to_bytes(torch.tensor([-1.0, 0.5, 99.99999 / 255, 2.0])).tolist()
    [0, 127, 100, 255]
    """
    return values.mul(255).add_(2.0**-10).clamp_(0, 255).to(torch.uint8)


def grey(values: Tensor) -> Tensor:
    """(N, H, W, C) to luma (N, H, W)."""
    if values.shape[3] == 1:
        return values[..., 0]
    red, green, blue = values.unbind(3)
    return red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2]
