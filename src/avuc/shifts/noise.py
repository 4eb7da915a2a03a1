"""Noise, independent for every pixel and channel: Gaussian, shot, impulse, speckle."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from avuc.shifts.pixels import to_bytes, unit
from avuc.shifts.protocol import Corruption
from avuc.shifts.streams import streams


def _gaussian(images: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """x + σ·z, z ~ N(0, 1)."""
    noise = streams(images, generator).normal(*images.shape[1:])
    return to_bytes(noise.mul_(sigma).add_(unit(images)))


def _speckle(images: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """x + x·σ·z, z ~ N(0, 1)."""
    noise = streams(images, generator).normal(*images.shape[1:])
    return to_bytes(noise.mul_(sigma).add_(1).mul_(unit(images)))


def _impulse(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """0 with probability amount/2, 255 with probability amount/2, otherwise x."""
    draw = streams(images, generator).uniform(*images.shape[1:])
    salted = images.masked_fill(draw <= amount, 255)
    return salted.masked_fill_(draw <= amount / 2, 0)


def _shot(images: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    """Poisson(x·c)/c with c photons, by inverting the distribution function of each of the 256 grey levels."""
    table = _poisson_bytes(float(photons), images.device)
    quantile = streams(images, generator).bits16(*images.shape[1:])
    quantile >>= 16 - _QUANTILE_BITS
    quantile += images.to(torch.int32) << _QUANTILE_BITS
    return table[quantile]


# 2¹⁴ equally likely quantiles per grey level: mean and variance differ from Poisson's by less than 0.1 %
_QUANTILE_BITS = 14


@lru_cache(maxsize=16)
def _poisson_bytes(photons: float, device: torch.device) -> Tensor:
    """Return 256·2¹⁴ bytes: entry (x, q) is the byte of the q-th quantile of Poisson(x·c/255)/c."""
    quantiles = 1 << _QUANTILE_BITS
    rate = torch.arange(256, dtype=torch.float64)[:, None] * (photons / 255)
    most = int(photons + 8 * photons**0.5 + 12)
    counts = torch.arange(most + 1, dtype=torch.float64)
    below = torch.special.gammaincc(counts + 1, rate)  # P(count ≤ k)
    below[0] = 1  # black has no photons; gammaincc(k, 0) is 1 except for rounding
    edges = (below * quantiles).round_().long()
    edges[:, -1] = quantiles
    share = edges.diff(dim=1, prepend=torch.zeros(256, 1, dtype=torch.int64))
    value = to_bytes(counts.div(photons)).expand(256, -1)
    return torch.repeat_interleave(value.flatten(), share.flatten()).to(device)


gaussian_noise: Corruption = Corruption(_gaussian, (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38))
shot_noise: Corruption = Corruption(_shot, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3))
impulse_noise: Corruption = Corruption(_impulse, (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27))
speckle_noise: Corruption = Corruption(_speckle, (0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.35, 0.45, 0.6))
