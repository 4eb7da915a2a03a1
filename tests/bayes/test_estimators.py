"""Every estimator is unbiased: outputs against brute-force weight sampling, gradients against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule, to_bayesian
from avuc.bayes.module import POSTERIORS

BATCHES, COPIES = 1000, 6


def brute_force(bayesian: BayesianModule, x: Tensor, seed: int) -> Tensor:
    """Outputs (BATCHES, COPIES, outputs) for one input, each with a fresh, independent draw of every weight."""
    module, count = bayesian.mean_module().eval(), BATCHES * COPIES
    names = [slot.name for slot in bayesian.layout.slots]
    family, generator = POSTERIORS[bayesian.posterior], torch.Generator().manual_seed(seed)
    noise = family.noise(bayesian.layout.sizes * count, bayesian.mu, generator).view(count, -1)

    def one(flat: Tensor) -> Tensor:
        tensors = dict(zip(names, bayesian.layout.views(flat), strict=True))
        return torch.func.functional_call(module, tensors, (x[None],))[0].flatten()

    return torch.func.vmap(one, chunk_size=2000)(bayesian.weights(noise)).view(BATCHES, COPIES, -1)


def flipped(bayesian: BayesianModule, x: Tensor, seed: int) -> Tensor:
    """The same by flipout, one input repeated COPIES times in each batch."""
    generator, batch = torch.Generator().manual_seed(seed), x.expand(COPIES, *x.shape)
    return torch.stack([bayesian(batch, generator=generator).flatten(1) for _ in range(BATCHES)])


def agree(a: Tensor, b: Tensor | float, deviations: float = 5.0) -> bool:
    """Whether two Monte Carlo estimates, with independent rows, have one mean, up to five standard errors."""
    error = a.var(0) / len(a) + (b.var(0) / len(b) if isinstance(b, Tensor) else 0)
    target = b.mean(0) if isinstance(b, Tensor) else b
    return bool(((a.mean(0) - target).abs() <= deviations * error.sqrt() + 1e-12).all())


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (3,)),
    "linear over steps": (lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), (3, 2)),
    "conv1d": (lambda: nn.Conv1d(2, 2, 2, stride=2), (2, 4)),
    "conv2d groups": (lambda: nn.Conv2d(4, 2, 2, groups=2, padding=1, padding_mode="circular"), (4, 1, 2)),
    "conv3d": (lambda: nn.Conv3d(1, 2, (1, 2, 2)), (1, 2, 2, 2)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(2, 2, 2, groups=2), (2, 2)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(2, 1, 2, bias=False), (2, 1, 2)),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(1, 2, (1, 1, 2)), (1, 1, 1, 2)),
}


@pytest.mark.parametrize("posterior", ["mean_field", "radial"])
@pytest.mark.parametrize("name", NETS)
def test_flipout_moments_equal_weight_sampling_and_samples_are_uncorrelated(name: str, posterior: str) -> None:
    factory, shape = NETS[name]
    torch.manual_seed(1)
    bayesian = to_bayesian(factory().double(), estimator="flipout", posterior=posterior, initial_std=0.4).eval()
    x = torch.randn(*shape, dtype=torch.float64)
    with torch.no_grad():
        truth, runs = brute_force(bayesian, x, seed=2), flipped(bayesian, x, seed=3)
    assert agree(runs.mean(1), truth.mean(1))
    centre = truth.mean((0, 1))
    products = [torch.einsum("bci,bcj->bij", part - centre, part - centre) / COPIES for part in (runs, truth)]
    assert agree(*products)
    between = torch.einsum("bi,bj->bij", runs[:, 0] - centre, runs[:, 1] - centre)
    if isinstance(bayesian.module, nn.Sequential):
        # not linear in the weights, whose absolute values the samples share: nearly uncorrelated
        variance = products[1].mean(0).diagonal()
        assert (between.mean(0) / (variance[:, None] * variance).sqrt()).abs().max() < 0.2
    else:
        assert agree(between, 0.0)


def test_flipout_signs_are_constant_over_space() -> None:
    """With signs per pixel the noise would average out over an image: the peers' defect."""
    torch.manual_seed(0)
    bayesian = to_bayesian(nn.Conv2d(2, 1, 1, bias=False).double(), estimator="flipout", initial_std=0.5)
    x, generator = torch.ones(50, 2, 8, 8, dtype=torch.float64), torch.Generator().manual_seed(0)
    with torch.no_grad():
        means = torch.cat([bayesian(x, generator=generator).mean((1, 2, 3)) for _ in range(200)])
    assert means.var().item() == pytest.approx(2 * 0.25, rel=0.1)


def test_flipout_leaves_deterministic_calls_alone() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    bayesian = to_bayesian(net, estimator="flipout", layers="last")
    seen = []
    bayesian.module[0].register_forward_hook(lambda module, args, output: seen.append(output))
    x = torch.randn(4, 3)
    bayesian(x)
    assert torch.equal(seen[0], net[0](x))


def test_flipout_of_one_unbatched_sample() -> None:
    torch.manual_seed(0)
    linear = to_bayesian(nn.Linear(3, 2), estimator="flipout")
    assert linear(torch.ones(3)).shape == (2,)
    conv = to_bayesian(nn.Conv2d(3, 2, 3), estimator="flipout")
    assert conv(torch.ones(3, 5, 5)).shape == (2, 3, 3)


class Twice(nn.Module):
    """y = w·x through one layer, then through the same layer again: E y depends on E w²."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


class TiedPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


@pytest.mark.parametrize("module", [Twice, TiedPair])
@pytest.mark.parametrize("estimator", ["weight", "flipout"])
def test_a_weight_used_twice_is_one_weight(module: type[nn.Module], estimator: str) -> None:
    torch.manual_seed(0)
    bayesian = to_bayesian(module().double(), estimator=estimator, initial_std=0.5)
    x, generator = torch.ones(4, 1, dtype=torch.float64), torch.Generator().manual_seed(0)
    with torch.no_grad():
        outputs = torch.cat([bayesian(x, generator=generator) for _ in range(500)])
    expected = bayesian.mu.item() ** 2 + 0.25  # E w²; with two independent weights it would be μ²
    assert (outputs >= 0).all()
    assert outputs.mean().item() == pytest.approx(expected, abs=5 * outputs.std().item() / math.sqrt(500))


@pytest.mark.parametrize("draws", [None, 1, 3])
@pytest.mark.parametrize("estimator", ["weight", "flipout"])
@pytest.mark.parametrize("posterior", ["mean_field", "radial"])
def test_gradients_equal_finite_differences_with_common_noise(
    posterior: str, estimator: str, draws: int | None
) -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(2, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
    bayesian = to_bayesian(net, posterior=posterior, estimator=estimator, initial_std=0.3, prior="moped")
    x, y = torch.randn(5, 2, 3, 3, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])

    def loss() -> Tensor:
        logits = bayesian(x, draws=draws, generator=torch.Generator().manual_seed(4))
        logits = logits if draws is None else logits.flatten(0, 1)
        return nn.functional.cross_entropy(logits, y.repeat(draws or 1)) + bayesian.kl() / 50

    loss().backward()
    for parameter in (bayesian.mu, bayesian.rho):
        assert parameter.grad is not None
        found, step = parameter.grad.clone(), 1e-6
        for index in range(parameter.numel()):
            values = []
            with torch.no_grad():
                for sign in (1, -1):
                    parameter[index] += sign * step
                    values.append(loss().item())
                    parameter[index] -= sign * step
            difference = (values[0] - values[1]) / (2 * step)
            assert found[index].item() == pytest.approx(difference, rel=1e-5, abs=1e-8)


def test_several_draws_in_one_step_average_the_gradients_of_single_draws() -> None:
    torch.manual_seed(3)
    bayesian = to_bayesian(nn.Linear(3, 2).double(), initial_std=0.3)
    x = torch.randn(4, 3, dtype=torch.float64)
    bayesian(x, draws=4, generator=torch.Generator().manual_seed(1)).square().mean().backward()
    together = [parameter.grad.clone() for parameter in (bayesian.mu, bayesian.rho)]
    generator = torch.Generator().manual_seed(1)
    bayesian.zero_grad()
    for _ in range(4):
        (bayesian(x, generator=generator).square().mean() / 4).backward()
    for found, parameter in zip(together, (bayesian.mu, bayesian.rho), strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-12, atol=1e-14)


def test_flipout_of_a_layer_that_is_called_on_tokens_and_on_their_mean() -> None:
    """It is one weight of each example in both calls, so the mean of the outputs is the output of the mean."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(tokens), self.layer(tokens.mean(1))

    bayesian = to_bayesian(Both().double(), estimator="flipout", initial_std=0.5)
    tokens, pooled = bayesian(torch.randn(3, 7, 5, dtype=torch.float64))
    torch.testing.assert_close(tokens.mean(1), pooled)
    assert (pooled[0] - pooled[1]).abs().max() > 0.1
