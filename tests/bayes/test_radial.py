"""The radial posterior: direction, radius, entropy and KL, against sampling and quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn
from torch.nn.functional import softplus

from avuc.bayes import Normal, to_bayesian
from avuc.bayes.mean_field import MEAN_FIELD
from avuc.bayes.radial import RADIAL, noise_entropy


def draws(sizes: list[int], count: int, seed: int = 0) -> Tensor:
    generator, like = torch.Generator().manual_seed(seed), torch.empty((), dtype=torch.float64)
    return RADIAL.noise(sizes * count, like, generator).view(count, -1)  # independent tensors, all at once


def test_directions_are_uniform_and_radii_normal_per_tensor() -> None:
    noise = draws([3, 5], 20_000)
    for part in noise.split([3, 5], dim=1):
        radius = part.norm(dim=1)
        assert stats.kstest(radius.numpy(), "halfnorm").pvalue > 1e-3
        direction = part / radius[:, None]
        size = part.shape[1]
        torch.testing.assert_close(direction.mean(0), torch.zeros(size).double(), atol=0.02, rtol=0)
        torch.testing.assert_close(direction.T.cov(), torch.eye(size).double() / size, atol=0.01, rtol=0)
        # the radius says nothing about the direction
        assert abs(torch.corrcoef(torch.stack([radius, direction[:, 0] ** 2]))[0, 1]) < 0.03
    first, second = (part.norm(dim=1) for part in noise.split([3, 5], dim=1))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.03


@pytest.mark.parametrize("d", [1, 2, 3, 10])
def test_entropy_of_the_noise_equals_quadrature_over_the_radius(d: int) -> None:
    area = 2 * math.pi ** (d / 2) / math.gamma(d / 2)

    def minus_log_density(r: float) -> float:
        return -math.log(stats.halfnorm.pdf(r) / (area * r ** (d - 1)))

    expected, _ = integrate.quad(lambda r: stats.halfnorm.pdf(r) * minus_log_density(r), 0, 12, limit=400)
    assert noise_entropy(d) == pytest.approx(expected, abs=1e-6)


def test_a_tensor_of_one_weight_is_gaussian() -> None:
    mu, rho = torch.tensor([0.7]).double(), torch.tensor([-1.2]).double()
    prior = torch.tensor(0.2).double(), torch.tensor(0.9).double()
    radial, gaussian = RADIAL.kl(mu, rho, *prior, [1]), MEAN_FIELD.kl(mu, rho, *prior, [1])
    torch.testing.assert_close(radial, gaussian, rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [2, 3, 6])
def test_kl_equals_brute_force(d: int) -> None:
    generator = torch.Generator().manual_seed(d)
    mu, mean = (torch.randn(d, generator=generator).double() for _ in range(2))
    rho, std = torch.randn(d, generator=generator).double(), torch.rand(d, generator=generator).double() + 0.5
    z = draws([d], 60_000, seed=d)
    sigma, radius = softplus(rho), z.norm(dim=1)
    log_area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
    half_normal = 0.5 * math.log(2 / math.pi) - radius**2 / 2
    log_q = half_normal - log_area - (d - 1) * radius.log() - sigma.log().sum()
    log_p = torch.distributions.Normal(mean, std).log_prob(mu + sigma * z).sum(1)
    estimate = log_q - log_p
    error = estimate.std().item() / math.sqrt(len(estimate))
    assert RADIAL.kl(mu, rho, mean, std, [d]).item() == pytest.approx(estimate.mean().item(), abs=4 * error)


def test_kl_gradient_and_sum_over_tensors() -> None:
    generator = torch.Generator().manual_seed(0)
    mu, rho = (torch.randn(7, generator=generator).double().requires_grad_() for _ in range(2))
    prior = torch.tensor(0.1).double(), torch.tensor(0.6).double()
    assert torch.autograd.gradcheck(lambda m, r: RADIAL.kl(m, r, *prior, [3, 4]), (mu, rho))
    parts = RADIAL.kl(mu[:3], rho[:3], *prior, [3]) + RADIAL.kl(mu[3:], rho[3:], *prior, [4])
    torch.testing.assert_close(RADIAL.kl(mu, rho, *prior, [3, 4]), parts)


def test_large_tensors_stay_finite() -> None:
    torch.manual_seed(0)
    bayesian = to_bayesian(nn.Linear(700, 900), posterior="radial", prior=Normal(std=0.5))
    value = bayesian.kl()
    value.backward()
    assert value.isfinite()
    assert bayesian.rho.grad is not None
    assert bayesian.rho.grad.isfinite().all()
    with torch.no_grad():
        shift = bayesian.weights(bayesian.noise(torch.Generator().manual_seed(0))) - bayesian.mu
    # however many weights, the draw stays near its mean: distance σ|r|, not σ√d
    assert shift[: 700 * 900].norm() < 4 * 0.05


def test_snr_counts_the_true_width() -> None:
    bayesian = to_bayesian(nn.Linear(4, 1, bias=False).double(), posterior="radial", initial_std=0.2)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        samples = torch.stack([bayesian.weights(bayesian.noise(generator)) for _ in range(4_000)])
    expected = bayesian.mu.detach().abs() / samples.std(0)
    torch.testing.assert_close(bayesian.snr()["weight"].flatten(), expected, rtol=0.08, atol=0)
