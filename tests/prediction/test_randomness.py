"""A network that draws random numbers in evaluation mode: one call is not like another, and a warning says so."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from avuc.bayes import to_bayesian
from avuc.core.errors import InputError
from avuc.deploy import as_module
from avuc.methods.dropout import DropoutPosterior
from avuc.prediction import predict

X = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))


class ByHand(nn.Module):
    """Monte Carlo dropout as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(self.first(x), 0.5, training=True))


class Draws(ByHand):
    """Draws random numbers that change nothing."""

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(3)
        return self.last(self.drop(self.first(x)))


@pytest.mark.parametrize("data", [X, DataLoader([(x, 0) for x in X], batch_size=8)], ids=["tensor", "loader"])
def test_dropout_by_hand_is_named(data: object) -> None:
    with pytest.warns(UserWarning, match=r"draws random numbers in evaluation mode.*of_own_layers\(net\)") as caught:
        predict(ByHand(), data, progress=False)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_samples_of_a_posterior_must_be_fixed() -> None:
    with pytest.warns(UserWarning, match="draws random numbers in evaluation mode"):
        predict(to_bayesian(ByHand()), X, samples=4, progress=False)


def test_other_networks_are_not_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = Draws()
        for model in (net, [net, Draws()], to_bayesian(net, initial_std=0.2), DropoutPosterior.of_own_layers(net)):
            predict(model, X, samples=3, progress=False)


def test_seeds_and_samples_of_numpy() -> None:
    """As in `for seed in np.arange(5)`."""
    posterior = to_bayesian(Draws(), initial_std=0.2)
    found = predict(posterior, X, samples=np.int64(3), seed=np.int64(2), progress=False)
    expected = predict(posterior, X, samples=3, seed=2, progress=False)
    assert torch.equal(found.probs, expected.probs)
    assert type(found.samples) is int
    module = as_module(posterior, samples=np.int64(3), seed=np.int64(2))
    torch.testing.assert_close(module(X)[0], expected.probs)
    with pytest.raises(InputError, match="seed must be a whole number"):
        predict(posterior, X, seed=np.float64(2), progress=False)
