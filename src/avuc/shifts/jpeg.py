"""JPEG compression as tensor arithmetic: the result of encoding with libjpeg's defaults and decoding.

Every step that libjpeg rounds to integers is rounded here too: conversion of colours (BT.601), 4:2:0 chroma, DCT and
quantisation, inverse DCT, triangle upsampling, conversion back. Entropy coding is lossless and left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from avuc.shifts.filters import along_axis, padded
from avuc.shifts.protocol import Corruption

# ITU-T T.81, annex K
_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


def quantisation(quality: int, *, chroma: bool) -> Tensor:
    """Return the 8×8 table of a quality in 1…100: the standard table times 50/quality, or 2 − quality/50 above 50.

    >>> quantisation(50, chroma=False)[0, 0].item()
    16.0
    """
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = torch.tensor(_CHROMA if chroma else _LUMA)
    return ((table * scale + 50) // 100).clamp_(1, 255).float()


def _dct_matrix(device: torch.device) -> Tensor:
    """Return the 8×8 matrix of the DCT, c_u/2·cos((2x + 1)uπ/16) in row u and column x, with c₀ = 1/√2."""
    frequency, position = torch.arange(8.0, dtype=torch.float64)[:, None], torch.arange(8.0, dtype=torch.float64)
    matrix = ((2 * position + 1) * frequency * (math.pi / 16)).cos() / 2
    matrix[0] /= math.sqrt(2)
    return matrix.float().to(device)


def _coded(plane: Tensor, table: Tensor) -> Tensor:
    """Return a plane (N, H, W) of bytes after DCT, quantisation and inverse DCT; edges are repeated to full blocks."""
    count, height, width = plane.shape
    plane = padded(padded(plane, 1, 0, -height % 8, "nearest"), 2, 0, -width % 8, "nearest")
    rows, columns = plane.shape[1:]
    matrix = _dct_matrix(plane.device)

    def both_axes(values: Tensor, matrix: Tensor) -> Tensor:
        # one axis of the blocks is transformed while the other is contiguous, then they are transposed
        for across in (columns, rows):
            values = along_axis(values.reshape(count, -1, 8, across), matrix, 2)
            values = values.view(count, -1, across).transpose(1, 2)
        return values

    # libjpeg's transform gives multiples of 1/8, and its quantisation rounds halves away from zero
    steps = table.to(plane.device).repeat(rows // 8, columns // 8)
    eighths = both_axes(plane - 128, matrix).mul_(8).add_(0.5).floor_()
    coefficients = eighths.sign() * (eighths.abs() / (8 * steps) + 0.5).floor_() * steps
    decoded = both_axes(coefficients, matrix.T)
    return decoded.add_(128.5).floor_().clamp_(0, 255)[:, :height, :width]


def _halved(plane: Tensor) -> Tensor:
    """Return the means of 2×2 pixels; along a row they are rounded down and up in turn."""
    plane = padded(padded(plane, 1, 0, plane.shape[1] % 2, "nearest"), 2, 0, plane.shape[2] % 2, "nearest")
    total = plane[:, ::2] + plane[:, 1::2]
    total = total[:, :, ::2] + total[:, :, 1::2]
    bias = torch.arange(total.shape[2], device=plane.device) % 2 + 1
    return (total + bias).div_(4).floor_()


def _doubled(plane: Tensor, height: int, width: int) -> Tensor:
    """Double the size: a pixel is 9/16, 3/16, 3/16, 1/16 of its four nearest; planes of width 1 or 2 are repeated."""
    if plane.shape[2] <= 2:
        return plane.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :height, :width]
    framed = pad(plane[:, None], (0, 0, 1, 1), mode="replicate")[:, 0]
    rows = torch.stack((3 * plane + framed[:, :-2], 3 * plane + framed[:, 2:]), dim=2).flatten(1, 2)
    framed = pad(rows[:, None], (1, 1, 0, 0), mode="replicate")[:, 0]
    left = (3 * rows + framed[:, :, :-2] + 8).div_(16).floor_()
    right = (3 * rows + framed[:, :, 2:] + 7).div_(16).floor_()
    return torch.stack((left, right), dim=3).flatten(2)[:, :height, :width]


def _jpeg(images: Tensor, quality: int, generator: torch.Generator) -> Tensor:
    """Encode and decode at `quality`; grey images have no chroma."""
    height, width, channels = images.shape[1:]
    luma_table, chroma_table = (quantisation(quality, chroma=chroma) for chroma in (False, True))
    if channels == 1:
        return _coded(images[..., 0].float(), luma_table).to(torch.uint8)[..., None]
    red, green, blue = images.float().unbind(3)
    luma = (0.299 * red + 0.587 * green + 0.114 * blue + 0.5).floor_()
    blueness = (-0.168735892 * red - 0.331264108 * green + 0.5 * blue + 128.49999).floor_()
    redness = (0.5 * red - 0.418687589 * green - 0.081312411 * blue + 128.49999).floor_()
    luma = _coded(luma, luma_table)
    blueness, redness = (
        _doubled(_coded(_halved(plane), chroma_table), height, width) - 128 for plane in (blueness, redness)
    )
    decoded = torch.stack(
        (
            luma + (1.402 * redness + 0.5).floor_(),
            luma + (-0.344136286 * blueness - 0.714136286 * redness + 0.5).floor_(),
            luma + (1.772 * blueness + 0.5).floor_(),
        ),
        dim=3,
    )
    return decoded.clamp_(0, 255).to(torch.uint8)


jpeg_compression: Corruption = Corruption(_jpeg, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7))
