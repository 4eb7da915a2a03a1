"""Compiled networks in fixed memory: the same draws as without, for every kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule, to_bayesian
from avuc.prediction import Predictor
from avuc.prediction.arguments import Arguments
from avuc.prediction.backends.static_net import Captured, StaticNet


class Net(nn.Module):
    """Convolutions with and without a bias, batch normalisation, attention, a parameter of its own, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.second, self.norm2 = nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.place, self.words = nn.Parameter(torch.randn(1, 8)), nn.Embedding(8, 8)
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
        self.tied, self.head = nn.Linear(8, 8), nn.Linear(8, 5)
        self.tied.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm2(self.second(self.norm1(self.first(x)).relu())).relu().flatten(2).mT + self.place
        x = x + self.words(torch.arange(8, device=x.device))[None, : x.shape[1]].mean(1, keepdim=True)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        logits: Tensor = self.head(self.tied(x).relu().mean(1))
        return logits


def made(**options: Any) -> BayesianModule:
    torch.manual_seed(0)
    net = Net()
    for norm in (net.norm1, net.norm2):
        norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2), nn.init.normal_(norm.weight)
    return to_bayesian(net, initial_std=0.1, **options)


def images(rows: int = 10) -> Tensor:
    return torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the compiler, which runs the function as it is."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr("avuc.nets.runner._SHARED", {})


def static(predictor: Predictor) -> StaticNet | None:
    (backend,) = predictor._runner.generic.values()
    return backend._static


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("posterior", ["mean_field", "radial"])
@pytest.mark.parametrize("memory", [0, 3000, 1 << 20])
def test_same_draws_as_without(posterior: str, memory: int) -> None:
    bayesian, x = made(posterior=posterior), images()
    expected = Predictor(bayesian, samples=5, batch_size=4, compiled=False).logits(x)
    predictor = Predictor(bayesian, samples=5, batch_size=4, compiled=True, memory=memory)
    for _ in range(2):  # the second time some samples may have been kept
        torch.testing.assert_close(predictor.logits(x), expected, rtol=1e-5, atol=1e-5)
    net = static(predictor)
    assert net is not None
    assert len(net._kept) == min(5, memory // sum(part.nbytes for _, part in net._buffers[0].parts))


@pytest.mark.usefixtures("uncompiled")
def test_low_precision() -> None:
    bayesian, x = made(), images()
    options: dict[str, Any] = {"samples": 3, "dtype": torch.bfloat16}
    expected = Predictor(bayesian, compiled=False, **options).logits(x)
    predictor = Predictor(bayesian, compiled=True, **options)
    found = predictor.logits(x)
    assert (found - expected).abs().max() < 0.03 * expected.std()
    net = static(predictor)
    assert net is not None
    weights = net._buffers[0].weights
    low = {name for name, value in weights.items() if value.dtype == torch.bfloat16}
    # what autocast does not cast stays: the embedding whose weight a linear layer shares, the parameter, the norms;
    # on a CPU also the attention
    assert low == {
        "first.weight",
        "first.bias",
        "second.weight",
        "second.bias",
        "tied.bias",
        "head.weight",
        "head.bias",
    }


@pytest.mark.usefixtures("uncompiled")
def test_two_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of draws, copies and replays on a GPU, with stand-ins for streams and graphs."""
    captures: list[int] = []

    class Nothing:
        def __init__(self, *args: object) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *args: object) -> None: ...
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args: None

    class Graph:
        def __init__(self, run: Callable[[], None]) -> None:
            self.replay = run

    def capture(self: StaticNet, fixed: Arguments) -> Captured:
        place, function = self._active, self._functions[self._active]
        output = torch.full_like(function(*fixed.args), torch.nan)
        captures.append(place)
        return Captured(Graph(lambda: output.copy_(function(*fixed.args))), output)  # type: ignore[arg-type]

    def on_gpu(self: StaticNet) -> bool:
        return True

    for name in ("Stream", "Event", "stream", "device", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Nothing)
    monkeypatch.setattr(StaticNet, "_cuda", property(on_gpu, lambda *_: None), raising=False)
    monkeypatch.setattr(StaticNet, "_capture", capture)
    bayesian = made()
    for rows in (4, 10):
        x = images(rows)
        expected = Predictor(bayesian, samples=5, batch_size=4, compiled=False).logits(x)
        predictor = Predictor(bayesian, samples=5, batch_size=4, compiled=True, memory=0)
        for _ in range(2):
            torch.testing.assert_close(predictor.logits(x), expected, rtol=1e-5, atol=1e-5)
        x.add_(1)  # the same tensor with other values
        expected = Predictor(bayesian, samples=5, batch_size=4, compiled=False).logits(x)
        torch.testing.assert_close(predictor.logits(x), expected, rtol=1e-5, atol=1e-5)
    assert captures == [0, 1, 0, 1] or captures == [1, 0, 1, 0]


def test_a_network_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(function: object, **options: object) -> Callable[..., None]:
        def fail(*args: object, **kwargs: object) -> None:
            raise RuntimeError("no compiler\nhere")

        return fail

    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setattr("avuc.nets.runner._SHARED", {})
    bayesian, x = made(), images()
    expected = Predictor(bayesian, samples=3).logits(x)
    predictor = Predictor(bayesian, samples=3, compiled=True)
    with pytest.warns(UserWarning, match="runs without torch.compile, which failed: RuntimeError: no compiler here"):
        found = predictor.logits(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(predictor.logits(x), expected)  # no second warning


@pytest.mark.slow
def test_with_the_compiler() -> None:
    bayesian, x = made(), images()
    expected = Predictor(bayesian, samples=3, batch_size=4).logits(x)
    found = Predictor(bayesian, samples=3, batch_size=4, compiled=True).logits(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_on_a_gpu(dtype: torch.dtype | None) -> None:
    """The kernel's random numbers, two streams and the graphs give the draws of plain torch."""
    bayesian, x = made().cuda(), images().cuda()
    expected = Predictor(bayesian, samples=9, dtype=dtype, compiled=False).logits(x)
    predictor = Predictor(bayesian, samples=9, dtype=dtype, compiled=True)
    for _ in range(2):
        found = predictor.logits(x)
        assert (found - expected).abs().max() < (0.001 if dtype is None else 0.05) * expected.std()
    net = static(predictor)
    assert net is not None
    assert net.uncaptured is None
    assert len(net._graphs) == 1
    assert net._draws._kernel is not None
