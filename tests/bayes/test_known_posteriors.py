"""Variational inference on problems whose mean-field optimum is known: it must be reached."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from avuc.bayes import BayesianModule, Normal, to_bayesian

PRIOR_STD, NOISE_STD = 0.8, 0.5


Loss = Callable[[BayesianModule, int, torch.Generator], Tensor]


def fit(bayesian: BayesianModule, loss: Loss, steps: int, draws: int) -> tuple[Tensor, Tensor]:
    """Adam with a falling rate; the mean of μ and σ over the last half of the steps."""
    optimiser = torch.optim.Adam([bayesian.mu, bayesian.rho], 0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 / (1 + step / 60))
    generator, kept = torch.Generator().manual_seed(0), []
    for step in range(steps):
        optimiser.zero_grad()
        loss(bayesian, draws, generator).backward()
        optimiser.step()
        schedule.step()
        if step >= steps // 2:
            kept.append(torch.stack([bayesian.mu.detach(), softplus(bayesian.rho.detach())]))
    mean = torch.stack(kept).mean(0)
    return mean[0], mean[1]


@pytest.fixture(scope="module")
def regression() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    x[:, 1] += 0.7 * x[:, 0]  # correlated, so that the mean-field optimum is not the posterior
    y = x @ torch.tensor([0.5, -1.0, 0.3]).double()
    return x, y + NOISE_STD * torch.randn(30, generator=generator, dtype=torch.float64)


def gaussian_nll(bayesian: BayesianModule, x: Tensor, y: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """−E_q log p(y | x, w), estimated from the draws."""
    residual = (bayesian(x, draws=draws, generator=generator)[..., 0] - y) / NOISE_STD
    return 0.5 * residual.square().sum(1).mean() + len(y) * math.log(NOISE_STD * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("estimator", ["weight", "flipout"])
def test_linear_gaussian_regression_reaches_the_mean_field_optimum(
    regression: tuple[Tensor, Tensor], estimator: str
) -> None:
    x, y = regression
    precision = x.T @ x / NOISE_STD**2 + torch.eye(3).double() / PRIOR_STD**2
    posterior_mean = torch.linalg.solve(precision, x.T @ y) / NOISE_STD**2
    best_std = precision.diagonal().rsqrt()

    torch.manual_seed(1)
    bayesian = to_bayesian(nn.Linear(3, 1, bias=False).double(), prior=Normal(std=PRIOR_STD), estimator=estimator)
    mean, std = fit(
        bayesian, lambda b, draws, generator: gaussian_nll(b, x, y, draws, generator) + b.kl(), steps=400, draws=8
    )
    # in units of the posterior's own width
    torch.testing.assert_close(mean / best_std, posterior_mean / best_std, atol=0.06, rtol=0)
    torch.testing.assert_close(std / best_std, torch.ones(3).double(), atol=0.05, rtol=0)

    # ELBO of the optimum = log evidence − KL(q* ‖ posterior), both in closed form
    marginal = NOISE_STD**2 * torch.eye(len(y)).double() + PRIOR_STD**2 * x @ x.T
    evidence = torch.distributions.MultivariateNormal(torch.zeros(len(y)).double(), marginal).log_prob(y)
    gap = 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision))
    with torch.no_grad():
        bayesian.mu.copy_(posterior_mean)
        bayesian.rho.copy_(best_std.expm1().log())
        runs = torch.stack([gaussian_nll(bayesian, x, y, 40, torch.Generator().manual_seed(i)) for i in range(60)])
        elbo = -runs.mean() - bayesian.kl()
    assert elbo.item() == pytest.approx((evidence - gap).item(), abs=5 * runs.std().item() / math.sqrt(60))


def test_a_model_with_the_right_family_reaches_the_evidence() -> None:
    """One weight: the posterior is Gaussian, so the optimal ELBO is the log evidence itself."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(20, 1, generator=generator, dtype=torch.float64)
    y = 0.7 * x[:, 0] + NOISE_STD * torch.randn(20, generator=generator, dtype=torch.float64)
    precision = x.square().sum() / NOISE_STD**2 + 1
    for posterior in ("mean_field", "radial"):  # of one weight, the same family
        bayesian = to_bayesian(nn.Linear(1, 1, bias=False).double(), posterior=posterior)
        with torch.no_grad():
            bayesian.mu.fill_((x[:, 0] @ y / NOISE_STD**2 / precision).item())
            bayesian.rho.fill_(math.log(math.expm1(precision.rsqrt().item())))
            runs = torch.stack([gaussian_nll(bayesian, x, y, 50, torch.Generator().manual_seed(i)) for i in range(40)])
            elbo = -runs.mean() - bayesian.kl()
        marginal = NOISE_STD**2 * torch.eye(20).double() + x @ x.T
        evidence = torch.distributions.MultivariateNormal(torch.zeros(20).double(), marginal).log_prob(y)
        assert elbo.item() == pytest.approx(evidence.item(), abs=5 * runs.std().item() / math.sqrt(40))


def test_logistic_regression_reaches_the_mean_field_optimum() -> None:
    """The optimum comes from another route: 1-D quadrature of the logit's distribution, minimised by SciPy."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(25, 2, generator=generator, dtype=torch.float64)
    y = (torch.sigmoid(x @ torch.tensor([1.5, -1.0]).double()) > torch.rand(25, generator=generator)).double()
    nodes, quadrature = np.polynomial.hermite_e.hermegauss(60)
    quadrature = quadrature / quadrature.sum()

    def negative_elbo(point: np.ndarray) -> float:
        mean, std = point[:2], np.exp(point[2:])
        logit = (x.numpy() @ mean)[:, None] + np.sqrt(x.numpy() ** 2 @ std**2)[:, None] * nodes
        nll = (np.logaddexp(0, logit) - y.numpy()[:, None] * logit) @ quadrature
        return float(nll.sum() + np.sum(-np.log(std) + (std**2 + mean**2) / 2 - 0.5))

    best = optimize.minimize(negative_elbo, np.zeros(4), method="BFGS", options={"gtol": 1e-7})
    best_mean, best_std = torch.from_numpy(best.x[:2]), torch.from_numpy(np.exp(best.x[2:]))

    torch.manual_seed(2)
    bayesian = to_bayesian(nn.Linear(2, 1, bias=False).double(), prior=Normal(std=1.0), initial_std=0.3)

    def nll(draws: int, seeded: torch.Generator) -> Tensor:
        logits = bayesian(x, draws=draws, generator=seeded)[..., 0]
        return binary_cross_entropy_with_logits(logits, y.expand(draws, -1), reduction="none").sum(1).mean()

    mean, std = fit(bayesian, lambda b, draws, seeded: nll(draws, seeded) + b.kl(), steps=400, draws=8)
    torch.testing.assert_close(mean / best_std, best_mean / best_std, atol=0.06, rtol=0)
    torch.testing.assert_close(std / best_std, torch.ones(2).double(), atol=0.05, rtol=0)
    with torch.no_grad():
        bayesian.mu.copy_(best_mean)
        bayesian.rho.copy_(best_std.expm1().log())
        runs = torch.stack([nll(50, torch.Generator().manual_seed(i)) for i in range(60)])
        found = runs.mean() + bayesian.kl()
    assert found.item() == pytest.approx(best.fun, abs=5 * runs.std().item() / math.sqrt(60))
