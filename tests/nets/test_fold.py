"""Folded batch normalisation is the same function; where it would not be, nothing is folded."""

from __future__ import annotations

import copy
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from avuc.bayes import to_bayesian
from avuc.nets import resnet20, resnet50, small_cnn
from avuc.nets import runner as running
from avuc.nets.fold import conv_bn_pairs, fold, state_of
from avuc.nets.runner import Runner


def lived_in(module: nn.Module, seed: int = 0) -> nn.Module:
    """Batch normalisation as after training: statistics and affine parameters that are not 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            for name in ("running_mean", "bias"):
                if getattr(layer, name) is not None:
                    getattr(layer, name).data.normal_(0, 0.3, generator=generator)
            for name in ("running_var", "weight"):
                if getattr(layer, name) is not None:
                    getattr(layer, name).data.uniform_(0.5, 1.5, generator=generator)
    return module.eval()


class Residual(nn.Module):
    """The convolution's output also goes round the normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.bn(y) + y


class Twice(nn.Module):
    """One convolution called twice, normalised once."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) + self.conv(2 * x)


class Borrowed(nn.Module):
    """The convolution's weight is also read by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) + self.conv.weight.sum()


class Renamed(nn.Module):
    """The normalisation is not called under its first name, but under a second one or from a plain list."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
        if registered:
            self.alias = self.bn
        self.layers = [self.bn]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](self.conv(x))


class Looking(nn.Module):
    """The forward pass also computes with the normalisation's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        factor = (self.bn.weight * 2).mean()
        return factor * self.bn(self.conv(x))


class Shared(nn.Module):
    """One normalisation after two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.bn = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.two(self.bn(self.one(x))))


class Sized(nn.Module):
    """What happens depends on the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) if x.shape[0] > 2 else self.conv(x)


def shared_statistics() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2))
    module[3].running_mean, module[3].running_var = module[1].running_mean, module[1].running_var
    return module


class Branching(nn.Module):
    """Cannot be traced: what happens depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) if x.sum() > 0 else x


def tied() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2))
    module[2].weight = module[0].weight
    return module


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2))
    module[0].register_forward_hook(lambda layer, inputs, output: output * 2)
    return module


def patched(place: int, bound: bool) -> nn.Module:
    """A layer got a forward function of its own, as by libraries that add adapters."""
    module = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2))
    layer, kind = module[place], type(module[place])

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return 2 * kind.forward(self, x)  # type: ignore[arg-type]

    layer.forward = types.MethodType(forward, layer) if bound else lambda x: forward(layer, x)
    return module


def normed() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 3)), nn.BatchNorm2d(2))


EXACT = {
    "resnet20": (resnet20, (2, 3, 32, 32), 19),
    "resnet20 B": (lambda: resnet20(shortcut="B"), (2, 3, 32, 32), 21),
    "resnet50": (lambda: resnet50(5, (32, 32, 3)), (1, 3, 32, 32), 53),
    "small_cnn": (small_cnn, (2, 1, 28, 28), 3),
    "bias, groups": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), (2, 4, 7, 7), 1),
    "circular, dilated": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=2, dilation=2, padding_mode="circular"), nn.BatchNorm2d(3)),
        (2, 2, 8, 8),
        1,
    ),
    "1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU()), (2, 2, 9), 1),
    "3d, no affine": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3, affine=False)), (2, 2, 4, 4, 4), 1),
    "from a list": (lambda: Renamed(registered=False), (2, 2, 8, 8), 1),
    "eps": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3, eps=0.5)), (2, 2, 4, 4), 1),
}

NOT = {
    "residual": Residual,
    "twice": Twice,
    "borrowed": Borrowed,
    "branching": Branching,
    "looking": Looking,
    "another name": lambda: Renamed(registered=True),
    "one normalisation after two": Shared,
    "by the size of the batch": Sized,
    "shared statistics": shared_statistics,
    "tied": tied,
    "hooked": hooked,
    "own forward of the convolution": lambda: patched(0, bound=True),
    "own forward of the normalisation": lambda: patched(1, bound=True),
    "a function in place of the convolution's forward": lambda: patched(0, bound=False),
    "a function in place of the normalisation's forward": lambda: patched(1, bound=False),
    "weight norm": normed,
    "batch statistics": lambda: nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2, track_running_stats=False)),
    "other order": lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3)),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 3), nn.BatchNorm2d(2)),
    "layer norm": lambda: nn.Sequential(nn.Conv2d(2, 2, 3), nn.GroupNorm(1, 2)),
}


@pytest.mark.parametrize("case", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_function(case: str, dtype: torch.dtype) -> None:
    make, shape, count = EXACT[case]
    net = lived_in(make()).to(dtype)
    x = torch.rand(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    folded = fold(net)
    assert len(folded.pairs) == count
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in folded.module.modules())
    found = functional_call(folded.module, folded.weights(state_of(net)), (x,))
    expected = net(x)
    # relative to the logits' size, which untrained nets make large
    scale = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=scale * (1e-5 if dtype == torch.float32 else 1e-12))


@pytest.mark.parametrize("case", NOT)
def test_nothing_is_folded_where_it_would_not_be_exact(case: str) -> None:
    net = lived_in(NOT[case]())
    assert conv_bn_pairs(net) == []
    x = torch.rand(2, 2, 8, 8)
    with torch.no_grad():
        assert torch.equal(Runner(net).function({})(x), net(x))


def test_the_module_is_left_alone() -> None:
    net = lived_in(small_cnn()).train()
    before = copy.deepcopy(net.state_dict())
    fold(net)
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize("names", [["conv2.weight"], ["conv2.weight", "bn2.weight"], ["bn1.running_mean"], []])
def test_runner_with_drawn_weights(names: list[str]) -> None:
    net = lived_in(small_cnn())
    generator = torch.Generator().manual_seed(2)
    state = state_of(net)
    drawn = {name: torch.rand(state[name].shape, generator=generator) for name in names}
    x = torch.rand(3, 1, 28, 28, generator=generator)
    with torch.no_grad():
        expected = functional_call(net, drawn, (x,))
        for folded in (True, False):
            runner = Runner(net, folded=folded)
            runner.function({name: value + 1 for name, value in drawn.items()})  # an earlier draw leaves no trace
            torch.testing.assert_close(runner.function(drawn)(x), expected, rtol=1e-5, atol=1e-5)


def test_runner_evaluates_a_net_in_training_mode() -> None:
    net = lived_in(small_cnn())
    x = torch.rand(3, 1, 28, 28)
    expected = net(x).detach()
    net.train()
    torch.testing.assert_close(Runner(net).function({})(x), expected, rtol=1e-5, atol=1e-5)
    assert net.training


def test_compiled_once_for_all_draws_and_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real tracer with a backend that compiles nothing; a second trace would be an error."""
    compiled = []
    real = torch.compile

    def count(function: object, **options: object) -> object:
        compiled.append(options)
        return real(function, backend="eager", dynamic=False, fullgraph=True)

    monkeypatch.setattr(torch, "compile", count)
    monkeypatch.setattr(running, "_SHARED", {})
    net = lived_in(small_cnn())
    x = torch.rand(3, 1, 28, 28)
    state = state_of(net)
    try:
        with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
            for seed in range(3):  # three datasets
                runner = Runner(net, compiled=True)
                for draw in range(3):
                    noise = torch.Generator().manual_seed(10 * seed + draw)
                    drawn = {"conv1.weight": torch.randn(state["conv1.weight"].shape, generator=noise)}
                    expected = functional_call(net, drawn, (x,))
                    torch.testing.assert_close(runner.function(drawn)(x), expected, rtol=1e-5, atol=1e-5)
    finally:
        torch._dynamo.reset()
    assert len(compiled) == 1
    changed = copy.deepcopy(net)
    Runner(changed, key=net, compiled=True)
    assert len(compiled) == 1
    changed.bn1 = nn.Identity()
    Runner(changed, key=net, compiled=True)
    assert len(compiled) == 2


def test_nets_of_one_architecture_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: (compiled.append(options), function)[1])
    monkeypatch.setattr(running, "_SHARED", {})
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for seed in range(3):
            net = lived_in(resnet20(generator=torch.Generator().manual_seed(seed)), seed)
            torch.testing.assert_close(Runner(net, compiled=True).function({})(x), net(x), rtol=1e-5, atol=1e-5)
        assert len(compiled) == 1
        torch.manual_seed(0)
        wider, padded = lived_in(resnet20(num_classes=7)), lived_in(resnet20())
        padded.layer2[0].shortcut.before, padded.layer2[0].shortcut.after = 0, 16
        hooked = lived_in(resnet20())
        hooked.layer1.register_forward_hook(lambda module, inputs, output: 2 * output)
        patched = lived_in(resnet20())
        patched.conv1.forward = lambda x: 2 * F.conv2d(x, patched.conv1.weight, padding=1)
        for number, net in enumerate((wider, padded, hooked, patched), start=2):
            torch.testing.assert_close(Runner(net, compiled=True).function({})(x), net(x), rtol=1e-5, atol=1e-5)
            assert len(compiled) == number


def test_a_net_with_attributes_that_its_text_does_not_show_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Times(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor, self.weight = factor, nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.factor * self.weight * x

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(running, "_SHARED", {})
    for factor in (2.0, 3.0):
        assert Runner(Times(factor), compiled=True).function({})(torch.ones(1)) == factor


class Own(nn.Module):
    """A network of a user's: layers of its own, and attributes that decide about the result."""

    def __init__(self, factor: float = 2.0, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.factor = nn.Linear(3, 3), factor
        self.extra: object = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.factor * self.layer(x)
        return x if self.extra is None else x + torch.as_tensor(self.extra)


def test_own_nets_of_one_form_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else decides about the result, an attribute, a tensor or an array beside the weights, is not shared."""
    compiled: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: (compiled.append(options), function)[1])
    monkeypatch.setattr(running, "_SHARED", {})
    x = torch.rand(4, 3)

    def check(net: nn.Module, total: int) -> None:
        with torch.no_grad():
            torch.testing.assert_close(Runner(net, compiled=True).function({})(x), net(x))
        assert len(compiled) == total

    for seed in range(3):
        check(Own(seed=seed), 1)
    check(to_bayesian(Own(seed=3)).mean_module(), 1)  # the network of a posterior has the same form
    check(Own(3.0), 2)
    for total, extra in enumerate((torch.ones(3), torch.zeros(3), np.ones(3, np.float32), np.zeros(3, np.float32)), 3):
        net = Own()
        net.extra = extra
        check(net, total)
    hooked = Own()
    hooked.register_forward_hook(lambda module, inputs, output: 2 * output)
    check(hooked, 7)
    for total in (8, 9):  # a slice has no hash in Python 3.11, so it can be no part of a key
        sliced = Own()
        sliced.columns = slice(0, total)  # type: ignore[assignment]
        check(sliced, total)


def test_what_is_shared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(running, "_SHARED", {})
    for classes in range(2, 2 + 2 * running.MOST_SHARED):
        Runner(small_cnn(classes), compiled=True)
    assert len(running._SHARED) == running.MOST_SHARED


def test_tied_weights_go_by_any_of_their_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
            self.first.weight = self.last.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.first(x)))

    net, x, weight = Tied(), torch.rand(3, 4), torch.rand(4, 4)
    expected = functional_call(net, {"last.weight": weight}, (x,))
    for names in (["last.weight"], ["first.weight"], ["first.weight", "last.weight"]):
        torch.testing.assert_close(Runner(net).function(dict.fromkeys(names, weight))(x), expected)
