"""Small posteriors of every kind, and images for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from avuc.bayes import to_bayesian
from avuc.methods.dropout import Dropout, DropoutPosterior
from avuc.methods.ll_dropout import LLDropout
from avuc.methods.swag import SWAG
from avuc.nets import mlp, small_cnn


def _swag(net: nn.Module) -> object:
    method = SWAG(start=0.0, rank=2)
    model = method.build(net)
    for epoch in range(3):
        with torch.no_grad():
            for weight in model.net.parameters():
                weight.add_(torch.randn_like(weight), alpha=0.05)
        method.epoch_end(model, epoch, 3)
    return method.posterior([model])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, images):
        return self.out(self.rnn(images[:, 0])[0][:, -1])


class Tied(nn.Module):
    """Two names for one weight, and batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        self.second.weight = self.first.weight
        self.norm, self.out = nn.BatchNorm1d(64), nn.Linear(64, 3)
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, images):
        return self.out(self.norm(self.second(self.first(images.flatten(1)).relu()).relu()))


KINDS = {
    "network": lambda net: net,
    "ensemble": lambda net: [net, small_cnn(3, (8, 8, 1), width=4)],
    "mean field": to_bayesian,
    "radial": lambda net: to_bayesian(net, posterior="radial", initial_std=0.2),
    "last layer": lambda net: to_bayesian(net, layers="last", initial_std=0.3),
    "tied": lambda net: to_bayesian(Tied(), initial_std=0.1),
    "recurrent": lambda net: to_bayesian(Recurrent(), initial_std=0.1),
    "swag": _swag,
    "dropout": lambda net: DropoutPosterior(Dropout(rate=0.3).build(net)),
    "last-layer dropout": lambda net: (m := LLDropout(rate=0.3)).posterior([m.build(net)]),
    "own dropout": lambda net: DropoutPosterior.of_own_layers(nn.Sequential(mlp(16, (8, 8, 1)), nn.Dropout(0.4))),
}


@pytest.fixture
def posteriors():
    """Kind of posterior -> a function that makes one from its own network."""

    def make(kind):
        torch.manual_seed(0)
        net = small_cnn(3, (8, 8, 1), width=4)
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.uniform_(-0.2, 0.2)
                layer.running_var.uniform_(0.5, 2.0)
        return KINDS[kind](net)

    return make


@pytest.fixture
def images():
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
