"""Dense, binary and multi-label predictions, and posterior samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from avuc.metrics import evaluate
from avuc.predictions import Predictions
from avuc.torchmetrics import CalibrationSuite


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64) * 2


def randint(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(7))


def floats(values: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def want(probs: torch.Tensor, labels: torch.Tensor) -> Any:
    """The metrics of rows (M, C), made by hand."""
    return pytest.approx(evaluate(Predictions(probs, labels)), abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_segmentation_with_ignored_pixels(kind: Any) -> None:
    logits, labels = randn(4, 3, 5, 6), randint(3, 4, 5, 6)
    labels[:, 0] = 255
    suite = CalibrationSuite(3, kind, ignore_index=255)
    for image, target in zip(
        (logits if kind == "logits" else logits.softmax(1)).split(2), labels.split(2), strict=True
    ):
        suite.update(image, target)
    rows = logits.softmax(1).movedim(1, -1).reshape(-1, 3)
    keep = labels.flatten() != 255
    assert floats(suite.compute()) == want(rows[keep], labels.flatten()[keep])


def test_language_models_have_classes_last() -> None:
    logits, labels = randn(2, 7, 5), randint(5, 2, 7)
    labels[0, 3:] = -100
    suite = CalibrationSuite(5, class_dim=-1)
    suite.update(logits, labels)
    keep = labels.flatten() != -100
    assert floats(suite.compute()) == want(logits.reshape(-1, 5).softmax(1)[keep], labels.flatten()[keep])


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_binary(shape: tuple[int, ...], kind: Any) -> None:
    logits, labels = randn(40), randint(2, 40)
    p = logits.sigmoid()
    suite = CalibrationSuite(kind=kind, task="binary")
    suite.update((logits if kind == "logits" else p).reshape(shape), labels.bool())
    assert floats(suite.compute()) == want(torch.stack([1 - p, p], 1), labels)


def test_two_classes_without_a_task_take_one_score_too() -> None:
    logits, labels = randn(40), randint(2, 40)
    plain, binary = CalibrationSuite(2), CalibrationSuite(task="binary")
    plain.update(logits, labels)
    binary.update(logits, labels)
    assert floats(plain.compute()) == floats(binary.compute())


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_multilabel_decisions_are_binary_rows(kind: Any) -> None:
    logits, labels = randn(20, 3), randint(2, 20, 3)
    labels[4, 1] = -100
    suite = CalibrationSuite(3, kind, task="multilabel")
    suite.update(logits if kind == "logits" else logits.sigmoid(), labels)
    keep = labels.flatten() != -100
    p = logits.sigmoid().flatten()[keep]
    assert floats(suite.compute()) == want(torch.stack([1 - p, p], 1), labels.flatten()[keep])


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_posterior_samples_are_averaged(kind: Any) -> None:
    logits, labels = randn(5, 30, 4), randint(4, 30)
    suite = CalibrationSuite(4, kind)
    suite.update(logits if kind == "logits" else logits.softmax(-1), labels)
    assert floats(suite.compute()) == want(logits.softmax(-1).mean(0), labels)


def test_multilabel_samples_are_averaged() -> None:
    logits, labels = randn(5, 30, 4), randint(2, 30, 4)
    suite = CalibrationSuite(task="multilabel")
    suite.update(logits, labels)
    p = logits.sigmoid().mean(0).flatten()
    assert floats(suite.compute()) == want(torch.stack([1 - p, p], 1), labels.flatten())
