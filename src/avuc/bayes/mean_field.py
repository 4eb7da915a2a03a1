"""Mean-field Gaussian posterior: w = μ + σ ε, σ = softplus(ρ), ε ~ N(0, 1), independent for each weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

# Below this ρ, log softplus(ρ) = ρ and σ'(ρ)/σ(ρ) = 1 to the last digit of float64, but σ underflows at some point. So
# everything is computed at max(ρ, −40), and log σ is corrected by the difference, which is exact.
LOWEST = -40.0


class Family(NamedTuple):
    """A posterior w = μ + σ·z, defined by its noise z. `sizes` are the numbers of weights in each tensor, in order."""

    noise: Callable[[Sequence[int], Tensor, torch.Generator | None], Tensor]
    kl: Callable[[Tensor, Tensor, Tensor, Tensor, Sequence[int]], Tensor]
    variance: Callable[[Sequence[int], Tensor], Tensor]  # variance of one coordinate of z


def standard_normal(count: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return `count` normal numbers with the dtype and device of `like`.

    They are drawn on the generator's device: a CPU generator gives the same numbers to a model on any device.
    """
    device = like.device if generator is None else generator.device
    return torch.randn(count, generator=generator, device=device, dtype=like.dtype).to(like.device)


def cross_kl(
    mu: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, variance: Tensor | None, constant: float
) -> Tensor:
    """Return Σ log(s/σ) + ((μ − m)² + v σ²) / (2 s²) + constant, v the variance of a coordinate of z (None: 1).

    The terms are float32 or better, the sum is float64. It is finite for every finite ρ, even if σ underflows to 0.
    torch.compile fuses it with its gradient; in eager mode the gradient is written out and keeps only the inputs.
    """
    if torch.compiler.is_compiling():
        return _cross_kl(mu, rho, prior_mean, prior_std, variance, constant)
    return _CrossKL.apply(mu, rho, prior_mean, prior_std, variance, constant)  # type: ignore[no-any-return]


def _cross_kl(
    mu: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, variance: Tensor | None, constant: float
) -> Tensor:
    mu, rho, prior_mean, prior_std = _at_least_float32(mu, rho, prior_mean, prior_std)
    clamped = rho.clamp_min(LOWEST)
    sigma, shift = softplus(clamped), mu - prior_mean
    spread = torch.addcmul(shift * shift, sigma, sigma if variance is None else sigma * variance)
    terms = spread * (0.5 / prior_std**2) - sigma.log() - (rho - clamped)
    # Apple's GPUs have no float64
    wide = torch.float32 if terms.device.type == "mps" else torch.float64
    log_prior = prior_std.to(wide).log().mean() * mu.numel()
    return (terms.sum(dtype=wide) + log_prior + constant).to(terms.dtype)


class _CrossKL(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        mu: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, variance: Tensor | None, constant: float
    ) -> Tensor:
        return _cross_kl(mu, rho, prior_mean, prior_std, variance, constant)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mu, rho, prior_mean, prior_std, variance = ctx.saved_tensors
        dtype = rho.dtype
        mu, rho, prior_mean, prior_std = _at_least_float32(mu, rho, prior_mean, prior_std)
        inverse, clamped = grad / prior_std**2, rho.clamp_min(LOWEST)
        sigma = softplus(clamped)
        spread = inverse if variance is None else inverse * variance
        grad_rho = torch.sigmoid(clamped) * (sigma * spread - grad / sigma)
        return ((mu - prior_mean) * inverse).to(dtype), grad_rho.to(dtype), None, None, None, None


def _at_least_float32(*tensors: Tensor) -> list[Tensor]:
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]


def _noise(sizes: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return standard_normal(sum(sizes), like, generator)


def _variance(sizes: Sequence[int], like: Tensor) -> Tensor:
    return like.new_ones(())


def _kl(mu: Tensor, rho: Tensor, prior_mean: Tensor, prior_std: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return KL(q ‖ N(m, s²)) = Σ log(s/σ) + (σ² + (μ − m)²)/(2s²) − ½."""
    return cross_kl(mu, rho, prior_mean, prior_std, None, -0.5 * sum(sizes))


MEAN_FIELD = Family(_noise, _kl, _variance)
