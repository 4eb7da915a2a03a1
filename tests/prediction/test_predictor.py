"""Predictor returns what predict does for many datasets; samples are prepared once, within a limit of memory."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.calibration import CALIBRATORS
from avuc.core.errors import InputError, NonFiniteError
from avuc.data.arrays import as_input
from avuc.methods.dropout import Dropout
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.ll_dropout import LLDropout
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets import runner as running
from avuc.posterior import Posterior
from avuc.prediction import predict
from avuc.prediction.backends.features import FeatureStore
from avuc.prediction.predictor import Predictor, Reading
from avuc.predictions import Predictions

from .conftest import cnn, digits, stored, swag

MADE: dict[str, Callable[[], Posterior]] = {
    "net": lambda: DeterministicPosterior(cnn()),
    "ensemble": lambda: EnsemblePosterior([DeterministicPosterior(cnn(seed)) for seed in range(3)]),
    "mixture": lambda: EnsemblePosterior([to_bayesian(cnn(seed), initial_std=0.2) for seed in range(2)]),
    "mixture of last layers": lambda: EnsemblePosterior(
        [to_bayesian(cnn(seed), layers="last", initial_std=0.2) for seed in range(2)]
    ),
    "dropout": lambda: Dropout(rate=0.3).posterior([Dropout(rate=0.3).build(cnn())]),
    "last dropout": lambda: LLDropout().posterior([LLDropout().build(cnn())]),
    "mean field": lambda: to_bayesian(cnn(), initial_std=0.2),
    "last": lambda: to_bayesian(cnn(), layers="last", initial_std=0.5),
    "swag": swag,
}


def equal(a: Predictions, b: Predictions) -> None:
    assert torch.equal(a.probs, b.probs)
    assert torch.equal(a.expected_entropy, b.expected_entropy)
    assert torch.equal(a.labels, b.labels)
    assert (a.samples, a.monte_carlo_error) == (b.samples, b.monte_carlo_error)


def close(a: Predictions, b: Predictions, calibrator: object = None) -> None:
    # isotonic regression rounds probabilities of float32 logits to a share of 8e-6, and its lines can be steep
    more = 50 if getattr(calibrator, "coarse", False) else 1
    torch.testing.assert_close(a.probs, b.probs, rtol=0, atol=more * 2e-6)
    torch.testing.assert_close(a.expected_entropy, b.expected_entropy, rtol=0, atol=more * 1e-5)
    assert a.samples == b.samples


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("memory", [1 << 30, 20_000, 0])
def test_equals_predict_set_after_set(name: str, memory: int) -> None:
    posterior = MADE[name]()
    predictor = Predictor(posterior, samples=5, seed=3, batch_size=4, memory=memory)
    for seed in (0, 1, 0):
        images, labels = digits(6 + seed, seed=seed)
        found = predictor(images, labels)
        equal(found, predict(posterior, images, labels, samples=5, seed=3, batch_size=4))
        count = 5 if posterior.num_draws is None else posterior.num_draws
        close(found, Predictions.from_samples(stored(posterior, as_input(images), min(5, count), 3), labels))
        torch.testing.assert_close(
            predictor.logits(images), stored(posterior, as_input(images), found.samples, 3), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("name", ["mixture", "dropout", "last dropout", "mean field", "last", "swag"])
def test_each_draw_is_made_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = MADE[name]()
    made: list[int] = []
    draw = posterior.draw
    monkeypatch.setattr(posterior, "draw", lambda generator: (made.append(1), draw(generator))[1])
    predictor = Predictor(posterior, samples=4)
    for seed in range(3):
        predictor(*digits(seed=seed))
    assert len(made) == 4
    made.clear()
    forgetful = Predictor(posterior, samples=4, memory=0)
    for seed in range(3):
        forgetful(*digits(seed=seed))
    # the first sample is also drawn to select the backend, and kept until it is used
    assert len(made) == 12


def test_memory_is_bounded() -> None:
    posterior = MADE["mean field"]()
    weights = sum(parameter.nbytes for parameter in posterior.mean_module().parameters())
    for memory, kept in ((0, 0), (int(3.5 * weights), 2), (100 * weights, 8)):
        predictor = Predictor(posterior, samples=8, memory=memory)
        predictor(*digits())
        (plain,) = predictor._runner.generic.values()
        assert len(plain._kept) == kept
        assert 0 <= plain._memory_left <= memory


@pytest.mark.parametrize("name", MADE)
def test_changed_weights_are_noticed(name: str) -> None:
    posterior = MADE[name]()
    predictor = Predictor(posterior, samples=3)
    images, labels = digits()
    before = predictor(images, labels)
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.add_(0.1)
        for buffer in posterior.buffers():
            if buffer.is_floating_point():
                buffer.add_(0.1)
    found = predictor(images, labels)
    equal(found, predict(posterior, images, labels, samples=3))
    assert (found.probs - before.probs).abs().max() > 1e-4


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("name", ["net", "ensemble", "mean field", "last"])
def test_copies_predict_the_same_by_themselves(name: str, copied: Callable[[Predictor], Predictor]) -> None:
    images, labels = digits()
    predictor = Predictor(MADE[name](), samples=3, memory=1 << 24)
    predictor.share_features(FeatureStore())
    expected = predictor(images, labels).probs  # prepared before it is copied
    made = copied(predictor)
    assert torch.equal(made(images, labels).probs, expected)
    assert made._lock is not predictor._lock
    assert made._runner is not predictor._runner
    assert made._runner.options.features is None
    assert (made.posterior is predictor.posterior) == (copied is copy.copy)
    predictor.forget()
    assert made._runner.state is not None  # what the copy has prepared is its own


def test_forget_makes_the_draws_anew() -> None:
    class Scaled:
        num_draws = None
        scale = 1.0

        def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
            net = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
            nn.init.constant_(net[1].weight, self.scale)
            nn.init.zeros_(net[1].bias)
            return DeterministicPosterior(net).draw(generator)

    posterior = Scaled()
    predictor = Predictor(posterior, samples=2)
    images, _ = digits()
    assert predictor.logits(images).min() > 0
    posterior.scale = -1.0
    predictor.forget()
    assert predictor.logits(images).max() < 0


def test_other_sizes_of_images() -> None:
    """Masks are of the activations' shapes: another size of image has other masks."""
    posterior = MADE["dropout"]()
    predictor = Predictor(posterior, samples=3)
    for side in (12, 16, 12):
        images, labels = digits(side=side)
        close(predictor(images, labels), Predictions.from_samples(stored(posterior, as_input(images), 3, 0), labels))


def test_dropout_samples_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: (compiled.append(1), function)[1])
    monkeypatch.setattr(running, "_SHARED", {})
    images, labels = digits()
    for seed in range(3):  # three models of one architecture
        method = Dropout(rate=0.3)
        posterior = method.posterior([method.build(cnn(seed))])
        predictor = Predictor(posterior, samples=3, compiled=True, batch_size=4)
        for _ in range(2):
            close(
                predictor(images, labels), Predictions.from_samples(stored(posterior, as_input(images), 3, 0), labels)
            )
    assert len(compiled) == 1


def calibrators() -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    logits, labels = 3 * torch.randn(60, 10, generator=generator), torch.randint(10, (60,), generator=generator)
    labels[:40] = logits[:40].argmax(1)
    return {name: kind().fit(logits, labels) for name, kind in CALIBRATORS.items()}


@pytest.mark.parametrize("name", ["last", "mean field", "ensemble", "last dropout"])
def test_readings_equal_their_own_pass(name: str) -> None:
    posterior = MADE[name]()
    images, labels = digits(20)
    scaled = calibrators()
    readings = [Reading(), Reading(2), *(Reading(3, calibrator) for calibrator in scaled.values()), Reading(40)]
    found = Predictor(posterior, samples=5, batch_size=8).read(images, labels, readings)
    for reading, one in zip(readings, found, strict=True):
        samples = reading.samples or 5
        own = predict(posterior, images, labels, samples=samples, calibrator=reading.calibrator, batch_size=8)
        # batched products of fewer draws may round otherwise
        close(one, own, reading.calibrator)
        assert one.monte_carlo_error == (own.monte_carlo_error and pytest.approx(own.monte_carlo_error, rel=1e-4))
        logits = stored(posterior, as_input(images), own.samples, 0)
        close(one, Predictions.from_samples(logits, labels, calibrator=reading.calibrator), reading.calibrator)


def test_nan_is_refused_in_any_way() -> None:
    posterior = MADE["last"]()
    with torch.no_grad():
        posterior.module.conv1.weight[0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"sample 0, batch 0 \(images 0…3\)"):
        Predictor(posterior, samples=20, batch_size=4)(*digits())
    with pytest.raises(NonFiniteError, match=r"samples 0…15, images 0…3: .*NaN"):
        Predictor(posterior, samples=20, batch_size=4).logits(digits()[0])


def test_bad_arguments() -> None:
    posterior = MADE["net"]()
    with pytest.raises(InputError, match="positive whole number"):
        Predictor(posterior, samples=0)
    with pytest.raises(InputError, match="positive whole number, found 0"):
        Predictor(posterior).logits(digits()[0], 0)


def test_auto_and_images_let_go() -> None:
    posterior = MADE["last"]()
    images, labels = digits()
    predictor = Predictor(posterior, samples="auto", tolerance=0.02)
    found = predictor(images, labels)
    equal(found, predict(posterior, images, labels, samples="auto", tolerance=0.02))
    assert 8 <= found.samples < 1024
    assert predictor._runner.special._features == []
