"""Copies of networks whose layers keep a weight that each forward pass computes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import prune, spectral_norm, weight_norm

from avuc import predict, to_bayesian
from avuc.core.private_copy import deep_copy, private_copy
from avuc.deploy import as_module
from avuc.methods import LLSVI, SVI, SWAG, Dropout, Method, Vanilla
from avuc.train import TrainSettings, fit

X = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 3


def pruned(layer: nn.Linear) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", amount=0.5)


def normed(layer: nn.Linear) -> nn.Module:
    with pytest.warns(FutureWarning):
        return weight_norm(layer)


KINDS = {"pruned": pruned, "weight_norm": normed, "spectral_norm": spectral_norm}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def network(kind: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(kind(nn.Linear(5, 8)), nn.ReLU(), kind(nn.Linear(8, 3)))
    net(X)  # a forward pass leaves the computed weight in the layer
    return net


@kinds
def test_copies_give_the_same_and_are_independent(kind: Callable[[nn.Linear], nn.Module]) -> None:
    net = network(kind).eval()
    with pytest.raises(RuntimeError):
        copy.deepcopy(net)
    expected = net(X).detach()
    for twin in (deep_copy(net), private_copy(net)):
        torch.testing.assert_close(twin(X), expected)
    twin = deep_copy(net)
    for weight in twin.parameters():
        weight.data.mul_(2)
    torch.testing.assert_close(net(X), expected)


@kinds
def test_samples_of_the_weights(kind: Callable[[nn.Linear], nn.Module]) -> None:
    """A sample is the network with the sampled weights, and masks of pruning stay."""
    net = network(kind).eval()
    posterior = to_bayesian(net, initial_std=0.3)
    weights = posterior.weights(posterior.noise()).detach()
    values: dict[str, Tensor] = posterior.layout.by_all_names(posterior.layout.views(weights))
    torch.testing.assert_close(posterior.run(weights, X), functional_call(private_copy(net), values, (X,)))
    posterior(X).sum().backward()
    assert posterior.mu.grad is not None
    if kind is pruned:
        gradient = posterior.layout.by_name(posterior.mu.grad)["0.weight_orig"]
        assert (gradient[net[0].weight_mask == 0] == 0).all()
    torch.testing.assert_close(posterior.mean_module()(X), net(X))
    found = predict(posterior, X, samples=4, progress=False).probs
    torch.testing.assert_close(as_module(posterior, samples=4)(X)[0], found, atol=1e-6, rtol=1e-5)


@kinds
@pytest.mark.parametrize("method", [Vanilla(), SVI(), LLSVI(), Dropout(), SWAG(0.5)], ids=lambda method: method.name)
def test_methods_train_such_networks(kind: Callable[[nn.Linear], nn.Module], method: Method) -> None:
    settings = TrainSettings(epochs=8, batch_size=10, milestones=(), factors=())
    fitted = fit(method, network(kind), (X, LABELS), settings=settings, progress=False)
    assert predict(fitted.posterior, X, LABELS, samples=3, progress=False).probs.isfinite().all()
