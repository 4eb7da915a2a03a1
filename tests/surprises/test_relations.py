"""Changes of the input that must change nothing, tried on every metric, calibrator, loss and conformal method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from avuc import losses, metrics
from avuc.calibration import CALIBRATORS, AutoCalibrator, MultiLabelCalibrator, TemperatureScaling, check_calibrator
from avuc.conformal import ConformalClassifier
from avuc.conformal.scores import METHODS
from avuc.predictions import Predictions

METRICS = {**metrics.METRICS, **metrics.MORE_METRICS}
# their definitions depend on the number of rows
COUNTS_ROWS = ("aurc", "debiased_ece")
ROWS, CLASSES = 240, 4
LOSSES: dict[str, Callable[..., Any]] = {
    **{f"avuc {v}": partial(losses.avuc_loss, threshold=0.4, variant=v) for v in ("monotone", "paper", "soft")},
    "auavuc": losses.auavuc_loss,
    "auavuc exact": partial(losses.auavuc_loss, points=None),
    "confidence_penalty": losses.confidence_penalty,
    "sb_ece binned": losses.sb_ece_loss,
    "sb_ece label_binned": partial(losses.sb_ece_loss, form="label_binned"),
    "ua_clm paper": losses.ua_clm_loss,
    "ua_clm monotone": partial(losses.ua_clm_loss, variant="monotone"),
}


def logits_and_labels(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(ROWS, CLASSES))
    return 2 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(1)


def votes(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with few distinct values, and zeros."""
    logits, labels = logits_and_labels(seed)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return np.stack([np.random.default_rng(seed).multinomial(20, row) for row in probs]) / 20, labels


def shuffled(values: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return other orders of rows and classes, and the order of the classes."""
    rng = np.random.default_rng(9)
    rows, classes = rng.permutation(ROWS), rng.permutation(CLASSES)
    return values[rows][:, classes], np.argsort(classes)[labels[rows]], classes


@pytest.mark.parametrize("name", METRICS)
def test_metrics(name: str) -> None:
    metric, (logits, labels) = METRICS[name], logits_and_labels()
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    value = pytest.approx(metric(probs, labels), abs=1e-9)
    other, numbers, _ = shuffled(probs, labels)
    assert metric(other, numbers) == value
    if name not in COUNTS_ROWS:
        assert metric(np.repeat(probs, 3, 0), np.repeat(labels, 3)) == value
    spread = np.zeros((2 * ROWS, 2 * CLASSES))
    spread[::-2, ::-2] = probs
    assert metric(spread[::-2, ::-2], labels.astype(np.uint8)) == value
    assert metric(torch.tensor(probs.T.copy(), requires_grad=True).T, torch.tensor(labels)) == value
    assert metric(probs.reshape(8, -1, CLASSES), labels.reshape(8, -1), class_dim=-1) == value
    unlabelled = np.append(labels, -100)
    assert metric(np.append(probs, np.full((1, CLASSES), np.nan), 0), unlabelled) == value
    probs, labels = votes()
    assert metric(probs.astype(np.float32), labels) == pytest.approx(metric(probs, labels), abs=1e-6)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_calibrators(name: str) -> None:
    (logits, labels), (fresh, _) = logits_and_labels(), logits_and_labels(1)
    kind = CALIBRATORS[name]
    before = logits.copy(), torch.get_rng_state()
    fitted = kind().fit(logits, labels)
    same = partial(np.testing.assert_allclose, desired=fitted.predict_proba(fresh), rtol=0, atol=1e-4)
    assert np.array_equal(before[0], logits)
    assert torch.equal(before[1], torch.get_rng_state())
    other, numbers, classes = shuffled(logits, labels)
    same(kind().fit(other, numbers).predict_proba(fresh[:, classes])[:, np.argsort(classes)])
    moved = np.random.default_rng(2).normal(size=(ROWS, 1))
    same(kind().fit(logits + moved, labels).predict_proba(fresh - moved))
    same(kind.from_json(fitted.to_json()).predict_proba(fresh), atol=0)
    same(np.concatenate([fitted.predict_proba(fresh[k : k + 1]) for k in range(ROWS)]), atol=1e-12)
    same(fitted.predict_proba(np.stack([fresh, fresh])), atol=1e-12)
    more, none = np.append(logits, 9 * fresh, 0), np.repeat([1.0, 0.0], ROWS)
    same(kind().fit(more, np.append(labels, 0 * labels), sample_weight=none).predict_proba(fresh))
    twice = kind().fit(logits, labels, sample_weight=np.full(ROWS, 2.0)).predict_proba(fresh)
    same(kind().fit(np.repeat(logits, 2, 0), np.repeat(labels, 2)).predict_proba(fresh), desired=twice)


@pytest.mark.parametrize("options", [{}, {"randomized": False}, {"class_conditional": True}, {"allow_empty": False}])
@pytest.mark.parametrize("method", METHODS)
def test_sets_of_votes_do_not_depend_on_precision(method: str, options: dict[str, bool]) -> None:
    (probs, labels), (fresh, _) = votes(), votes(1)
    types = (np.float32, np.float64)
    fitted = [ConformalClassifier(method, 0.95, **options).fit(probs.astype(kind), labels) for kind in types]
    sets = [each.predict_sets(fresh.astype(kind)) for each in fitted for kind in types]
    assert all(torch.equal(each, sets[0]) for each in sets)


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    scores, classes = (torch.from_numpy(each) for each in logits_and_labels())

    def value_and_gradient(logits: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        logits = logits.clone().requires_grad_()
        loss = LOSSES[name](logits, labels)
        return [loss.detach(), *torch.autograd.grad(loss, logits)]

    value, gradient = value_and_gradient(scores, classes)
    same = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-8)
    same(gradient.sum(1), torch.zeros_like(gradient[:, 0]))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    same(value_and_gradient(scores[order], classes[order]), [value, gradient[order]])
    same(value_and_gradient(scores + torch.arange(ROWS)[:, None] % 7, classes), [value, gradient])
    same(value_and_gradient(scores.flip(1), CLASSES - 1 - classes), [value, gradient.flip(1)])
    same(value_and_gradient(torch.cat([scores, scores]), torch.cat([classes, classes]))[0], value)
    samples, of_samples = value_and_gradient(torch.stack([scores, scores]), classes)
    same([samples, of_samples.sum(0)], [value, gradient])
    dense = scores.reshape(4, -1, CLASSES).movedim(-1, 1)
    same(value_and_gradient(dense, classes.reshape(4, -1))[0], value)


def fitted_probabilities(kind: type, logits: np.ndarray, labels: np.ndarray) -> Any:
    return kind().fit(logits, labels).predict_proba(logits)


DEFAULT_DEVICE: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "intervals": lambda z, y: metrics.intervals(Predictions.from_logits(z, y), replicates=20),
    "more intervals": lambda z, y: [
        metrics.bootstrap(each, Predictions.from_logits(z, y).probs, y, replicates=20)
        for each in metrics.MORE_METRICS.values()
    ],
    "detection": lambda z, y: metrics.detection_intervals(z[:, 0], z[:, 1], replicates=20),
    "streaming": lambda z, y: metrics.StreamingMetrics(CLASSES).update(Predictions.from_logits(z).probs, y).compute(),
    "conformal": lambda z, y: ConformalClassifier("aps").fit(z, y, logits=True).check(z, y, logits=True).as_json(),
    "check": lambda z, y: check_calibrator(TemperatureScaling(), z, y).figures,
    "loss": lambda z, y: float(losses.avuc_loss(torch.from_numpy(z), torch.from_numpy(y), 0.4)),
    "multi-label": lambda z, y: MultiLabelCalibrator().fit(z, y[:, None] == np.arange(CLASSES)).transform(z),
    "auto": partial(fitted_probabilities, AutoCalibrator),
    **{name: partial(fitted_probabilities, kind) for name, kind in CALIBRATORS.items()},
}


@pytest.mark.parametrize("name", DEFAULT_DEVICE)
def test_torch_default_device(name: str) -> None:
    """The device "meta" holds no numbers: nothing may be computed on it, nor on "cuda" of `set_default_device`."""
    wanted = DEFAULT_DEVICE[name](*logits_and_labels())
    with torch.device("meta"):
        found = DEFAULT_DEVICE[name](*logits_and_labels())
    np.testing.assert_equal(found, wanted)
