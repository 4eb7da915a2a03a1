"""`compare` and `evaluate_streaming` of predictions and arrays: the figures of the same rows in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from avuc import MultiLabelPredictions, Predictions, Predictor
from avuc.core.errors import InputError
from avuc.evaluation import compare, evaluate, evaluate_streaming
from avuc.evaluation.files import read_scores
from avuc.metrics import METRICS

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 240)
LOGITS = (4 * (RNG.normal(size=(240, 3)) + np.eye(3)[LABELS])).astype(np.float32)


def file(folder: Path, **arrays: Any) -> Any:
    np.savez(folder / "scores.npz", **arrays)
    return read_scores(folder / "scores.npz")


@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_compare_logits(method: str, tmp_path: Path) -> None:
    expected, before = compare(file(tmp_path, logits=LOGITS, labels=LABELS), method, replicates=30)
    for logits in (LOGITS, torch.from_numpy(LOGITS), LOGITS.tolist()):
        fitted, found = compare(logits, method, labels=LABELS, replicates=30)
        np.testing.assert_allclose(fitted.transform(LOGITS), expected.transform(LOGITS), rtol=1e-5, atol=1e-5)
        assert found.change["nll"] == pytest.approx(before.change["nll"], abs=1e-6)
        assert found.after.metrics == pytest.approx(before.after.metrics, abs=1e-5)


def test_compare_layouts() -> None:
    expected = compare(LOGITS, "temperature", labels=LABELS, replicates=0)[1].after.metrics
    dense, maps = LOGITS.reshape(8, 30, 3), LABELS.reshape(8, 30)
    more = np.concatenate([dense, 9 * np.ones((1, 30, 3), np.float32)])
    ignored = np.concatenate([maps, np.full((1, 30), -100)])
    names = [f"image {number // 30}" for number in range(240)]
    by_image = compare(LOGITS, "temperature", labels=LABELS, replicates=50, groups=names)[1]
    assert (by_image.groups, by_image.as_json()["groups"], by_image.after.bootstrap) == (8, 8, "groups")
    for logits, labels, options in (
        (np.moveaxis(dense, -1, 1), maps, {}),
        (dense, maps, {"class_dim": -1}),
        (more, ignored, {"class_dim": -1}),
    ):
        found = compare(logits, "temperature", labels=labels, replicates=50, **options)[1]
        assert found.after.metrics == pytest.approx(by_image.after.metrics, abs=1e-5)
        assert found.change["nll"] == pytest.approx(by_image.change["nll"], abs=1e-5)
        assert found.check.figures["ece"] == pytest.approx(by_image.check.figures["ece"], abs=1e-5)
        assert "5 parts of 8 whole images or groups" in found.how
    probs = Predictions.from_logits(more, ignored, class_dim=-1)
    assert compare(probs, "temperature", replicates=50)[1].change["nll"] == pytest.approx(
        by_image.change["nll"], abs=1e-4
    )
    found = compare(np.stack([LOGITS, LOGITS]), "temperature", labels=LABELS, replicates=0)[1]
    assert found.after.metrics == pytest.approx(expected, abs=1e-5)
    assert "groups" not in found.as_json()
    one = compare(dense[:1], "temperature", labels=maps[:1], class_dim=-1)[1]
    assert "all rows belong to one image or group" in " ".join(one.warnings)
    assert one.check.reasons == (
        "there is only one image or group, so nothing can be held out to judge the calibrator by",
    )
    z, y = 3 * RNG.normal(size=200), RNG.integers(0, 2, 200)
    two = compare(np.stack([0 * z, z], 1), "temperature", labels=y, replicates=0, keep_worse=True)[0]
    one = compare(z, "temperature", labels=y, replicates=0, keep_worse=True)[0]
    assert one.temperature_ == pytest.approx(two.temperature_)


def test_compare_predictions() -> None:
    predictions = Predictions.from_logits(LOGITS, LABELS)
    fitted, found = compare(predictions, "temperature", replicates=0)
    logits, same = compare(LOGITS, "temperature", labels=LABELS, replicates=0)
    assert fitted.temperature_ == pytest.approx(logits.temperature_, rel=1e-4)
    assert found.before.metrics == pytest.approx(same.before.metrics, abs=1e-5)
    assert found.after.metrics == pytest.approx(same.after.metrics, abs=1e-4)


def test_compare_refuses() -> None:
    with pytest.raises(InputError, match="labels="):
        compare(LOGITS, "temperature")
    with pytest.raises(InputError, match="labels of their own"):
        compare(Predictions.from_logits(LOGITS, LABELS), "temperature", labels=LABELS)
    with pytest.raises(InputError, match="a label for each row"):
        compare(Predictions.from_logits(LOGITS), "temperature")
    with pytest.raises(InputError, match="multi-label"):
        compare(MultiLabelPredictions([[0.5]], [[1]]), "temperature")
    with pytest.raises(InputError, match="probabilities"):
        compare(torch.from_numpy(LOGITS).softmax(-1), "temperature", labels=LABELS)


def parts(rows: int = 50) -> Iterator[Predictions]:
    for start in range(0, 240, rows):
        yield Predictions.from_logits(LOGITS[start : start + rows], LABELS[start : start + rows])


def test_streaming_predictions(tmp_path: Path) -> None:
    np.savez(tmp_path / "scores.npz", logits=LOGITS, labels=LABELS)
    expected = evaluate_streaming(tmp_path / "scores.npz", outside=tmp_path / "scores.npz")
    whole = Predictions.from_logits(LOGITS, LABELS)
    for found in (evaluate_streaming(whole, outside=whole), evaluate_streaming(parts(), outside=parts(7))):
        assert found.metrics == pytest.approx(expected.metrics, abs=1e-6)
        assert found.detection == pytest.approx(expected.detection, abs=1e-6)
        assert (found.n, found.outside) == (240, 240)
        assert found.expected_entropy == pytest.approx(expected.expected_entropy, abs=1e-6)


def test_a_segmentation_set_streams() -> None:
    net, x = nn.Conv2d(2, 3, 1), torch.randn(6, 2, 4, 5)
    labels = torch.randint(3, (6, 4, 5))
    labels[:3] = -100  # nothing of the first batch counts
    predictor = Predictor(net, batch_size=2)
    found = evaluate_streaming(predictor.stream(x, labels))
    expected = evaluate(predictor(x, labels), replicates=0)
    assert found.n == expected.n == 60
    assert found.metrics["nll"] == pytest.approx(expected.metrics["nll"])


def test_streaming_multilabel() -> None:
    several = MultiLabelPredictions(RNG.random((30, 4)), RNG.integers(0, 2, (30, 4)))
    found, expected = evaluate_streaming([several, several]), evaluate(several, replicates=0)
    assert found.n == 240
    assert found.metrics["brier"] == pytest.approx(expected.metrics["brier"])
    assert set(found.metrics) == set(METRICS)


def test_streaming_refuses() -> None:
    with pytest.raises(InputError, match="no label"):
        evaluate_streaming(Predictions.from_logits(LOGITS))
    with pytest.raises(InputError, match="no predictions"):
        evaluate_streaming([])
    with pytest.raises(InputError, match="found ndarray"):
        evaluate_streaming(LOGITS)
    with pytest.raises(InputError, match="found int"):
        evaluate_streaming(3)
    with pytest.raises(InputError, match="same classes"):
        evaluate_streaming([Predictions([0.5], [1]), Predictions.from_logits(LOGITS, LABELS)])
