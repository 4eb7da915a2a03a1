"""A layer whose `forward` is a closure keeps using the original in a copy, so training and posteriors refuse it."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc import predict, to_bayesian
from avuc.core.errors import InputError
from avuc.core.shared_functions import independent_copy, shared_function
from avuc.data.tensors import TensorData
from avuc.methods import LLSVI, SVI, SWAG, Dropout, Ensemble, Objective, Vanilla
from avuc.train import TrainSettings, fit

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
SETTINGS = TrainSettings(epochs=8, batch_size=20, milestones=(), factors=())
GLOBAL: nn.Module = nn.Linear(4, 3)


class Own(nn.Module):
    """A function that the constructor makes, which its forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.block: Callable[[Tensor], Tensor] = lambda x: self.linear(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def linear() -> nn.Linear:
    return nn.Linear(4, 3)


def closure(net: nn.Module) -> nn.Module:
    layer = net[0]
    layer.forward = lambda x: F.linear(x, layer.weight)
    return net


def default(net: nn.Module) -> nn.Module:
    def forward(x: Tensor, layer: nn.Module = net[0]) -> Tensor:
        return F.linear(x, layer.weight)

    net[0].forward = forward
    return net


def wrapped(net: nn.Module) -> nn.Module:
    original = net[0].forward
    net[0].forward = lambda x: original(x) + 1
    return net


def weight_alone(net: nn.Module) -> nn.Module:
    weights = [net[0].weight]
    net[0].forward = lambda x: F.linear(x, weights[0])
    return net


def in_a_partial(net: nn.Module) -> nn.Module:
    layer = net[0]
    net[0].forward = functools.partial(lambda factor, x: factor * F.linear(x, layer.weight), 2)
    return net


def nested(net: nn.Module) -> nn.Module:
    def forward(x: Tensor) -> Tensor:
        return torch.stack([F.linear(part, net[0].weight) for part in x])

    net[0].forward = lambda x: forward(x)
    return net


def of_a_larger(net: nn.Module) -> nn.Module:
    larger = nn.Sequential(net, nn.ReLU())
    net[0].forward = lambda x: F.linear(x, larger[0][0].weight)
    return net


def global_variable(net: nn.Module) -> nn.Module:
    made = nn.Sequential(GLOBAL, *net[1:])
    made[0].forward = lambda x: F.linear(x, GLOBAL.weight)
    return made


CLOSURES = [closure, default, wrapped, weight_alone, in_a_partial, nested, of_a_larger, global_variable]


@pytest.mark.parametrize("change", CLOSURES)
def test_functions_that_a_copy_would_share_are_refused(change: Callable[[nn.Module], nn.Module]) -> None:
    net = change(nn.Sequential(linear(), nn.Softplus()))
    twin = copy.deepcopy(net)
    with torch.no_grad():
        before = twin(X)
        for parameter in twin.parameters():
            parameter.add_(1)
        assert torch.equal(twin(X), before)  # the copy's weights have no effect
    assert shared_function(net) == "0.forward"
    with pytest.raises(InputError, match=r"copy of Sequential would use the original's weights: its '0.forward'"):
        independent_copy(net)
    GLOBAL.__dict__.pop("forward", None)


@pytest.mark.parametrize("method", [Vanilla(), SVI(), LLSVI(), SWAG(), Dropout(), Ensemble(2)])
def test_training_and_posteriors_refuse_them(method: Vanilla) -> None:
    net = closure(nn.Sequential(linear(), nn.ReLU(), nn.Linear(3, 2)))
    with pytest.raises(InputError, match="would use the original's weights") as caught:
        method.build(net)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="would use the original's weights"):
        fit(method, lambda generator: net, data(), objective=Objective(), settings=SETTINGS, progress=False)
    with pytest.raises(InputError, match="would use the original's weights"):
        fit(method, lambda generator: Own(), data(), objective=Objective(), settings=SETTINGS, progress=False)
    with pytest.raises(InputError, match="its 'block' is a function"):
        to_bayesian(Own())


def data() -> TensorData:
    return TensorData(X, (X[:, 0] > 0).long(), 2)


def test_what_a_copy_gets_for_itself_is_accepted() -> None:
    def double(self: nn.Linear, x: Tensor) -> Tensor:
        return 2 * F.linear(x, self.weight)

    def patched(make: Callable[[nn.Linear], object]) -> nn.Linear:
        layer = linear()
        layer.forward = make(layer)  # type: ignore[assignment]
        return layer

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(4, 3), lambda x: x.relu()
            self.note = lambda: self  # the forward pass does not call it

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.linear(x))

    other = nn.Linear(4, 3)
    assert not shared_function(torch.compile(linear(), backend="eager"))  # its copy is compiled again
    nets: list[nn.Module] = [
        linear(),
        Holder(),
        patched(lambda layer: types.MethodType(double, layer)),
        patched(lambda layer: functools.partial(double, layer)),
        patched(lambda layer: functools.partial(torch.no_grad()(double), layer)),
        patched(lambda layer: lambda x: x),
        patched(lambda layer: lambda x: other(x)),  # a part of no network here
    ]
    for net in nets:
        twin = independent_copy(net)
        assert twin is not net
        assert torch.equal(twin(X), net(X))
    with torch.no_grad():
        for net in nets[:5]:
            twin = independent_copy(net)
            for parameter in twin.parameters():
                parameter.zero_()
            assert not twin(X).any()
            assert net(X).any()


def test_predict_takes_them_because_it_shares_the_weights() -> None:
    net = closure(nn.Sequential(linear(), nn.Softplus())).eval()
    found = predict(net, X).probs
    torch.testing.assert_close(found.float(), net(X).softmax(1).detach())
