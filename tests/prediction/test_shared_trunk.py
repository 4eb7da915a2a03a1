"""SharedTrunkBackend: the network before the last layer runs once, and only if that gives the same function."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.methods.dropout import DropoutPosterior
from avuc.methods.ll_dropout import LLDropout
from avuc.nets import mlp, resnet20, small_cnn
from avuc.posterior import NetDraw, sample_generator
from avuc.prediction.backends.shared_trunk import SharedTrunkBackend
from avuc.prediction.predictor import Predictor


class Counted(nn.Module):
    """A net of two layers that says how often it ran."""

    def __init__(self, end: Callable[[Tensor], Tensor] = lambda x: x, bias: bool = True) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3, bias=bias)
        self.end, self.rows = end, 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return self.end(self.last(torch.relu(self.first(x))))


def inputs(rows: int = 7) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))


def check(posterior: object, x: Tensor, used: bool, draws: int = 20) -> Predictor:
    """The logits of all samples equal those of each sample called alone; `used`: whether this backend ran them."""
    predictor = Predictor(posterior, samples=draws, batch_size=3)
    found = predictor.logits(x)
    with torch.no_grad():
        expected = torch.stack([posterior.draw(sample_generator(0, s))(x) for s in range(draws)])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # a backend that does not support a sample is replaced by the generic one
    assert (isinstance(predictor._runner.special, SharedTrunkBackend) and not predictor._runner.generic) == used
    return predictor


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["mean_field", "radial"])
def test_variational_last_layer(kind: str, bias: bool) -> None:
    torch.manual_seed(0)
    check(to_bayesian(Counted(bias=bias), layers="last", posterior=kind, initial_std=0.3), inputs(), True)
    check(to_bayesian(Counted(bias=bias), layers=lambda name, _: name == "first", posterior=kind), inputs(), False)
    check(to_bayesian(Counted(bias=bias), posterior=kind), inputs(), False)


@pytest.mark.parametrize("make", [mlp, small_cnn])
def test_nets(make: Callable[..., nn.Module]) -> None:
    net = make(3, (12, 12, 1), generator=torch.Generator().manual_seed(0))
    x = torch.rand(7, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    check(to_bayesian(net, layers="last", initial_std=0.3), x, True)
    check(LLDropout().posterior([LLDropout().build(net)]), x, True)


def test_resnet() -> None:
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    check(to_bayesian(resnet20(3, generator=torch.Generator().manual_seed(0)), layers="last"), x, True, draws=3)


def test_a_linear_layer_alone() -> None:
    torch.manual_seed(0)
    check(to_bayesian(nn.Linear(4, 3), initial_std=0.3), inputs(), True)


def test_dropout_before_the_last_layer_only() -> None:
    torch.manual_seed(0)
    check(LLDropout().posterior([LLDropout().build(Counted())]), inputs(), True)
    own = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    check(DropoutPosterior.of_own_layers(own), inputs(), False)


def test_the_net_runs_once_for_all_draws() -> None:
    torch.manual_seed(0)
    posterior = to_bayesian(Counted(), layers="last")
    predictor = Predictor(posterior, samples=50)
    predictor(inputs())
    assert predictor._runner.special._runner.module.rows == 7
    predictor(inputs(5))
    assert predictor._runner.special._runner.module.rows == 12


@pytest.mark.parametrize(
    "end", [lambda x: 2 * x, torch.relu, lambda x: x.view(len(x), -1), lambda x: x.log_softmax(-1)]
)
def test_what_follows_the_layer_is_not_lost(end: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    check(to_bayesian(Counted(end), layers="last", initial_std=0.3), inputs(), False)


def test_a_layer_called_twice_or_along_a_sequence() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.last(x))

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x.view(len(x), 2, 2)).sum(1)

    torch.manual_seed(0)
    check(to_bayesian(Twice(), layers="last"), inputs(), False)
    check(to_bayesian(Tokens(), layers="last"), inputs(), False)


def test_a_path_that_only_some_batches_take() -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits = self.last(x)
            return 3 * logits if bool((x > 50).any()) else logits

    torch.manual_seed(0)
    x = inputs()
    x[5, 2] = 100.0  # in the second batch
    posterior = to_bayesian(Fickle(), layers="last")
    predictor = Predictor(posterior, samples=2, batch_size=3)
    with torch.no_grad():
        expected = torch.stack(
            [torch.cat([posterior.draw(sample_generator(0, s))(part) for part in x.split(3)]) for s in range(2)]
        )
    torch.testing.assert_close(predictor.logits(x), expected, rtol=1e-5, atol=1e-5)


def test_tied_and_hooked_layers_use_the_generic_backend() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
            self.first.weight = self.last.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.first(x)))

    class Some:
        num_draws = None

        def __init__(self, net: nn.Module) -> None:
            self.net = net

        def draw(self, generator: torch.Generator) -> NetDraw:
            weight = self.net.last.weight
            return NetDraw(self.net, {"last.weight": torch.randn(weight.shape, generator=generator)})

    torch.manual_seed(0)
    check(Some(Tied()), inputs(), False)
    hooked = Counted()
    hooked.last.register_forward_hook(lambda module, args, output: output + 1)
    check(Some(hooked), inputs(), False)
    check(Some(Counted()), inputs(), True)


def test_precision() -> None:
    torch.manual_seed(0)
    net = Counted().double()
    found = check(to_bayesian(net, layers="last"), inputs().double(), True).logits(inputs().double())
    assert found.dtype == torch.float64
    low = Predictor(to_bayesian(Counted(), layers="last"), samples=3, dtype=torch.bfloat16).logits(inputs())
    assert low.dtype == torch.float32
