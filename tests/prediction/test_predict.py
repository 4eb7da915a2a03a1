"""predict equals the mean over all samples for any batch size, and uses the same samples for every dataset."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.core.errors import InputError, NonFiniteError
from avuc.data.arrays import as_input
from avuc.methods.dropout import Dropout
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets import mlp
from avuc.posterior import NetDraw, Posterior, evaluating, seeded_generator
from avuc.prediction import predict
from avuc.prediction.model import sample_of
from avuc.predictions import Predictions
from avuc.training.model_trainer import START
from avuc.uncertainty import entropy

from .conftest import cnn, digits, stored


class LinearPosterior:
    """logits = W x with W ~ N(0, 1): not a module, nothing but the protocol."""

    num_draws: int | None = None

    def __init__(self, features: int = 4, classes: int = 3, scale: float = 1.0) -> None:
        self.features, self.classes, self.scale = features, classes, scale

    def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        weight = self.scale * torch.randn(self.features, self.classes, generator=generator)
        return lambda x: x.flatten(1) @ weight


class Divide:
    def __init__(self, by: float) -> None:
        self.by = by

    def transform(self, logits: Tensor) -> Tensor:
        return logits / self.by


def data(rows: int = 11, seed: int = 0, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator), torch.randint(classes, (rows,), generator=generator)


def posteriors() -> dict[str, Posterior]:
    return {
        "net": DeterministicPosterior(cnn()),
        "ensemble": EnsemblePosterior([DeterministicPosterior(cnn(seed)) for seed in range(3)]),
        "dropout": Dropout(rate=0.3).posterior([Dropout(rate=0.3).build(cnn())]),
        "mean field": to_bayesian(cnn()),
        "radial": to_bayesian(cnn(), posterior="radial", initial_std=0.5),
        "last": to_bayesian(cnn(), layers="last", initial_std=0.5),
    }


def same(a: Predictions, b: Predictions, atol: float = 1e-6) -> None:
    for name in ("probs", "expected_entropy", "mutual_information", "entropy"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=atol, msg=name)
    assert torch.equal(a.labels, b.labels)
    assert a.samples == b.samples


@pytest.mark.parametrize("calibrator", [None, Divide(2.5)])
@given(rows=st.integers(1, 9), count=st.integers(1, 12), seed=st.integers(0, 1000), batch=st.integers(1, 12))
def test_equals_all_draws_kept(calibrator: Divide | None, rows: int, count: int, seed: int, batch: int) -> None:
    x, labels = data(rows, seed)
    posterior = LinearPosterior()
    found = predict(posterior, x, labels, samples=count, seed=seed, batch_size=batch, calibrator=calibrator)
    logits = stored(posterior, x, count, seed)
    same(found, Predictions.from_samples(logits, labels, calibrator=calibrator))
    # the same by plain sums in float64
    scaled = logits.double() / (calibrator.by if calibrator else 1.0)
    each = (scaled - scaled.logsumexp(-1, keepdim=True)).exp().numpy()
    for row in range(rows):
        mean = sum(each[s, row] for s in range(count)) / count
        spread = sum(-(each[s, row] * np.log(each[s, row])).sum() for s in range(count)) / count
        np.testing.assert_allclose(found.probs[row], mean, atol=1e-6)
        np.testing.assert_allclose(found.expected_entropy[row], spread, atol=1e-6)


def test_the_calibrator_acts_before_the_average() -> None:
    x, labels = data()
    posterior, by = LinearPosterior(scale=3.0), 4.0
    found = predict(posterior, x, labels, samples=5, calibrator=Divide(by))
    plain = predict(posterior, x, labels, samples=5)
    after = (plain.probs.log() / by).softmax(-1)
    assert (found.probs - after).abs().max() > 0.01


@pytest.mark.parametrize("name", posteriors())
@pytest.mark.parametrize("folded", [True, False])
def test_every_posterior_equals_its_draws_in_any_batches(name: str, folded: bool) -> None:
    posterior = posteriors()[name]
    images, labels = digits()
    count = 5 if posterior.num_draws is None else posterior.num_draws
    expected = Predictions.from_samples(stored(posterior, as_input(images), count, seed=3), labels)
    for batch in (1, 4, 6, 100):
        found = predict(posterior, images, labels, samples=5, seed=3, batch_size=batch, fold_batch_norm=folded)
        same(found, expected, atol=2e-6)
        assert isinstance(posterior, Posterior)


def test_the_same_draws_meet_every_dataset() -> None:
    posterior = posteriors()["mean field"]
    (a, a_labels), (b, b_labels) = digits(5, seed=1), digits(3, seed=2)
    joined = predict(posterior, torch.cat([a, b]), torch.cat([a_labels, b_labels]), samples=4)
    apart = [predict(posterior, *part, samples=4).probs for part in ((a, a_labels), (b, b_labels))]
    torch.testing.assert_close(joined.probs, torch.cat(apart), rtol=0, atol=1e-6)
    again = predict(posterior, a, a_labels, samples=4)
    assert torch.equal(again.probs, apart[0])
    other = predict(posterior, a, a_labels, samples=4, seed=1)
    assert (other.probs - apart[0]).abs().max() > 1e-4


def test_more_draws_begin_with_the_same_ones() -> None:
    x, labels = data()
    few, many = (predict(LinearPosterior(), x, labels, samples=count) for count in (3, 4))
    last = stored(LinearPosterior(), x, 4, seed=0)[3].softmax(-1)
    torch.testing.assert_close(4 * many.probs - 3 * few.probs, last, rtol=0, atol=1e-5)


def test_no_draw_is_kept() -> None:
    alive: list[weakref.ref[Tensor]] = []
    peak = []

    class Watched(LinearPosterior):
        def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
            function = super().draw(generator)

            def call(x: Tensor) -> Tensor:
                peak.append(sum(ref() is not None for ref in alive))
                logits = function(x)
                alive.append(weakref.ref(logits))
                return logits

            return call

    predict(Watched(), *data(20), samples=30, batch_size=10)
    assert len(peak) == 60
    assert max(peak) <= 1


def test_ensemble_is_the_average_of_its_members() -> None:
    nets = [cnn(seed).eval() for seed in range(3)]
    images, labels = digits()
    found = predict(EnsemblePosterior([DeterministicPosterior(net) for net in nets]), images, labels, samples=128)
    assert found.samples == 3
    assert found.monte_carlo_error == 0.0
    with torch.no_grad():
        mean = sum(net(as_input(images)).softmax(-1) for net in nets) / 3
    torch.testing.assert_close(found.probs, mean, rtol=0, atol=1e-6)
    two = predict(EnsemblePosterior([DeterministicPosterior(net) for net in nets]), images, labels, samples=2)
    with torch.no_grad():
        mean = sum(net(as_input(images)).softmax(-1) for net in nets[:2]) / 2
    torch.testing.assert_close(two.probs, mean, rtol=0, atol=1e-6)
    assert two.monte_carlo_error > 0
    auto = predict(EnsemblePosterior([DeterministicPosterior(net) for net in nets]), images, labels, samples="auto")
    assert auto.samples == 3


def test_one_net_has_one_draw_and_no_mutual_information() -> None:
    found = predict(DeterministicPosterior(cnn()), *digits())
    assert found.samples == 1
    assert found.monte_carlo_error == 0.0
    torch.testing.assert_close(found.expected_entropy, entropy(found.probs), rtol=0, atol=1e-6)
    assert found.mutual_information.max() < 1e-6


@pytest.mark.parametrize("tolerance", [0.02, 0.05])
def test_auto_stops_at_the_first_number_of_draws_that_is_enough(tolerance: float) -> None:
    x, labels = data(30)
    posterior = LinearPosterior(scale=0.5)
    found = predict(posterior, x, labels, samples="auto", tolerance=tolerance)
    each = stored(posterior, x, found.samples, 0).softmax(-1).double()

    def error(count: int) -> float:
        variance = each[:count].var(0).amax(1) / count
        return float(variance.mean().sqrt())

    assert found.monte_carlo_error == pytest.approx(error(found.samples), rel=1e-6)
    assert error(found.samples) <= tolerance
    assert found.samples > 8
    assert all(error(count) > tolerance for count in range(8, found.samples))
    same(found, Predictions.from_samples(stored(posterior, x, found.samples, 0), labels))


def test_auto_limits() -> None:
    x, labels = data(30)
    assert predict(LinearPosterior(scale=1e-4), x, labels, samples="auto").samples == 8
    capped = predict(LinearPosterior(scale=3.0), x, labels, samples="auto", tolerance=1e-4, max_samples=20)
    assert capped.samples == 20
    assert capped.monte_carlo_error > 1e-4
    assert predict(LinearPosterior(), x, labels, samples="auto", max_samples=3).samples == 3


def test_fixed_samples_report_the_error_too() -> None:
    x, labels = data(30)
    errors = [predict(LinearPosterior(), x, labels, samples=s).monte_carlo_error for s in (16, 64, 256)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[0] / errors[2] == pytest.approx(4, rel=0.3)  # 1/√S
    assert predict(LinearPosterior(), x, labels, samples=1).monte_carlo_error is None


def test_images_as_bytes_floats_and_arrays(tmp_path: object) -> None:
    images, labels = digits()
    posterior = DeterministicPosterior(cnn())
    expected = predict(posterior, images, labels)
    array = images.numpy()
    array.flags.writeable = False  # as a memory-mapped file is
    for given_images in (array, as_input(images), as_input(images).contiguous().numpy()):
        same(predict(posterior, given_images, labels.numpy()), expected)
    assert torch.equal(predict(posterior, images).labels, torch.full((6,), -1))


@pytest.mark.filterwarnings("ignore:float images")  # these shapes have their channels last
def test_default_batches_are_of_bounded_size() -> None:
    seen = []

    class Watched(LinearPosterior):
        def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
            return lambda x: (seen.append(len(x)), torch.zeros(len(x), 3))[1]

    for shape in ((600, 32, 32, 3), (40, 300, 300, 3), (20_000, 4)):
        seen.clear()
        predict(Watched(), torch.zeros(shape), samples=1)
        assert sum(seen) == shape[0]
        assert seen[0] == min(shape[0], {32: 85, 300: 32, 4: 16_384}[shape[1]])


def test_one_image_two_classes_many_classes() -> None:
    for rows, classes in ((1, 3), (5, 2), (4, 1000)):
        x, _ = data(rows)
        labels = torch.zeros(rows, dtype=torch.int64)
        posterior = LinearPosterior(classes=classes)
        found = predict(posterior, x, labels, samples=4, batch_size=2)
        same(found, Predictions.from_samples(stored(posterior, x, 4, 0), labels))


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("column", [True, False])
def test_one_output_is_binary(labelled: bool, column: bool) -> None:
    """A logit z is the row [0, z]: softmax([0, z])[1] = sigmoid(z)."""

    class One(LinearPosterior):
        def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
            function = super().draw(generator)
            return lambda x: function(x) if column else function(x)[:, 0]

    x, _ = data(5)
    labels = torch.tensor([0, 1, 1, 0, 1]) if labelled else None
    found = predict(One(classes=1), x, labels, samples=4, batch_size=2)
    z = stored(LinearPosterior(classes=1), x, 4, 0)
    same(found, Predictions.from_samples(torch.cat([torch.zeros_like(z), z], -1), labels))
    torch.testing.assert_close(found.probs[:, 1], z[..., 0].sigmoid().mean(0))


def test_probabilities_exactly_0_and_1() -> None:
    class Certain(LinearPosterior):
        def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
            return lambda x: torch.tensor([[0.0, -float("inf"), -1e4]]).expand(len(x), 3)

    with pytest.warns(UserWarning, match="all 3 samples give the same prediction"):
        found = predict(Certain(), *data(), samples=3)
    assert torch.equal(found.probs[0], torch.tensor([1.0, 0.0, 0.0]))
    assert found.expected_entropy.abs().max() == 0
    assert found.monte_carlo_error == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_logits_name_the_draw_and_the_batch(bad: float) -> None:
    class Broken(LinearPosterior):
        made = 0

        def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
            number, self.made = self.made, self.made + 1
            function = super().draw(generator)

            def call(x: Tensor) -> Tensor:
                logits = function(x)
                if number == 2 and x[0, 0] == 7.0:
                    logits[-1, 1] = bad
                return logits

            return call

    x, labels = data(11)
    x[4, 0] = 7.0
    for samples in (3, 5, 40, "auto"):
        with pytest.raises(NonFiniteError, match=r"sample 2, batch 1 \(images 4…7\): .*NaN"):
            predict(Broken(), x, labels, samples=samples, batch_size=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "positive whole number or 'auto', found 0"),
        ({"samples": 2.5}, r"found 2\.5"),
        ({"samples": "many"}, "found 'many'"),
        ({"samples": True}, "found True"),
        ({"samples": "auto", "tolerance": 0.0}, "tolerance must be positive"),
        ({"samples": "auto", "tolerance": float("nan")}, "tolerance must be positive"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, r"one per image, \(11,\); found \(3,\)"),
        ({"data": torch.zeros(0, 4)}, "at least one image"),
        ({"data": torch.zeros(11, 4, 4, dtype=torch.uint8)}, "height, width, channels"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"labels": torch.full((11,), 3)}, "labels must be in 0…2"),
    ],
)
def test_bad_arguments(change: dict, message: str) -> None:
    x, labels = data()
    arguments = {"data": x, "labels": labels, "samples": 2} | change
    with pytest.raises(InputError, match=message):
        predict(LinearPosterior(), **arguments)


def test_a_draw_of_the_wrong_shape() -> None:
    class Wrong(LinearPosterior):
        def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
            return lambda x: x[1:]

    with pytest.raises(InputError, match=r"logits \(11, classes\), found \(10, 4\)"):
        predict(Wrong(), *data(), samples=2)


@pytest.mark.parametrize("name", posteriors())
def test_nothing_is_left_behind(name: str) -> None:
    posterior = posteriors()[name]
    posterior.train()
    modes = [layer.training for layer in posterior.modules()]
    state = {key: value.clone() for key, value in posterior.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    predict(posterior, *digits(), samples=2)
    assert torch.equal(torch.rand(1), expected)  # torch's own generator was not used
    assert [layer.training for layer in posterior.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in posterior.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in posterior.parameters())


def test_evaluating_restores_each_layer() -> None:
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    net[1].eval()
    inside = []

    def broken() -> None:
        with evaluating(net):
            inside.extend(layer.training for layer in net.modules())
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        broken()
    assert inside == [False, False, False]
    assert [layer.training for layer in net.modules()] == [True, True, False]


def test_low_precision_net_full_precision_sums() -> None:
    images, labels = digits()
    posterior = to_bayesian(cnn())
    full = predict(posterior, images, labels, samples=4)
    low = predict(posterior, images, labels, samples=4, dtype=torch.bfloat16)
    assert low.probs.dtype == torch.float32
    assert 0 < (low.probs - full.probs).abs().max() < 0.05
    torch.testing.assert_close(low.probs.sum(1), torch.ones(6), rtol=0, atol=1e-6)


def test_compiled_batches_have_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: set[tuple[int, ...]] = set()

    def fake(function: Callable[..., Tensor], **options: object) -> Callable[..., Tensor]:
        def call(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            shapes.add(tuple(x.shape))
            return function(weights, x)

        return call

    monkeypatch.setattr(torch, "compile", fake)
    monkeypatch.setattr("avuc.nets.runner._SHARED", {})
    posterior = to_bayesian(cnn())
    for rows in (3, 9):
        images, labels = digits(rows)
        plain = predict(posterior, images, labels, samples=3)
        same(predict(posterior, images, labels, samples=3, batch_size=4, compiled=True), plain, atol=2e-6)
    assert shapes == {(4, 1, 12, 12)}


def test_recurrent_net() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.out(self.lstm(x)[0][:, -1])
            return logits

    torch.manual_seed(0)
    net = Reader()
    x, labels = torch.rand(6, 4, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    posterior = to_bayesian(net, initial_std=0.3)
    same(predict(posterior, x, labels, samples=4), Predictions.from_samples(stored(posterior, x, 4, 0), labels))
    changed = {name: torch.rand_like(value) for name, value in net.named_parameters()}
    before = net(x)
    with torch.no_grad():
        drawn = NetDraw(net, changed)(x)
    other = Reader()
    other.load_state_dict(changed)
    torch.testing.assert_close(drawn, other(x))
    assert torch.equal(net(x), before)


def test_seeds_are_well_mixed() -> None:
    first = {seeded_generator(seed, draw).initial_seed() for seed in range(40) for draw in range(40)}
    assert len(first) == 1600


def test_no_sample_has_the_numbers_of_the_initial_weights() -> None:
    """`fit` and `predict` have the same default seed: the noise of sample 0 would be the weights before training."""
    net = mlp(3, (8, 8, 1), generator=seeded_generator(5, 0, START))
    posterior = to_bayesian(net)
    for index in range(3):
        sample = sample_of(posterior, index, 5, torch.device("cpu"))
        noise = posterior.layout.by_name(sample.weights - posterior.mu.detach())["layers.0.weight"]
        together = torch.stack([noise.flatten(), net.layers[0].weight.detach().flatten()])
        assert abs(float(torch.corrcoef(together)[0, 1])) < 0.1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("samples", "text"), [(3, "3/3"), ("auto", "8 ")])
def test_progress(monkeypatch: pytest.MonkeyPatch, samples: int | str, text: str) -> None:
    for shown in (True, False):
        monkeypatch.setattr("sys.stderr", terminal := Terminal())
        predict(LinearPosterior(scale=1e-4), *data(), samples=samples, progress=shown)
        last = terminal.getvalue().split("\r")[-1]
        assert (text in last and "samples" in last) == shown
        assert ("error 0.0" in last) == (shown and samples == "auto")


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", posteriors())
def test_gpu_equals_cpu(name: str, compiled: bool) -> None:
    posterior = posteriors()[name]
    images, labels = digits(200)
    found = predict(posterior, images, labels, samples=8, device="cuda", compiled=compiled, batch_size=64)
    assert found.probs.is_cuda
    drawn = predict(posterior, images.cuda(), labels, samples=8, compiled=False, batch_size=200, fold_batch_norm=False)
    torch.testing.assert_close(found.probs, drawn.probs, rtol=0, atol=5e-3)
    low = predict(posterior, images, labels, samples=8, dtype=torch.bfloat16, compiled=compiled)
    torch.testing.assert_close(low.probs, drawn.probs, rtol=0, atol=5e-2)
    if posterior.num_draws is not None:  # the same numbers need the same generator, so only where there is none
        on_cpu = predict(posterior, images, labels, samples=8, device="cpu")
        torch.testing.assert_close(found.probs.cpu(), on_cpu.probs, rtol=0, atol=5e-3)
