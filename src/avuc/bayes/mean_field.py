"""Mean-field Gaussian: every weight w = μ + σ ε, σ = softplus(ρ), ε ~ N(0, 1), independent of all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["MEAN_FIELD", "Family", "cross_kl", "standard_normal"]

# below this ρ, log softplus(ρ) = ρ and σ'(ρ)/σ(ρ) = 1 to float64's last digit, while σ itself underflows in the end
LINEAR_BELOW = -40.0


class Family(NamedTuple):
    """A posterior w = μ + σ·z, given by the noise z; `sizes` are the numbers of weights in the tensors, in order."""

    noise: Callable[[Sequence[int], Tensor, torch.Generator | None], Tensor]
    kl: Callable[[Tensor, Tensor, Tensor, Tensor, Sequence[int]], Tensor]
    variance: Callable[[Sequence[int], Tensor], Tensor]  # of one coordinate of z


def standard_normal(count: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """`count` normals with the dtype and device of `like`.

    They are drawn on the generator's device: a CPU generator gives the same draws to a model on any device.
    """
    device = like.device if generator is None else generator.device
    return torch.randn(count, generator=generator, device=device, dtype=like.dtype).to(like.device)


def cross_kl(mu: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, variance: Tensor) -> Tensor:
    """Σ log(s/σ) + ((μ − m)² + v σ²) / (2 s²), v the variance of a coordinate of z: the KL up to a constant.

    Terms in float32 or better, their sum in float64; finite for every finite ρ, also where σ underflows to 0. The
    compiler fuses it with its gradient; in eager mode the gradient is written out and keeps nothing but the inputs.
    """
    if torch.compiler.is_compiling():
        return _cross_kl(mu, rho, prior_mean, prior_std, variance)
    return _CrossKL.apply(mu, rho, prior_mean, prior_std, variance)  # type: ignore[no-any-return]


def _cross_kl(mu: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, variance: Tensor) -> Tensor:
    mu, rho, prior_mean, prior_std = _at_least_float32(mu, rho, prior_mean, prior_std)
    log_sigma = torch.where(rho < LINEAR_BELOW, rho, softplus(rho.clamp_min(LINEAR_BELOW)).log())
    spread = (mu - prior_mean) ** 2 + variance * softplus(rho) ** 2
    terms = prior_std.log() - log_sigma + spread / (2 * prior_std**2)
    # Apple's GPUs have no float64
    return terms.sum(dtype=torch.float32 if terms.device.type == "mps" else torch.float64).to(terms.dtype)


class _CrossKL(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(mu: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, variance: Tensor) -> Tensor:
        return _cross_kl(mu, rho, prior_mean, prior_std, variance)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mu, rho, prior_mean, prior_std, variance = ctx.saved_tensors
        dtype = rho.dtype
        mu, rho, prior_mean, prior_std = _at_least_float32(mu, rho, prior_mean, prior_std)
        inverse = grad / prior_std**2
        slope, sigma = torch.sigmoid(rho), softplus(rho)
        relative = torch.where(rho < LINEAR_BELOW, 1.0, slope / sigma)  # dσ/dρ / σ
        grad_rho = slope * sigma * variance * inverse - relative * grad
        return ((mu - prior_mean) * inverse).to(dtype), grad_rho.to(dtype), None, None, None


def _at_least_float32(*tensors: Tensor) -> list[Tensor]:
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]


def _noise(sizes: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return standard_normal(sum(sizes), like, generator)


def _variance(sizes: Sequence[int], like: Tensor) -> Tensor:
    return like.new_ones(())


def _kl(mu: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, sizes: Sequence[int]) -> Tensor:
    """KL(q ‖ N(m, s²)) = Σ log(s/σ) + (σ² + (μ − m)²)/(2s²) − ½."""
    return cross_kl(mu, rho, prior_mean, prior_std, mu.new_ones(())) - 0.5 * sum(sizes)


MEAN_FIELD = Family(_noise, _kl, _variance)
