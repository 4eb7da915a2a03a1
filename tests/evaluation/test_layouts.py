"""`evaluate` of dense, binary and multi-label predictions, and of plain arrays."""

from __future__ import annotations

import json
import math
from importlib import import_module

import numpy as np
import pytest
import torch

from avuc import MultiLabelPredictions, Predictions
from avuc.core.errors import InputError
from avuc.evaluation import evaluate, metric_values
from avuc.metrics import METRICS, multilabel

RNG = np.random.default_rng(0)
PROBS = np.moveaxis(RNG.dirichlet(np.ones(3), (4, 5)), -1, 1)
LABELS = RNG.integers(0, 3, (4, 5))
LABELS[0, :2] = -100


def test_dense_and_arrays() -> None:
    keep = LABELS != -100
    rows, images = Predictions(np.moveaxis(PROBS, 1, -1)[keep], LABELS[keep]), np.nonzero(keep)[0]
    flat = evaluate(rows, replicates=20, groups=images)
    for found in (evaluate(Predictions(PROBS, LABELS), replicates=20), evaluate(PROBS, LABELS, replicates=20)):
        assert found.as_json() == flat.as_json()
        assert found.n == keep.sum()
    assert "per_label" not in flat.as_json()
    assert flat.bootstrap == "groups"
    alone = evaluate(rows, replicates=20)  # as if pixels were independent
    assert (alone.bootstrap, alone.metrics) == ("rows", flat.metrics)
    one = evaluate(PROBS[:1], LABELS[:1], replicates=20)
    assert (one.intervals, one.replicates) == ({}, 0)
    assert metric_values(Predictions(PROBS, LABELS)).metrics == flat.metrics


def test_binary() -> None:
    p, y = RNG.random(30), RNG.integers(0, 2, 30)
    both = evaluate(Predictions(np.stack([1 - p, p], 1), y), replicates=0)
    assert evaluate(p, y, replicates=0).metrics == both.metrics
    assert evaluate(Predictions(p, y), replicates=0).num_classes == 2


def test_multilabel() -> None:
    probs, labels = RNG.random((30, 3)), RNG.integers(0, 2, (30, 3))
    labels[:, 2] = -100
    labels[3, 0] = -100
    predictions = MultiLabelPredictions(probs, labels, names=["a", "b", "c"])
    result, expected = evaluate(predictions, replicates=20), multilabel(probs, labels)
    assert result.n == 59
    for name in METRICS:
        assert result.metrics[name] == pytest.approx(expected.micro[name], nan_ok=True)
        np.testing.assert_array_equal(result.per_label[name], expected.per_label[name])
        assert result.macro[name] == pytest.approx(expected.macro[name], nan_ok=True)
    assert math.isnan(result.per_label["accuracy"][2])
    assert result.label_names == ("a", "b", "c")
    assert set(result.intervals) == set(METRICS)
    assert result.bootstrap == "groups"  # the rows, with all their labels
    document = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert document["per_label"]["accuracy"][2] is None
    assert document["labels"] == ["a", "b", "c"]
    assert metric_values(predictions).metrics == result.metrics
    assert evaluate(MultiLabelPredictions(probs, labels), replicates=0).label_names == ("0", "1", "2")


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"evaluate\(probs, labels\)"):
        evaluate(PROBS)
    with pytest.raises(InputError, match="labels of their own"):
        evaluate(Predictions(PROBS, LABELS), LABELS)
    with pytest.raises(InputError, match="no labels"):
        evaluate(MultiLabelPredictions([[0.5]]))
    with pytest.raises(InputError, match="MultiLabelPredictions"):
        evaluate(np.full((4, 3), 0.5), np.ones((4, 3)))
    with pytest.raises(InputError, match="regression"):
        evaluate([0.1, 0.9], [0.1, 2.5])


def test_options_of_arrays() -> None:
    last, labels = np.moveaxis(PROBS, 1, -1), np.where(LABELS == -100, 7, LABELS)
    found = evaluate(last, labels, replicates=0, class_dim=-1, ignore_index=7)
    assert found.metrics == evaluate(PROBS, LABELS, replicates=0).metrics


def test_outside_entropies_may_be_an_array() -> None:
    outside = RNG.random(20).astype(np.float32)
    found, expected = (
        evaluate(PROBS, LABELS, outside_entropy=values, replicates=0) for values in (outside, torch.from_numpy(outside))
    )
    assert found.detection == expected.detection != {}
    # entropies of pixels: those of an image belong together
    pixels = np.repeat(outside, 5).reshape(20, 5)
    dense = evaluate(PROBS, LABELS, outside_entropy=pixels, replicates=50)
    flat = evaluate(
        PROBS, LABELS, outside_entropy=pixels.reshape(-1), outside_groups=np.arange(20).repeat(5), replicates=50
    )
    assert dense.detection_intervals == flat.detection_intervals != {}
    assert dense.detection_bootstrap == "groups"
    assert found.outside == 20


def test_many_rows_resample_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = RNG.dirichlet(np.ones(3), 4000)
    labels = (probs.cumsum(-1) > RNG.random((4000, 1))).argmax(-1)
    exact = evaluate(probs, labels, replicates=300)
    monkeypatch.setattr("avuc.metrics.blockwise.LARGE_ROWS", 1000)
    monkeypatch.setattr(import_module("avuc.metrics.intervals"), "BLOCK_ROWS", 1024)
    found = evaluate(probs, labels, replicates=300)
    assert (exact.bootstrap, found.bootstrap) == ("rows", "cells")
    assert found.metrics == exact.metrics
    for name in ("accuracy", "nll", "brier", "avu"):
        (low, high), (a, b) = exact.intervals[name], found.intervals[name]
        assert b - a == pytest.approx(high - low, rel=0.3)
