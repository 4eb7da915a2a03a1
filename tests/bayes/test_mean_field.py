"""The Gaussian draw and its KL, against torch.distributions, plain loops, large samples and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Normal as Reference
from torch.distributions import kl_divergence
from torch.nn.functional import softplus

from avuc.bayes import Normal, to_bayesian
from avuc.bayes.mean_field import MEAN_FIELD
from avuc.nets import resnet20


def kl(mu: Tensor, rho: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    mean, std = (torch.as_tensor(value, dtype=mu.dtype) for value in (mean, std))
    return MEAN_FIELD.kl(mu, rho, mean, std, [mu.numel()])


def naive(mu: Tensor, rho: Tensor, mean: Tensor | float, std: Tensor | float) -> float:
    """One weight after the other, in Python floats."""
    total = 0.0
    mean, std = (torch.as_tensor(value, dtype=torch.float64).expand(mu.shape) for value in (mean, std))
    for m, r, pm, ps in zip(mu.tolist(), rho.tolist(), mean.tolist(), std.tolist(), strict=True):
        sigma = math.log1p(math.exp(r))
        total += math.log(ps / sigma) + (sigma**2 + (m - pm) ** 2) / (2 * ps**2) - 0.5
    return total


numbers = st.floats(-4, 4)


@given(st.lists(st.tuples(numbers, st.floats(-12, 8), numbers, st.floats(0.05, 5)), min_size=1, max_size=8))
def test_kl_equals_torch_distributions_and_plain_loops(rows: list[tuple[float, ...]]) -> None:
    mu, rho, mean, std = torch.tensor(rows, dtype=torch.float64).unbind(1)
    found = kl(mu, rho, mean, std)
    expected = kl_divergence(Reference(mu, softplus(rho)), Reference(mean, std)).sum()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert found.item() == pytest.approx(naive(mu, rho, mean, std), rel=1e-9, abs=1e-9)
    assert found.item() >= -1e-9


def test_kl_is_zero_at_the_prior_and_only_there() -> None:
    rho = torch.tensor([0.3, -1.0], dtype=torch.float64)
    mu = torch.tensor([0.5, -2.0], dtype=torch.float64)
    assert kl(mu, rho, mu, softplus(rho)).item() == pytest.approx(0, abs=1e-14)
    assert kl(mu + 1e-3, rho, mu, softplus(rho)).item() > 1e-8
    assert kl(mu, rho + 1e-3, mu, softplus(rho)).item() > 1e-8


def test_kl_equals_a_large_sample_estimate() -> None:
    generator = torch.Generator().manual_seed(0)
    mu, rho = torch.tensor([0.4, -0.8, 1.1]).double(), torch.tensor([-1.0, 0.2, -2.0]).double()
    mean, std = torch.tensor([0.1, -0.5, 0.9]).double(), torch.tensor([0.7, 1.2, 0.4]).double()
    w = mu + softplus(rho) * torch.randn(400_000, 3, generator=generator, dtype=torch.float64)
    logs = (Reference(mu, softplus(rho)).log_prob(w) - Reference(mean, std).log_prob(w)).sum(1)
    error = logs.std().item() / math.sqrt(len(logs))
    assert kl(mu, rho, mean, std).item() == pytest.approx(logs.mean().item(), abs=4 * error)


@pytest.mark.parametrize("per_weight", [False, True])
def test_the_written_gradient_is_the_derivative(per_weight: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    mu, rho = (torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    mean = torch.randn(6, generator=generator).double() if per_weight else 0.3
    std = torch.rand(6, generator=generator).double() + 0.2 if per_weight else 0.8
    assert torch.autograd.gradcheck(lambda m, r: kl(m, r, mean, std), (mu, rho))
    assert torch.autograd.gradgradcheck(lambda m, r: kl(m, r, mean, std), (mu, rho))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [-1000.0, -105.0, -41.0, -39.0, 0.0, 30.0])
def test_extreme_widths_stay_finite(rho: float, dtype: torch.dtype) -> None:
    mu, width = torch.zeros(2, dtype=dtype, requires_grad=True), torch.full((2,), rho, dtype=dtype, requires_grad=True)
    value = kl(mu, width, 0.0, 1.0)
    value.backward()
    assert value.isfinite()
    assert width.grad is not None
    assert width.grad.isfinite().all()
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = width.detach().double()[0].item()
    sigma = max(exact, 0) + math.log1p(math.exp(-abs(exact)))
    log_sigma = math.log(sigma) if exact > -50 else exact
    assert value.item() == pytest.approx(2 * (-log_sigma + sigma**2 / 2 - 0.5), rel=2e-6)
    if rho < -50:
        assert width.grad.tolist() == [-1, -1]  # the KL still pulls a collapsed weight open


def test_kl_of_many_float32_weights_keeps_its_digits() -> None:
    generator = torch.Generator().manual_seed(2)
    mu = torch.randn(3_000_000, generator=generator)
    rho = torch.randn(3_000_000, generator=generator) - 3
    sigma = torch.log1p(rho.double().exp())
    exact = (-sigma.log() + (sigma**2 + mu.double() ** 2) / 2 - 0.5).sum().item()
    assert kl(mu, rho, 0.0, 1.0).item() == pytest.approx(exact, rel=1e-7)


def test_kl_of_many_weights_near_the_prior_does_not_cancel_away() -> None:
    rho = torch.full((1_000_000,), math.log(math.expm1(1.0)))
    assert kl(torch.full_like(rho, 0.01), rho, 0.0, 1.0).item() == pytest.approx(50.0, abs=0.1)


@pytest.mark.parametrize("prior", [Normal(0.0, 1.0), Normal(0.1, 0.5), "moped"])
def test_resnet20_kl_at_the_start_is_the_sum_over_its_tensors(prior: Normal | str) -> None:
    torch.manual_seed(0)
    net = resnet20()
    bayesian = to_bayesian(net, prior=prior, initial_std=0.1)
    total, count = 0.0, 0
    for name, weight in net.named_parameters():
        if "bn" in name:
            continue
        w = weight.detach().double()
        if prior == "moped":
            sigma = (0.5 * w.abs()).clamp_min(1e-6)
            terms = -sigma.log() + sigma**2 / 2 - 0.5
        else:
            assert isinstance(prior, Normal)
            terms = math.log(prior.std / 0.1) + (0.1**2 + (w - prior.mean) ** 2) / (2 * prior.std**2) - 0.5
        total, count = total + terms.sum().item(), count + w.numel()
    assert count == bayesian.mu.numel() == 268_346
    assert bayesian.kl().item() == pytest.approx(total, rel=1e-6)


def test_draws_have_the_stated_mean_and_width_and_are_independent() -> None:
    bayesian = to_bayesian(nn.Linear(2, 1, bias=False).double(), initial_std=0.3)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        draws = torch.stack([bayesian.weights(bayesian.noise(generator)) for _ in range(5_000)])
    torch.testing.assert_close(draws.mean(0), bayesian.mu.detach(), atol=4 * 0.3 / math.sqrt(5_000), rtol=0)
    torch.testing.assert_close(draws.T.cov(), torch.eye(2).double() * 0.09, atol=0.008, rtol=0)
