"""A Predictor never serves the draws of a posterior that has changed since, however it was changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.core.fingerprint import COLUMNS, _product, fingerprint, structure
from avuc.data.arrays import as_input
from avuc.methods.batch_norm import PerDrawBatchNorm
from avuc.methods.dropout import Dropout, DropoutPosterior
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets import runner as running
from avuc.nets import small_cnn
from avuc.posterior import Posterior
from avuc.prediction import predict
from avuc.prediction.predictor import Predictor


def images(rows: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (rows, 12, 12, 1), dtype=torch.uint8, generator=generator)


def cnn(seed: int = 0) -> nn.Module:
    net = small_cnn(10, (12, 12, 1), width=4, generator=torch.Generator().manual_seed(seed))
    net.train()(as_input(images(64, seed=9)))
    return net


class Scaled(nn.Module):
    """A network with a plain attribute, a list of numbers and a dropout layer of its own."""

    takes_bytes = True

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.dropout, self.linear = nn.Dropout(0.2), nn.Linear(400, 10)
        self.scale, self.powers = 1.0, [1.0]

    def forward(self, x: Tensor) -> Tensor:
        features = self.dropout(torch.relu(self.bn(self.conv(x))).flatten(1))
        logits: Tensor = self.scale * self.powers[0] * self.linear(features)
        return logits


def scaled() -> Scaled:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Scaled()


MADE: dict[str, Callable[[], nn.Module]] = {
    "net": lambda: DeterministicPosterior(scaled()),
    "ensemble": lambda: EnsemblePosterior([DeterministicPosterior(scaled()), DeterministicPosterior(cnn())]),
    "dropout": lambda: DropoutPosterior(Dropout(0.3).build(scaled())),
    "own dropout": lambda: DropoutPosterior.of_own_layers(scaled()),
    "mean field": lambda: to_bayesian(scaled(), initial_std=0.2),
    "last": lambda: to_bayesian(scaled(), layers="last", initial_std=0.5),
    "own statistics": lambda: PerDrawBatchNorm(to_bayesian(scaled(), initial_std=0.2), images(32, seed=4)),
}


def net_of(posterior: nn.Module) -> Scaled:
    """The network inside; not `PerDrawBatchNorm`' own copy of it."""
    inner = posterior.posterior if isinstance(posterior, PerDrawBatchNorm) else posterior
    return next(module for module in inner.modules() if isinstance(module, Scaled))


def weights_of(posterior: nn.Module) -> nn.Module:
    return posterior.posterior if isinstance(posterior, PerDrawBatchNorm) else posterior


def first(posterior: nn.Module) -> nn.Parameter:
    return next(weights_of(posterior).parameters())


def write_data(posterior: nn.Module) -> None:
    for parameter in posterior.parameters():
        parameter.data.add_(0.1)


def permute_in_place(posterior: nn.Module) -> None:
    for parameter in weights_of(posterior).parameters():
        parameter.data.copy_(parameter.data.flatten().flip(0).view_as(parameter))


def optimiser_step(posterior: nn.Module, **options: bool) -> None:
    optimiser = torch.optim.SGD(posterior.parameters(), lr=1.0, **options)
    for parameter in posterior.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    optimiser.step()
    optimiser.zero_grad()


def numpy_write(posterior: nn.Module) -> None:
    first(posterior).detach().numpy().ravel()[:40] += 1


def replace_weights(posterior: nn.Module) -> None:
    bn = net_of(posterior).bn
    bn.weight = nn.Parameter(bn.weight.detach() * 3)


def assign_state(posterior: nn.Module) -> None:
    bn = net_of(posterior).bn
    bn.load_state_dict({key: value + 1 for key, value in bn.state_dict().items()}, assign=True)


def add_hook(posterior: nn.Module) -> None:
    net_of(posterior).linear.register_forward_hook(lambda *arguments: 3 * arguments[2])


CHANGES: dict[str, Callable[[nn.Module], None]] = {
    "p.data.add_": write_data,
    "permuted in place": permute_in_place,
    "through numpy": numpy_write,
    "no_grad copy_": lambda posterior: torch.no_grad()(lambda: first(posterior).copy_(first(posterior) * 2))(),
    "optimiser": optimiser_step,
    "foreach optimiser": lambda posterior: optimiser_step(posterior, foreach=True),
    "fused optimiser": lambda posterior: optimiser_step(posterior, fused=True),
    "parameter replaced": replace_weights,
    "load_state_dict(assign=True)": assign_state,
    "running statistics": lambda posterior: net_of(posterior).bn.running_var.data.mul_(4),
    "running statistics, by training": lambda posterior: net_of(posterior).bn.train()(torch.rand(8, 4, 5, 5)),
    "eps": lambda posterior: setattr(net_of(posterior).bn, "eps", 3.0),
    "attribute": lambda posterior: setattr(net_of(posterior), "scale", 5.0),
    "list": lambda posterior: net_of(posterior).powers.__setitem__(0, 4.0),
    "layer replaced": lambda posterior: setattr(net_of(posterior), "bn", nn.GroupNorm(1, 4)),
    "hook": add_hook,
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_posterior_is_noticed(name: str, change: str) -> None:
    posterior = MADE[name]()
    predictor = Predictor(posterior, samples=3)
    before = predictor(images())
    CHANGES[change](posterior)
    found, fresh = predictor(images()), predict(posterior, images(), samples=3)
    assert torch.equal(found.probs, fresh.probs)
    # statistics that are measured again for each draw do not depend on the running ones
    if name != "own statistics" or not change.startswith("running"):
        assert not torch.equal(found.probs, before.probs)


@pytest.mark.parametrize("name", ["dropout", "own dropout"])
def test_a_changed_dropout_rate_is_noticed(name: str) -> None:
    posterior = MADE[name]()
    predictor = Predictor(posterior, samples=3)
    before = predictor(images())
    for layer in net_of(posterior).modules():
        if isinstance(layer, nn.Dropout) and name == "own dropout":
            layer.p = 0.9
        for hook in layer._forward_pre_hooks.values() if name == "dropout" else ():
            hook.rate = 0.9
    assert torch.equal(predictor(images()).probs, predict(posterior, images(), samples=3).probs)
    assert not torch.equal(predictor(images()).probs, before.probs)


def test_a_posterior_that_is_no_module() -> None:
    class Own:
        num_draws = None

        def __init__(self) -> None:
            self.nets, self.numbers, self.scale = [scaled()], np.ones(3), 1.0

        def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
            factor = self.scale * float(self.numbers.sum())
            net = scaled().requires_grad_(False)
            net.load_state_dict({key: value * factor for key, value in self.nets[0].state_dict().items()})
            return DeterministicPosterior(net).draw(generator)

    def write(own: Own) -> None:
        own.nets[0].linear.weight.data.mul_(-1)

    changes: list[Callable[[Own], None]] = [
        write,
        lambda own: setattr(own, "scale", 2.0),
        lambda own: own.numbers.__setitem__(1, 5.0),
    ]
    for change in changes:
        posterior = Own()
        predictor = Predictor(posterior, samples=1)
        before = predictor(images())
        change(posterior)
        found = predictor(images())
        assert torch.equal(found.probs, predict(posterior, images(), samples=1).probs)
        assert not torch.equal(found.probs, before.probs)


def test_a_compiled_net_with_another_attribute_is_another_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(running, "_SHARED", {})
    posterior = DeterministicPosterior(scaled())
    before = predict(posterior, images(), compiled=True)
    posterior.net.scale = 3.0
    found = predict(posterior, images(), compiled=True)
    expected = predict(posterior, images(), compiled=False)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-6)  # batches are filled up
    assert not torch.equal(found.probs, before.probs)


def test_an_unchanged_posterior_keeps_its_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = MADE["mean field"]().eval()  # or the forward pass below would change the running statistics
    made: list[int] = []
    draw = posterior.draw
    monkeypatch.setattr(posterior, "draw", lambda generator: (made.append(1), draw(generator))[1])
    predictor = Predictor(posterior, samples=4)
    for seed in range(3):
        predictor(images(seed=seed))
        for parameter in posterior.parameters():
            parameter.grad = torch.ones_like(parameter)
        posterior(as_input(images())).sum().backward()
        posterior.state_dict()
    assert len(made) == 4


def numbers() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for size in (1, 7, COLUMNS, 8 * COLUMNS + 3, 300_001):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
            drawn = torch.randint(0, 100, (size,), generator=generator)
            yield drawn.to(dtype)


def test_every_single_number_counts() -> None:
    for tensor in numbers():
        before = fingerprint(tensor)
        assert fingerprint(tensor) == before
        for place in {0, len(tensor) // 2, len(tensor) - 1}:
            kept = tensor[place].clone()
            tensor[place] = not kept if tensor.dtype == torch.bool else kept + 1
            assert fingerprint(tensor) != before
            tensor[place] = kept
        assert fingerprint(tensor) == before


def test_the_product_of_other_devices_is_that_of_the_cpu() -> None:
    """Integers wrap around in the same way."""
    matrix = torch.randint(-(2**62), 2**62, (20_000, 16), generator=torch.Generator().manual_seed(0))
    vector = torch.randint(-(2**62), 2**62, (16,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(_product(matrix, vector), torch.mv(matrix, vector))


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    net = scaled().cuda()
    before = fingerprint(net)
    assert fingerprint(net) == before
    net.linear.weight.data[3, 5] += 1
    assert fingerprint(net) != before


def test_moved_numbers_count() -> None:
    """A sum would not notice that two numbers have changed places."""
    tensor = torch.rand(50_000, generator=torch.Generator().manual_seed(0))
    before = fingerprint(tensor)
    for one, other in ((0, 1), (0, 2 * COLUMNS), (5, 49_999), (3, 2 * COLUMNS + 4)):
        tensor[[one, other]] = tensor[[other, one]]
        assert fingerprint(tensor) != before
        tensor[[one, other]] = tensor[[other, one]]
    assert fingerprint(tensor) == before


def test_tensors_of_any_layout() -> None:
    base = torch.rand(6, 8, 5, 5)
    for tensor in (
        base,
        base.to(memory_format=torch.channels_last),
        base[::2],
        base[:, 1:],
        base[0, 0, 0, 0],
        base[:0],
    ):
        before = fingerprint(tensor)
        assert fingerprint(tensor) == before
        tensor += 1
        assert (fingerprint(tensor) != before) == (tensor.numel() > 0)
    assert fingerprint(torch.empty(3, device="meta")) is not None
    assert fingerprint(torch.rand(3, 3).to_sparse()) is not None


def test_objects_that_contain_each_other() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net.again, net.own, net._kept = [net, {"net": net}], object(), torch.zeros(3)
    net.settings, net.chosen = SimpleNamespace(scale=1.0), {"a"}
    net.log, net.lock = logging.getLogger("a"), threading.Lock()
    net.array, net.fixed = np.zeros((2, 3)), np.broadcast_to(np.ones(1), (4,))
    changes: list[Callable[[], object]] = [
        lambda: net[0].weight.data.add_(1),
        lambda: setattr(net.settings, "scale", 2.0),
        lambda: net.chosen.add("b"),
        lambda: net.array.__setitem__((0, 1), 5.0),
        lambda: net._kept.add_(1),
    ]
    for change in changes:
        before = fingerprint(net)
        assert fingerprint(net) == before
        change()
        assert fingerprint(net) != before
    assert structure(net) == structure(net)


def test_posterior_protocol_still_holds() -> None:
    for make in MADE.values():
        assert isinstance(make(), Posterior)
