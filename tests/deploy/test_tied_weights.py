"""as_module of samples that name a tied weight once, such as those of SWAG, and of half precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.deploy import as_module
from avuc.methods import SWAG, LLDropout
from avuc.methods.batch_norm import PerDrawBatchNorm
from avuc.posterior import Posterior, sample_generator
from avuc.prediction import predict


class Tied(nn.Module):
    """The weight of the first layer is that of the second, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.norm, self.last = nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(self.norm(torch.tanh(self.first(x))))))


def check(posterior: Posterior, x: Tensor) -> None:
    found = as_module(posterior, samples=6)(x)[0]
    torch.testing.assert_close(found, predict(posterior, x, samples=6, progress=False).probs, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        by_hand = [posterior.draw(sample_generator(0, index))(x).softmax(-1) for index in range(6)]
    torch.testing.assert_close(found, torch.stack(by_hand).mean(0), atol=1e-6, rtol=1e-5)


def test_swag_with_tied_weights() -> None:
    torch.manual_seed(0)
    method = SWAG(start=0.0)
    model = method.build(Tied())
    for epoch in range(4):
        for weight in model.parameters():
            weight.data.add_(0.5 * torch.randn_like(weight))
        method.epoch_end(model, epoch, 4)
    check(method.posterior([model]), torch.randn(9, 5))


def test_statistics_of_each_sample_with_tied_weights() -> None:
    torch.manual_seed(0)
    check(PerDrawBatchNorm(to_bayesian(Tied(), initial_std=0.5), torch.randn(64, 5)), torch.randn(9, 5))


def test_a_tied_weight_stays_one_weight() -> None:
    module = as_module(to_bayesian(Tied(), initial_std=0.5), samples=2)
    for net in module.draws.nets:
        assert net.first.weight is net.second.weight


def test_last_layer_dropout_in_bfloat16() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).bfloat16(), torch.randn(9, 5).bfloat16()
    method = LLDropout(rate=0.3)
    posterior = method.posterior([method.build(net)])
    found = as_module(posterior, samples=4)(x)[0]
    torch.testing.assert_close(found, predict(posterior, x, samples=4, progress=False).probs, atol=1e-2, rtol=1e-2)
