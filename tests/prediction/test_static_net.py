"""Compiled networks in fixed memory: the same draws as without, for every kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from avuc.bayes import BayesianModule, to_bayesian
from avuc.nets.runner import Runner
from avuc.prediction import Predictor
from avuc.prediction.arguments import Arguments
from avuc.prediction.backends.static_net import Captured, StaticNet, _shapes


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


class Exact(nn.Module):
    """Switches autocast off for its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x.to(self.last.weight.dtype), self.last.weight, self.last.bias)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(("kind", "low"), [(torch.float32, {"first.weight", "first.bias"}), (torch.float64, set())])
def test_what_autocast_leaves_alone(kind: torch.dtype, low: set[str]) -> None:
    """Layers for which the network switches autocast off, and float64."""
    bayesian, x = to_bayesian(Exact().to(kind), initial_std=0.1), torch.randn(5, 4, dtype=kind)
    options: dict[str, Any] = {"samples": 3, "dtype": torch.bfloat16}
    predictor = Predictor(bayesian, compiled=True, **options)
    expected = Predictor(bayesian, compiled=False, **options).logits(x)
    torch.testing.assert_close(predictor.logits(x), expected, rtol=1e-5, atol=1e-5)
    net = static(predictor)
    assert net is not None
    assert {k for k, value in net._buffers[0].weights.items() if value.dtype == torch.bfloat16} == low


@pytest.mark.usefixtures("uncompiled")
def test_inference_mode_first() -> None:
    bayesian, x = made(), images()
    predictor = Predictor(bayesian, samples=3, compiled=True)
    with torch.inference_mode():
        predictor.logits(x + 0, 2)
    expected = Predictor(bayesian, samples=3, compiled=False).logits(x)
    torch.testing.assert_close(predictor.logits(x), expected, rtol=1e-5, atol=1e-5)
    assert static(predictor) is not None


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore:1 normalises by the statistics:UserWarning")
@pytest.mark.filterwarnings("ignore:module.1 normalises by the statistics:UserWarning")
def test_no_rows_are_added_where_rows_meet() -> None:
    """Statistics of the batch; and arguments with another number of rows, here all nodes of a few graphs."""
    x = torch.randn(5, 4)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 3))

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor, graph: Tensor, scale: Tensor) -> Tensor:
            sums = x.new_zeros(3, 8).index_add(0, graph, self.first(x))
            return self.last(sums) * scale

    graphs = [((x, torch.tensor([0, 0, 1, 1, 2]), torch.tensor(2.0)), torch.tensor([0, 1, 2]))]
    loader: Any = DataLoader(graphs, batch_size=None)  # type: ignore[arg-type]
    for kind, data, options in (
        (net, x, {}),
        (Pooled(), loader, {"inputs": tuple, "batch_size": 4}),
    ):
        bayesian = to_bayesian(kind, initial_std=0.1)
        expected, found = (
            Predictor(bayesian, samples=2, compiled=how, **options).logits(data) for how in (False, True)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("uncompiled")
def test_few_shapes_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []

    def watched(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
        def run(weights: Any, x: Tensor) -> Any:
            shapes.append(tuple(x.shape))
            return function(weights, x)

        return run

    monkeypatch.setattr(torch, "compile", watched)
    bayesian = made()
    predictor = Predictor(bayesian, samples=2, batch_size=4, compiled=True)
    for size in (8, 9, 10, 8, 11, 12, 13):
        x = torch.randn(6, 3, 8, size)
        expected = Predictor(bayesian, samples=2, batch_size=4, compiled=False).logits(x)
        torch.testing.assert_close(predictor.logits(x), expected, rtol=1e-5, atol=1e-5)
    assert set(shapes) == {(4, 3, 8, size) for size in (8, 9, 10, 11)}


def test_networks_that_folding_excludes_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale of a folded batch normalisation is sampled: the other path runs, and takes the compiled function."""
    compiled: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: (compiled.append(1), function)[1])
    monkeypatch.setattr("avuc.nets.runner._SHARED", {})
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    predictor = Predictor(to_bayesian(net, layers=lambda *_: True), samples=5, compiled=True)
    predictor.logits(images())
    assert static(predictor) is None
    assert len(compiled) == 1


@pytest.mark.usefixtures("uncompiled")
def test_an_error_of_the_network_changes_nothing() -> None:
    bayesian = made()
    predictor = Predictor(bayesian, samples=2, compiled=True)
    with pytest.raises(Exception, match="channels"):
        predictor.logits(torch.randn(4, 2, 8, 8))
    predictor.logits(images())  # without a warning
    assert static(predictor) is not None


@pytest.mark.usefixtures("uncompiled")
def test_a_class_with_samples_of_its_own() -> None:
    class Halved(BayesianModule):
        def weights(self, noise: Tensor) -> Tensor:
            return super().weights(noise / 2)

    bayesian, x = made(), images()
    bayesian.__class__ = Halved
    expected, found = (Predictor(bayesian, samples=3, compiled=how).logits(x) for how in (False, True))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_graph_is_of_one_set_of_arguments() -> None:
    x = torch.zeros(2)
    calls = [{"a": True}, {"b": True}, {"a": False}, {"a": 1}, {"a": x}, {"a": x.double()}, {"a": [x]}]
    assert len({_shapes(Arguments((x,), call)) for call in calls}) == len(calls)
    assert _shapes(Arguments((x,), {"a": True})) == _shapes(Arguments((x + 1,), {"a": True}))


def test_each_network_has_compilations_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts them by code object, and runs without compiling after eight."""
    codes: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: (codes.append(function.__code__), function)[1])
    for classes in (2, 3):
        Runner(nn.Sequential(nn.Linear(4, classes)), compiled=True)
    assert codes[0] is not codes[1]


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

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, parts: list[Tensor]) -> Tensor:
            return self.layer(torch.stack(parts)).tanh()

    # tensors inside another argument are not those of the call before
    bayesian, batches = to_bayesian(Listed()), [(list(torch.randn(2, 4)), torch.zeros(2)) for _ in range(3)]
    options: dict[str, Any] = {"samples": 3, "inputs": lambda batch: ((batch[0],), batch[1])}
    loader: Any = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    expected = Predictor(bayesian, compiled=False, **options).logits(loader)
    found = Predictor(bayesian, compiled=True, **options).logits(loader)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        found = Predictor(made(), samples=3, compiled=True).logits(x + 0)
    torch.testing.assert_close(found, Predictor(made(), samples=3, compiled=False).logits(x), rtol=1e-5, atol=1e-5)


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
