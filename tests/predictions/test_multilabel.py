"""`MultiLabelPredictions`: each decision is a binary prediction, against plain loops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from avuc import MultiLabelPredictions, Predictions, metrics, predict
from avuc.calibration import MultiLabelCalibrator
from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors, write_tensors

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.normal(size=(3, 20, 4))
LABELS = RNG.integers(0, 2, (20, 4))
LABELS[::5, 2] = -100


def entropy(p: float) -> float:
    return -sum(x * math.log(x) for x in (p, 1 - p) if x > 0)


def test_samples_against_a_loop() -> None:
    found = MultiLabelPredictions.from_samples(LOGITS, LABELS)
    for row in range(20):
        for label in range(4):
            each = [1 / (1 + math.exp(-LOGITS[s, row, label])) for s in range(3)]
            assert float(found.probs[row, label]) == pytest.approx(sum(each) / 3)
            assert float(found.expected_entropy[row, label]) == pytest.approx(sum(map(entropy, each)) / 3)
    assert (len(found), found.num_labels, found.samples) == (20, 4, 3)


def test_labels_and_all_decisions() -> None:
    p = MultiLabelPredictions.from_samples(LOGITS, LABELS, names=["a", "b", "c", "d"])
    for label, name in enumerate("abcd"):
        one = p.label(name)
        known = LABELS[:, label] != -100
        assert isinstance(one, Predictions)
        np.testing.assert_allclose(one.probs[:, 1], p.probs[known, label])
        assert one.labels.tolist() == LABELS[known, label].tolist()
        np.testing.assert_allclose(one.expected_entropy, p.expected_entropy[known, label])
        assert torch.equal(p.label(label).probs, one.probs)
    every = p.flatten()
    assert every.shape == (20, 4)
    assert len(every) == int((LABELS >= 0).sum())
    np.testing.assert_array_equal(every.to_map(every.labels, fill=-100), LABELS)
    assert every.samples == 3
    assert (every.mutual_information > 0).any()


def test_calibrator_acts_on_each_sample() -> None:
    scaler = MultiLabelCalibrator()
    scaler.num_classes_, scaler.temperature_, scaler.fitted_ = 4, np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4)
    found = MultiLabelPredictions.from_samples(LOGITS, LABELS, calibrator=scaler)
    np.testing.assert_allclose(found.probs, torch.tensor(LOGITS / scaler.temperature_).sigmoid().mean(0), rtol=1e-6)


def test_save_load_to(tmp_path: Path) -> None:
    for p in (MultiLabelPredictions.from_samples(LOGITS, LABELS, names="abcd"), MultiLabelPredictions([[0.5, 1.0]])):
        p.save(tmp_path / "m.safetensors")
        for q in (MultiLabelPredictions.load(tmp_path / "m.safetensors"), p.to("cpu")):
            assert (q.samples, q.names) == (p.samples, p.names)
            for name in ("probs", "labels", "expected_entropy"):
                assert torch.equal(getattr(q, name), getattr(p, name))
    with pytest.raises(InputError, match="not a file of Predictions"):
        Predictions.load(tmp_path / "m.safetensors")
    tensors, metadata = read_tensors(tmp_path / "m.safetensors")
    for change in ({"names": "{"}, {"names": "[1]"}, {"names": "3"}, {"samples": "x"}, {"format": "y"}):
        write_tensors(tmp_path / "bad.safetensors", tensors, metadata | change)
        with pytest.raises(InputError, match=r"bad\.safetensors"):
            MultiLabelPredictions.load(tmp_path / "bad.safetensors")


def test_without_labels() -> None:
    p = MultiLabelPredictions.from_logits(LOGITS[0])
    assert (p.labels == -1).all()
    assert (p.flatten().labels == -1).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiLabelPredictions([0.5], [1]), r"\(N, L\)"),
        (lambda: MultiLabelPredictions([[0.5]], [[2]]), "0 or 1"),
        (lambda: MultiLabelPredictions([[0.5]], [[0.3]]), "regression"),
        (lambda: MultiLabelPredictions([[1.5]], [[1]]), "from 0 to 1"),
        (lambda: MultiLabelPredictions([[math.nan]], [[1]]), "from 0 to 1"),
        (lambda: MultiLabelPredictions([[0.5]], [[1]], names=["a", "b"]), "each of 1 labels"),
        (lambda: MultiLabelPredictions([[0.5]], [[1]], samples=2), "expected_entropy is needed"),
        (lambda: MultiLabelPredictions([[0.5]], [[1]], samples=0), "at least 1"),
        (lambda: MultiLabelPredictions([[0.5]], [[1]], [[math.inf]]), "finite"),
        (lambda: MultiLabelPredictions([[1]], [[1]]), "floating-point"),
        (lambda: MultiLabelPredictions.from_logits(LOGITS, LABELS), "from_samples"),
        (lambda: MultiLabelPredictions.from_samples(LOGITS[0], LABELS), r"\(S, N, L\)"),
        (lambda: MultiLabelPredictions.from_logits(np.full((8, 2), 0.5)), "look like probabilities"),
        (lambda: MultiLabelPredictions.from_logits([[math.nan]]), "NaN"),
        (lambda: MultiLabelPredictions([[0.5]], [[1]]).label("cat"), "no label named"),
        (lambda: MultiLabelPredictions([[0.5]], [[1]]).label(1), "no label 1"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_extremes() -> None:
    p = MultiLabelPredictions.from_logits([[math.inf, -math.inf]], [[1, 0]])
    assert p.probs.tolist() == [[1, 0]]
    assert p.expected_entropy.tolist() == [[0, 0]]
    assert p.flatten().correct.all()
    assert (
        MultiLabelPredictions.from_logits(-torch.ones(2, 1000).half(), torch.zeros(2, 1000)).probs.dtype
        == torch.float64
    )
    assert len(MultiLabelPredictions(torch.empty(0, 3), torch.empty(0, 3)).flatten()) == 0


def test_confident_mistakes_cost_their_logit() -> None:
    """1 − p of a float32 probability is 0 from a logit of 17 on, and the loss would be that of the clamp, 27.6."""
    logits = torch.tensor([[20.0, -20.0], [17.5, -17.5], [12.0, -12.0]])
    wrong = (logits < 0).long()
    found: Any = predict(torch.nn.Identity(), logits, wrong, samples=1, task="multilabel", progress=False)
    for each in (MultiLabelPredictions.from_logits(logits, wrong), found):
        rows = each.flatten()
        losses = [metrics.nll(rows.probs[[i]], rows.labels[[i]]) for i in range(6)]
        np.testing.assert_allclose(losses, [20, 20, 17.5, 17.5, 12, 12], rtol=1e-5)
