"""Gradient checkpointing draws the numbers of the first pass again, or is refused; two passes share their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from avuc.bayes import to_bayesian
from avuc.core.errors import InputError
from avuc.core.random_numbers import restored
from avuc.data.tensors import TensorData
from avuc.methods import Dropout
from avuc.train import TrainSettings, fit


class Net(nn.Module):
    """A network with gradient checkpointing."""

    def __init__(self, again: bool, reentrant: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        for weight in self.parameters():
            nn.init.normal_(weight, generator=generator)
        self.again, self.reentrant = again, reentrant

    def forward(self, x: Tensor) -> Tensor:
        if not self.again:
            return self.layers(x)
        x = x.requires_grad_() if self.reentrant else x
        return checkpoint(self.layers, x, use_reentrant=self.reentrant)


def gradients(run: Callable[[Tensor], Tensor], weights: Any) -> Tensor:
    torch.manual_seed(3)
    x = torch.linspace(-1, 1, 24).view(6, 4)
    return torch.cat([part.flatten() for part in torch.autograd.grad(run(x).square().mean(), list(weights))])


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_inside_gradient_checkpointing(reentrant: bool) -> None:
    models = [Dropout(rate=0.4).build(Net(again, reentrant)) for again in (False, True)]
    if not reentrant:
        plain, again = (gradients(model, model.parameters()) for model in models)
        assert torch.equal(plain, again)
    model = Dropout(rate=0.4).build(Net(True, reentrant), generator=torch.Generator().manual_seed(1))
    with pytest.raises(InputError, match="switch gradient checkpointing off"):
        model(torch.ones(6, 4)).square().mean().backward()


def test_fit_refuses_gradient_checkpointing_of_dropout() -> None:
    data = TensorData(torch.randn(12, 4), torch.arange(12) % 3, 3)
    settings = TrainSettings(epochs=1, batch_size=12)
    with pytest.raises(InputError, match="switch gradient checkpointing off"):
        fit(Dropout(), Net(True), data, settings=settings, progress=False)


@pytest.mark.parametrize("estimator", ["weight", "flipout"])
def test_a_posterior_inside_gradient_checkpointing(estimator: str) -> None:
    posterior = to_bayesian(Net(False), estimator=estimator, initial_std=0.3)
    weights = [posterior.mu, posterior.rho]
    plain = gradients(posterior, weights)
    assert torch.equal(gradients(lambda x: checkpoint(posterior, x, use_reentrant=False), weights), plain)
    posterior.generator = torch.Generator().manual_seed(1)
    with pytest.raises(InputError, match="switch gradient checkpointing off"):
        gradients(lambda x: checkpoint(posterior, x, use_reentrant=False), weights)


def test_a_hook_of_the_backward_pass_may_draw_samples() -> None:
    posterior, drawn = to_bayesian(Net(False)), list[Tensor]()
    out = posterior(torch.ones(2, 4))
    out.register_hook(lambda _: drawn.append(posterior.draw(torch.Generator().manual_seed(0))(torch.ones(2, 4))))
    out.sum().backward()
    assert len(drawn) == 1


def test_torchs_own_numbers_are_restored() -> None:
    before = torch.get_rng_state()
    with restored(torch.device("cpu")):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
