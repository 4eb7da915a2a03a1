"""Frost without photographs: random fields with the size, spectrum, brightness and colour of five photographs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from avuc.shifts.streams import ImageStreams, stable_seed


@dataclass(frozen=True)
class _Look:
    """Statistics of one photograph.

    Attributes:
        size: height and width.
        exponent: of the power spectrum, chosen so that neighbouring pixels differ as much as in the photograph.
        levels: luma at each of `_RANKS`.
        colour: (a, b, c) for red, green and blue: the channel is a·l² + b·l + c at luma l.
    """

    size: tuple[int, int]
    exponent: float
    levels: tuple[int, ...]
    colour: tuple[tuple[float, float, float], ...]


_RANKS = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)

# measured on the photographs of the published generator; the second and third are the same picture
_WHITE = _Look(
    (315, 560),
    2.2,
    (56, 140, 165, 176, 189, 197, 203, 208, 213, 218, 223, 230, 235, 244, 254),
    ((0.00034, 0.842, 13.7), (0.00002, 1.002, -0.7), (-0.00098, 1.406, -32.3)),
)
_LOOKS = (
    _Look(
        (600, 900),
        2.15,
        (81, 95, 102, 107, 114, 119, 123, 128, 133, 138, 145, 155, 163, 177, 220),
        ((0.00419, 0.232, -24.3), (-0.00158, 1.301, 7.6), (-0.00285, 1.465, 24.7)),
    ),
    _WHITE,
    _WHITE,
    _Look(
        (350, 527),
        2.1,
        (22, 81, 102, 114, 128, 136, 143, 150, 156, 163, 171, 183, 196, 231, 254),
        ((0.00017, 0.944, -7.5), (-0.00001, 0.999, 3.5), (-0.00039, 1.154, 1.4)),
    ),
    _Look(
        (495, 660),
        2.2,
        (23, 43, 58, 68, 83, 95, 106, 117, 129, 142, 157, 181, 202, 237, 255),
        ((0.00028, 0.950, -7.5), (-0.00007, 1.015, 1.4), (-0.00037, 1.057, 12.6)),
    ),
)


def procedural_frost() -> list[Tensor]:
    """Return five pictures, uint8 (H, W, 3), always the same."""
    return [_picture(look, index) for index, look in enumerate(_LOOKS)]


def _picture(look: _Look, index: int) -> Tensor:
    field = _field(look.size, look.exponent, index)
    # the ranks of the field are mapped to the brightness of the photograph
    luma = torch.empty_like(field)
    share = np.linspace(0, 1, field.numel())
    luma.view(-1)[field.flatten().argsort()] = torch.from_numpy(np.interp(share, _RANKS, look.levels)).float()
    channels = [a * luma**2 + b * luma + c for a, b, c in look.colour]
    return torch.stack(channels, dim=2).round_().clamp_(0, 255).to(torch.uint8)


def _field(size: tuple[int, int], exponent: float, index: int) -> Tensor:
    """Return a Gaussian random field whose power spectrum is f^−exponent."""
    key = torch.tensor([stable_seed("procedural frost", index)])
    white = ImageStreams.of(key, 0).normal(*size)[0]
    rows, columns = torch.fft.fftfreq(size[0])[:, None], torch.fft.rfftfreq(size[1])
    frequency = torch.hypot(rows, columns).clamp_(min=1 / max(size))
    field: Tensor = torch.fft.irfft2(torch.fft.rfft2(white) * frequency ** (-exponent / 2), s=size)
    return field
