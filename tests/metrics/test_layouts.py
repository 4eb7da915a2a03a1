"""Every metric takes dense and binary probabilities, and gives the figures of rows made by hand."""

from __future__ import annotations

import inspect
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss

import avuc.metrics
from avuc.core.errors import InputError
from avuc.metrics import (
    METRICS,
    StreamingMetrics,
    accuracy,
    bootstrap,
    brier,
    ece,
    evaluate,
    intervals,
    multilabel,
    nll,
    paired_bootstrap,
)
from avuc.predictions import MultiLabelPredictions, Predictions

# every public function of probabilities and labels
FUNCTIONS = [
    value
    for name in avuc.metrics.__all__
    if inspect.isfunction(value := getattr(avuc.metrics, name))
    and list(inspect.signature(value).parameters)[:2] == ["probs", "labels"]
    and name not in ("multilabel", "pavpu")  # patches of pixels: dense only
]


def dense(seed: int = 0, classes: int = 3, ignored: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.7), (4, 5, 6))
    labels = rng.integers(0, classes, (4, 5, 6))
    labels[rng.random(labels.shape) < ignored] = -100
    return np.moveaxis(probs, -1, 1), labels


def rows_of(probs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pairs = [
        (probs[n, :, i, j], labels[n, i, j])
        for n in range(4)
        for i in range(5)
        for j in range(6)
        if labels[n, i, j] != -100
    ]
    return np.array([p for p, _ in pairs]), np.array([y for _, y in pairs])


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return all(equal(x, y) for x, y in zip(a, b, strict=True))
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(np.atleast_1d(a), np.atleast_1d(b), strict=True))


@pytest.mark.parametrize("metric", FUNCTIONS, ids=lambda metric: metric.__name__)
def test_layouts(metric: Any) -> None:
    probs, labels = dense()
    expected = metric(*rows_of(probs, labels))
    last = np.moveaxis(probs, 1, -1)
    for found in (
        metric(probs, labels),
        metric(torch.from_numpy(probs), torch.from_numpy(labels)),
        metric(probs.tolist(), labels.tolist()),
        metric(last, labels, class_dim=-1),
        metric(probs, np.where(labels == -100, 255, labels), ignore_index=255),
    ):
        assert equal(found, expected)
    p, y = rows_of(*dense(classes=2))
    for one in (p[:, 1], p[:, 1:], torch.from_numpy(p[:, 1])):
        assert equal(metric(one, y), metric(np.stack([1 - p[:, 1], p[:, 1]], 1), y))
    for option in ("class_dim", "ignore_index"):
        assert option in inspect.signature(metric).parameters
        assert f"{option}: " in inspect.getdoc(metric)  # type: ignore[operator]
    assert "dense (N, C, *spatial)" in inspect.getdoc(metric)  # type: ignore[operator]


def test_there_are_functions() -> None:
    assert {metric.__name__ for metric in FUNCTIONS} >= {*METRICS, "reliability_curve", "avu_curves", "auto_threshold"}


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), min_size=2, max_size=30))
@settings(max_examples=50)
def test_binary_scores_are_those_of_scikit_learn(pairs: list[tuple[float, int]]) -> None:
    p, y = np.array([x for x, _ in pairs]), np.array([x for _, x in pairs])
    clipped = np.clip(p, 1e-6, 1 - 1e-6)
    assert nll(clipped, y) == pytest.approx(log_loss(y, clipped, labels=[0, 1]), abs=1e-9)
    # summed over both classes, so twice the usual binary one
    assert brier(p, y) == pytest.approx(2 * brier_score_loss(y, p), abs=1e-9)
    assert accuracy(p, y) == np.mean((p > 0.5) == y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision(dtype: torch.dtype) -> None:
    probs, labels = dense()
    given, exact = torch.from_numpy(probs).to(dtype), torch.from_numpy(probs)
    assert nll(given, labels) == pytest.approx(nll(exact, labels), abs=0.05)
    assert nll(given[:, 1].flatten(), (labels == 1).reshape(-1)) == pytest.approx(
        nll(exact[:, 1].flatten(), (labels == 1).reshape(-1)), abs=0.05
    )


def test_intervals_and_bootstrap() -> None:
    probs, labels = dense()
    rows, targets = rows_of(probs, labels)
    images = np.nonzero(labels != -100)[0]
    flat = bootstrap(ece, rows, targets, replicates=50, groups=images)
    assert bootstrap(ece, probs, labels, replicates=50) == flat
    assert bootstrap(ece, np.moveaxis(probs, 1, -1), labels, replicates=50, class_dim=-1) == flat
    sharper = probs**2 / (probs**2).sum(1, keepdims=True)
    assert paired_bootstrap(nll, probs, sharper, labels, replicates=50) == paired_bootstrap(
        nll, rows, rows_of(sharper, labels)[0], targets, replicates=50, groups=images
    )
    predictions = Predictions(probs, labels)
    assert intervals(predictions, ["nll"], replicates=50)["nll"] == bootstrap(
        nll, rows, targets, replicates=50, groups=images
    )
    assert evaluate(predictions)["avu"] == METRICS["avu"](rows, targets)


def test_refusals() -> None:
    probs, labels = dense()
    with pytest.raises(InputError, match="every label is ignore_index"):
        ece(probs, np.full(labels.shape, -100))
    with pytest.raises(InputError, match="every label is ignore_index"):
        ece([[0.5, 0.5]], [-100])
    with pytest.raises(InputError, match="class_dim=-1"):
        ece(np.moveaxis(probs, 1, -1), labels)
    with pytest.raises(InputError, match="regression"):
        ece([0.1, 0.7], [0.2, 3.1])
    with pytest.raises(InputError, match="found -100"):
        ece([[0.5, 0.5]], [-100], ignore_index=None)
    with pytest.raises(TypeError, match="bin"):
        ece(probs, labels, bin=3)


# ---- streaming


def test_streaming_batches_are_the_whole() -> None:
    probs, labels = dense()
    stream = StreamingMetrics(3, threshold=0.6)
    for some in range(4):
        stream.update(probs[some : some + 1], labels[some : some + 1])
    stream.update(probs[:1], np.full((1, 5, 6), -100))  # a batch without a label changes nothing
    rows, targets = rows_of(probs, labels)
    assert len(stream) == len(targets)
    whole = evaluate(Predictions(rows, targets), threshold=0.6)
    for name, value in stream.compute().items():
        low, high = stream.bounds().get(name, (whole[name], whole[name]))
        assert low - 1e-9 <= whole[name] <= high + 1e-9
        assert value == pytest.approx(whole[name], abs=(high - low) + 1e-9)
    binary = StreamingMetrics(2).update([0.9, 0.2], [1, 0]).update(torch.tensor([[0.4]]), torch.tensor([[1]]))
    assert binary.compute()["accuracy"] == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="expected 2 classes, found 3"):
        binary.update(probs, labels)


def test_a_set_larger_than_its_memory_streams() -> None:
    """80 batches of 1.2 MB: the memory in use stays at a few batches, and the figures are those of the whole."""
    generator = torch.Generator().manual_seed(0)
    stream, right, rows, batch_bytes = StreamingMetrics(5), 0, 0, 2 * 5 * 120 * 120 * 4
    tracemalloc.start()
    for _ in range(80):
        probs = torch.randn(2, 5, 120, 120, generator=generator).softmax(1).numpy()
        labels = torch.randint(-1, 5, (2, 120, 120), generator=generator).numpy()
        stream.update(probs, labels, ignore_index=-1)
        right, rows = right + int((probs.argmax(1) == labels).sum()), rows + int((labels >= 0).sum())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(stream) == rows
    assert stream.compute()["accuracy"] == pytest.approx(right / rows, abs=1e-12)
    assert peak < 12 * batch_bytes  # the whole is 80 batches


# ---- multi-label


def labelled(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.beta(0.7, 0.7, (60, 4))
    labels = (rng.random((60, 4)) < probs).astype(int)
    labels[rng.random((60, 4)) < 0.15] = -100
    return probs, labels


@pytest.mark.parametrize("threshold", ["auto", 0.4])
def test_multilabel(threshold: Any) -> None:
    probs, labels = labelled()
    for arguments in (
        (probs, labels),
        (torch.from_numpy(probs), torch.from_numpy(labels)),
        (probs.tolist(), labels.tolist()),
    ):
        result = multilabel(*arguments, threshold=threshold, bins=7)
        for name in METRICS:
            options = {"threshold": threshold, "bins": 7}
            known = {k: v for k, v in options.items() if k in inspect.signature(METRICS[name]).parameters}
            each = [METRICS[name](probs[:, k], labels[:, k], **known) for k in range(4)]
            np.testing.assert_allclose(result.per_label[name], each, rtol=1e-12, atol=1e-12)
            assert result.macro[name] == pytest.approx(np.mean(each))
            assert result.counted[name] == 4
            assert result.micro[name] == pytest.approx(METRICS[name](probs.ravel(), labels.ravel(), **known))
        assert result.rows.tolist() == (labels >= 0).sum(0).tolist()


def test_multilabel_without_unknown_decisions() -> None:
    rng = np.random.default_rng(1)
    probs, labels = rng.random((30, 5)), rng.integers(0, 2, (30, 5))
    result = multilabel(probs, labels)
    for name in ("accuracy", "nll", "ece"):
        each = [METRICS[name](probs[:, k], labels[:, k]) for k in range(5)]
        np.testing.assert_allclose(result.per_label[name], each, rtol=1e-12, atol=1e-12)
    assert result.rows.tolist() == [30] * 5


def test_undefined_values_do_not_count() -> None:
    probs = np.array([[0.9, 0.1, 0.5], [0.8, 0.6, 0.5]])
    result = multilabel(probs, [[1, 0, -100], [1, 0, -100]])
    wrong = result.per_label["p_uncertain_given_inaccurate"]
    assert math.isnan(wrong[0])
    assert math.isnan(wrong[2])
    assert result.counted["p_uncertain_given_inaccurate"] == 1
    assert result.macro["p_uncertain_given_inaccurate"] == wrong[1]
    assert result.counted["accuracy"] == 2
    assert result.macro["accuracy"] == 0.75
    assert math.isnan(multilabel([[0.9]], [[1]]).macro["p_uncertain_given_inaccurate"])


def test_multilabel_extremes() -> None:
    assert multilabel([[0.0, 1.0]], [[0, 1]]).micro["nll"] == 0
    assert multilabel([[0.0, 1.0]], [[1, 0]]).micro["nll"] == pytest.approx(-math.log(1e-12))
    wide = multilabel(np.full((2, 1000), 0.5), np.ones((2, 1000)))
    assert wide.per_label["ece"].shape == (1000,)
    for probs, labels, message in (
        ([[0.5]], [[-100]], "no known decision"),
        (np.empty((0, 2)), np.empty((0, 2)), "no known decision"),
        ([[1.5]], [[1]], "from 0 to 1"),
        ([[float("nan")]], [[1]], "from 0 to 1"),
        ([0.5], [1], r"\(N, L\)"),
        ([[0.5, 0.5]], [1], r"shape \(1, 2\)"),
        (np.full((1, 2, 3), 0.5), np.ones((1, 2, 3)), r"\(N, L\)"),
    ):
        with pytest.raises(InputError, match=message):
            multilabel(probs, labels)


def test_all_decisions_of_multilabel_predictions() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (40, 3))
    labels[0, 0] = -100
    several = MultiLabelPredictions(rng.random((40, 3)), labels)
    assert avuc.metrics.evaluate(several) == avuc.metrics.evaluate(several.flatten())
    found, expected = (avuc.metrics.intervals(one, ["nll"], replicates=50) for one in (several, several.flatten()))
    assert found == expected
    other = MultiLabelPredictions(rng.random((40, 3)), labels)
    assert avuc.metrics.paired_intervals(several, other, ["brier"], replicates=50) == avuc.metrics.paired_intervals(
        several.flatten(), other.flatten(), ["brier"], replicates=50
    )
