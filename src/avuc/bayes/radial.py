"""Radial posterior (Farquhar, Osborne & Gal 2020, arXiv 1907.00865).

For each tensor of d weights, w = μ + σ ∘ r·ε/‖ε‖ with ε ~ N(0, I_d) and one radius r ~ N(0, 1): a random direction
times a normal radius. The mass of a Gaussian lies in a shell at distance √d from its mean; here it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from avuc.bayes.mean_field import Family, cross_kl, standard_normal


def noise_entropy(d: int) -> float:
    """Return the differential entropy (nats) of z = r·ε/‖ε‖ in d dimensions.

    In polar coordinates z has density p(|r|) / (S_d |r|^(d−1)), S_d = 2 π^(d/2) / Γ(d/2) the area of the unit
    sphere and |r| half-normal, for which −E log p = ½ log(π/2) + ½ and E log|r| = −(γ + log 2)/2. Hence
    h = ½ log(π/2) + ½ + log S_d − (d − 1)(γ + log 2)/2; for d = 1 that of the standard normal.

    >>> abs(noise_entropy(1) - 0.5 * math.log(2 * math.pi * math.e)) < 1e-12
    True
    """
    log_sphere = math.log(2) + 0.5 * d * math.log(math.pi) - math.lgamma(d / 2)
    euler_gamma = 0.57721566490153286
    return 0.5 * math.log(math.pi / 2) + 0.5 + log_sphere - 0.5 * (d - 1) * (euler_gamma + math.log(2))


def _noise(sizes: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    drawn = standard_normal(sum(sizes) + len(sizes), like, generator)
    directions, radii = drawn.split([sum(sizes), len(sizes)])
    norms = torch.stack([torch.linalg.vector_norm(direction) for direction in directions.split(list(sizes))])
    noise: Tensor = directions * _repeat(radii / norms, sizes)
    return noise


def _variance(sizes: Sequence[int], like: Tensor) -> Tensor:
    """E z_i² = E r² / d = 1/d."""
    return torch.cat([like.new_full((size,), 1.0 / size) for size in sizes])


def _kl(mu: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return KL(q ‖ N(m, s²)), exactly: the entropy of w is Σ log σ + h(z), the cross-entropy needs only E z² = 1/d.

    The paper estimates the cross-entropy from samples and drops the constants.
    """
    constant = 0.5 * sum(sizes) * math.log(2 * math.pi) - sum(noise_entropy(size) for size in sizes)
    return cross_kl(mu, rho, prior_mean, prior_std, _variance(sizes, mu), constant)


def _repeat(values: Tensor, sizes: Sequence[int]) -> Tensor:
    # unlike repeat_interleave this needs no tensor of sizes on the device, so it can be captured in a CUDA graph
    return torch.cat([value.expand(size) for value, size in zip(values.unbind(), sizes, strict=True)])


RADIAL = Family(_noise, _kl, _variance)
