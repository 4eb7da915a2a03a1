"""Networks whose weights `eval()` changes, such as adapters that are merged, are refused, or predicted as they are."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.core.errors import InputError
from avuc.core.private_copy import changed_by_eval
from avuc.data.tensors import TensorData
from avuc.methods import SWAG, Dropout, Vanilla
from avuc.prediction import predict
from avuc.train import TrainSettings, fit


class Adapted(nn.Linear):
    """A linear layer with an adapter, like that of loralib: in evaluation mode it is added to the weights."""

    def __init__(self, inputs: int, outputs: int, merge: bool) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))
        self.merge, self.merged = merge, False

    def train(self, mode: bool = True) -> Adapted:
        super().train(mode)
        if self.merge and self.merged == mode:
            self.weight.data += (-1 if mode else 1) * self.up.data @ self.down.data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        own = super().forward(x)
        return own if self.merged else own + F.linear(F.linear(x, self.down), self.up)


class Frozen(nn.Sequential):
    """A `train` of its own that changes no weights."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self[0].eval()
        return self


def net(merge: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Adapted(4, 6, merge), nn.ReLU(), nn.Linear(6, 3))


def test_the_weight_is_named_and_the_network_is_left_alone() -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    assert changed_by_eval(model, from_training=False) == "0.weight"
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.eval()
    assert changed_by_eval(model, from_training=False) == ""
    assert changed_by_eval(model, from_training=True) == "0.weight"
    others = [net(merge=False), Frozen(nn.BatchNorm1d(3), nn.Linear(3, 2)), nn.Linear(2, 2)]
    assert [changed_by_eval(other, from_training=True) for other in others] == ["", "", ""]


@pytest.mark.parametrize("dropout", [False, True])
def test_predict_changes_no_weights(dropout: bool) -> None:
    model, x = net(), torch.randn(5, 4)
    posterior = (
        Dropout(rate=0.3).posterior([Dropout(rate=0.3).build(model)]) if dropout else Vanilla().posterior([model])
    )
    before = copy.deepcopy(posterior.state_dict())
    with pytest.raises(InputError, match=r"eval\(\) changes the network's '.*0.weight'.*call eval\(\)"):
        predict(posterior, x, samples=2)
    assert all(torch.equal(value, before[name]) for name, value in posterior.state_dict().items())
    with torch.no_grad():
        drawn = posterior.draw(torch.Generator())(x)
    assert drawn.shape == (5, 3)
    assert all(torch.equal(value, before[name]) for name, value in posterior.state_dict().items())
    expected = model.eval()(x).softmax(-1)
    if not dropout:
        torch.testing.assert_close(drawn.softmax(-1), expected.detach(), rtol=1e-5, atol=1e-6)
        for _ in range(2):
            torch.testing.assert_close(predict(model, x).probs, expected.detach(), rtol=1e-5, atol=1e-6)
    separate = net(merge=False)
    torch.testing.assert_close(predict(separate, x).probs, expected.detach(), rtol=1e-5, atol=1e-6)


def test_training_and_posteriors_refuse_it() -> None:
    data = TensorData(torch.randn(12, 4), torch.arange(12) % 3, 3)
    settings = TrainSettings(epochs=1, batch_size=6)
    with pytest.raises(InputError, match=r"fit: .*merge_weights=False"):
        fit(Vanilla(), net().eval(), data, settings=settings, progress=False)
    with pytest.raises(InputError, match=r"to_bayesian: .*'0\.weight'"):
        to_bayesian(net())
    with pytest.raises(InputError, match=r"swag: .*'0\.weight'"):
        SWAG().build(net())
    fit(Vanilla(), net(merge=False), data, settings=settings, progress=False)
    to_bayesian(net(merge=False))
