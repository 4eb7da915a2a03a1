"""`compute_metrics` against the functions of `avuc.metrics`, and what it refuses."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import EvalPrediction

from avuc.core.errors import InputError
from avuc.metrics import METRICS, evaluate
from avuc.predictions import MultiLabelPredictions
from avuc.transformers import compute_metrics


def softmax(logits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(logits).softmax(-1).numpy()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 6), st.integers(2, 5))
def test_tokens_are_rows(seed: int, rows: int, length: int, classes: int) -> None:
    """Oracle: a loop that keeps the tokens with a label, and each metric's own function."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(rows, length, classes)) * 3
    labels = random.integers(0, classes, (rows, length))
    labels[random.random(labels.shape) < 0.3] = -100
    labels[0, 0] = 0
    kept = [(n, t) for n in range(rows) for t in range(length) if labels[n, t] != -100]
    probs = softmax(np.array([logits[n, t] for n, t in kept]))
    classes_of = [int(labels[n, t]) for n, t in kept]
    found = compute_metrics(EvalPrediction(logits, labels))
    assert list(found) == list(METRICS)
    for name, metric in METRICS.items():
        assert found[name] == pytest.approx(metric(probs, classes_of), rel=1e-9, nan_ok=True), name


def test_sequences_tuples_and_other_arguments() -> None:
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(20, 4)).astype(np.float32), random.integers(0, 4, 20)
    expected = compute_metrics(EvalPrediction(logits, labels))
    # a model that also returns hidden states; a plain pair; labels of one column
    assert compute_metrics(EvalPrediction((logits, logits[:, None, :]), labels)) == expected
    assert compute_metrics((logits, labels)) == expected
    assert compute_metrics((logits, labels[:, None])) == expected
    some = partial(compute_metrics, names=["ece", "nll"], bins=5)((logits, labels))
    assert list(some) == ["ece", "nll"]
    assert some["ece"] == pytest.approx(METRICS["ece"](softmax(logits), labels, bins=5), abs=1e-6)
    assert all(isinstance(value, float) for value in expected.values())  # JSON of the trainer's state


def test_shifted_labels() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(2, 5, 3)), np.array([[0, 1, 2, 0, 1], [1, 1, 1, 2, -100]])
    shifted = compute_metrics((logits, labels), shift_labels=True)
    assert shifted == compute_metrics((logits[:, :-1], labels[:, 1:]))


def test_float16_and_one_row() -> None:
    assert compute_metrics((np.array([[2, 0]], np.float16), np.array([0])))["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("predictions", "labels", "problem"),
    [
        (np.zeros((4, 1)), np.zeros(4), "regression"),
        (np.zeros((4, 3)), np.zeros((4, 3)), "give task='multilabel'"),
        (np.zeros((4, 3)), np.zeros(5, int), "go with labels"),
        (np.zeros((4, 2, 3)), np.zeros(4, int), "go with labels"),
        (np.zeros((4, 3)), np.full(4, -100), "no label is left"),
        (np.zeros((4, 3)), np.full(4, 7), "labels must be in"),
        (np.full((4, 3), np.nan), np.zeros(4, int), "NaN"),
        (np.zeros(4), np.zeros(4, int), "no logits"),
        (np.zeros((4, 3)), (np.zeros(4), np.zeros(4)), "one set of labels"),
    ],
)
def test_refusals(predictions: np.ndarray, labels: np.ndarray, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        compute_metrics(EvalPrediction(predictions, labels))


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(InputError, match="unknown metric 'f1'"):
        compute_metrics((np.zeros((2, 2)), np.zeros(2, int)), names=["f1"])


def test_multi_label_decisions_are_binary_rows() -> None:
    """Oracle: MultiLabelPredictions of the same logits."""
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(30, 4)) * 3, random.integers(0, 2, (30, 4)).astype(np.float32)
    labels[0, 0] = -100
    found = compute_metrics((logits, labels), task="multilabel")
    expected = evaluate(MultiLabelPredictions.from_logits(logits, labels).flatten())
    assert found == pytest.approx(expected, rel=1e-9)
    for bad, problem in ((labels[:, :2], "shape of the logits"), (labels + 0.5, "labels")):
        with pytest.raises(InputError, match=problem):
            compute_metrics((logits, bad), task="multilabel")
    with pytest.raises(InputError, match="task must be one of"):
        compute_metrics((logits, labels), task="regression")
