"""`predict` in threads: it leaves other threads alone, and several predictions at once equal one at a time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.data.arrays import as_input
from avuc.methods.batch_norm import PerDrawBatchNorm
from avuc.methods.dropout import Dropout, DropoutPosterior
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.ll_dropout import LLDropout
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets import runner as running
from avuc.nets.fold import conv_bn_pairs
from avuc.posterior import NetDraw, Posterior, sample_generator
from avuc.prediction import predict
from avuc.prediction.predictor import Predictor
from avuc.predictions import Predictions

from .conftest import cnn, swag

THREADS = 4


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Let the interpreter change threads often, so that a race shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def alike(one: Tensor, other: Tensor) -> bool:
    """Equal but for the last bits: how many threads torch itself uses, and so the order of a sum, differs from one
    Python thread to another. A mask, a drawn weight or a mode of another thread changes the first digits."""
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=1e-5, atol=1e-6))


def images(rows: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (rows, 12, 12, 1), dtype=torch.uint8, generator=generator)


class Twice(nn.Module):
    """A layer called twice: its dropout runs through the hooks, not through a copy with masks for weights."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.layer, self.norm = nn.Flatten(), nn.Linear(144, 144), nn.BatchNorm1d(144)
        self.last = nn.Linear(144, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(self.layer(torch.relu(self.layer(self.flat(x))))))
        return logits


class Reader(nn.Module):
    """Reads the rows of an image one after the other."""

    takes_bytes = True

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.lstm(x[:, 0])[0][:, -1])
        return logits


def own_dropout() -> DropoutPosterior:
    net = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.Dropout(0.5), nn.Linear(32, 10)))
    net.takes_bytes = True  # the tests predict uint8 images
    return DropoutPosterior.of_own_layers(net)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


MADE: dict[str, Callable[[], Posterior]] = {
    "net": lambda: DeterministicPosterior(cnn()),
    "ensemble": lambda: EnsemblePosterior([DeterministicPosterior(cnn(seed)) for seed in range(3)]),
    "dropout": lambda: Dropout(rate=0.3).posterior([Dropout(rate=0.3).build(cnn())]),
    "dropout by hooks": lambda: DropoutPosterior(Dropout(rate=0.3).build(seeded(Twice))),
    "own dropout": own_dropout,
    "last dropout": lambda: LLDropout().posterior([LLDropout().build(cnn())]),
    "mean field": lambda: to_bayesian(cnn(), initial_std=0.2),
    "recurrent": lambda: to_bayesian(seeded(Reader), initial_std=0.2),
    "last": lambda: to_bayesian(cnn(), layers="last", initial_std=0.5),
    "own statistics": lambda: PerDrawBatchNorm(to_bayesian(cnn(), initial_std=0.2), images(32, seed=4)),
    "swag": swag,
}


def at_once(tasks: Sequence[Callable[[], object]]) -> list[object]:
    """Results of the tasks, each run in its own thread, all started together."""
    barrier = threading.Barrier(len(tasks))

    def started(task: Callable[[], object]) -> object:
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(started, task) for task in tasks]]


def assert_equal(found: Predictions, expected: Predictions) -> None:
    assert alike(found.probs, expected.probs)
    assert alike(found.expected_entropy, expected.expected_entropy)
    assert (found.samples, found.monte_carlo_error) == (expected.samples, expected.monte_carlo_error)


@pytest.mark.parametrize("name", MADE)
def test_threads_on_one_posterior_equal_one_thread(name: str) -> None:
    posterior = MADE[name]()
    sets = [images(6 + seed, seed) for seed in range(THREADS)]
    state = {key: value.clone() for key, value in posterior.state_dict().items()}
    modes = [layer.training for layer in posterior.modules()]
    expected = [predict(posterior, one, samples=5, seed=3, batch_size=4) for one in sets]

    def task(one: Tensor) -> Callable[[], list[Predictions]]:
        return lambda: [predict(posterior, one, samples=5, seed=3, batch_size=4) for _ in range(6)]

    for found, right in zip(at_once([task(one) for one in sets]), expected, strict=True):
        for one in found:
            assert_equal(one, right)
    assert [layer.training for layer in posterior.modules()] == modes
    assert all(alike(value, state[key]) for key, value in posterior.state_dict().items())


def test_threads_on_different_posteriors_equal_one_thread() -> None:
    names = ["dropout", "mean field", "ensemble", "last"]
    made = [MADE[name]() for name in names]
    expected = [predict(posterior, images(), samples=5) for posterior in made]

    def task(posterior: Posterior) -> Callable[[], list[Predictions]]:
        return lambda: [predict(posterior, images(), samples=5) for _ in range(6)]

    for found, right in zip(at_once([task(posterior) for posterior in made]), expected, strict=True):
        for one in found:
            assert_equal(one, right)


@pytest.mark.parametrize("name", ["dropout", "mean field", "last dropout", "recurrent"])
def test_threads_share_a_predictor(name: str) -> None:
    predictor = Predictor(MADE[name](), samples=4, batch_size=4)
    sets = [images(6 + seed, seed) for seed in range(THREADS)]
    expected = [predictor(one) for one in sets]

    def task(one: Tensor) -> Callable[[], list[Predictions]]:
        return lambda: [predictor(one) for _ in range(8)]

    for found, right in zip(at_once([task(one) for one in sets]), expected, strict=True):
        for one in found:
            assert_equal(one, right)


@pytest.mark.parametrize("name", ["net", "dropout by hooks", "mean field", "recurrent"])
def test_draws_called_in_threads(name: str) -> None:
    """Draws of one posterior, called as they are."""
    posterior = MADE[name]()
    x = as_input(images())
    draws = [posterior.draw(sample_generator(0, index)) for index in range(THREADS)]
    with torch.no_grad():
        expected = [draw(x) for draw in draws]

    def task(index: int) -> Callable[[], list[Tensor]]:
        @torch.no_grad()
        def call() -> list[Tensor]:
            return [posterior.draw(sample_generator(0, index))(x) for _ in range(20)]

        return call

    for found, right in zip(at_once([task(index) for index in range(THREADS)]), expected, strict=True):
        assert all(alike(one, right) for one in found)


def test_compiled_nets_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share one compiled function; here a stand-in for the compiler, which runs the function as it is."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(running, "_SHARED", {})
    posterior = MADE["mean field"]()
    expected = predict(posterior, images(), samples=5, compiled=True, batch_size=4)

    def task() -> list[Predictions]:
        return [predict(posterior, images(), samples=5, compiled=True, batch_size=4) for _ in range(6)]

    for found in at_once([task] * THREADS):
        for one in found:
            assert_equal(one, expected)


def test_other_threads_are_left_alone() -> None:
    """Networks that have nothing to do with avuc run in other threads while predictions trace, fold and draw."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.rand(5, 8)
    with torch.no_grad():
        expected = net(x)
        weight = F.linear(x, net[0].weight)
    done = threading.Event()
    counts = [0, 0]
    problems: list[BaseException] = []

    @torch.no_grad()
    def unrelated(number: int) -> None:
        try:
            while not done.is_set():
                assert alike(net(x), expected)
                assert alike(F.linear(x, net[0].weight), weight)
                fresh = nn.Linear(8, 3)
                assert alike(fresh(x), F.linear(x, fresh.weight, fresh.bias))
                counts[number] += 1
        except BaseException as error:
            problems.append(error)

    others = [threading.Thread(target=unrelated, args=(number,)) for number in range(2)]
    for thread in others:
        thread.start()
    try:
        for name in ("dropout", "mean field", "last", "net"):
            posterior = MADE[name]()
            for _ in range(5):
                predict(posterior, images(), samples=3)
    finally:
        done.set()
        for thread in others:
            thread.join()
    assert problems == []
    assert min(counts) > 0


def test_a_net_can_be_used_while_its_posterior_predicts() -> None:
    """The user's own calls of the network see neither masks, nor drawn weights, nor another mode."""
    posterior = MADE["own dropout"]()
    net = posterior.net.eval()
    x = as_input(images())
    with torch.no_grad():
        expected = net(x)
    done = threading.Event()
    different: list[float] = []

    @torch.no_grad()
    def use() -> None:
        while not done.is_set():
            found = net(x)
            if not alike(found, expected):
                different.append(float((found - expected).abs().max()))

    thread = threading.Thread(target=use)
    thread.start()
    try:
        with torch.no_grad():
            for index in range(300):
                posterior.draw(sample_generator(0, index))(x)
    finally:
        done.set()
        thread.join()
    assert different == []


def test_tracing_patches_nothing() -> None:
    """What torch.fx's own tracer replaces for all threads stays as it is while pairs are looked for."""
    module_call, get = nn.Module.__call__, nn.Module.__getattr__
    seen: list[bool] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(nn.Module.__call__ is module_call and nn.Module.__getattr__ is get)
            y: Tensor = self.bn(self.conv(x))
            return y

    assert conv_bn_pairs(Watching()) == [("conv", "bn")]
    assert seen == [True]


def test_a_net_draw_leaves_the_net_alone() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).train()
    modes: list[bool] = []
    draw = NetDraw(net, {"0.weight": torch.zeros(2, 3)})
    net[0].register_forward_hook(lambda *_: modes.append(net.training))
    weight = net[0].weight
    assert alike(draw(torch.ones(1, 3))[0], net[0].bias)
    assert modes == [True]
    assert net[0].weight is weight
