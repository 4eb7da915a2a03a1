"""Intersection over union against loops, scikit-learn and itself in parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import jaccard_score

from avuc.core.errors import InputError
from avuc.metrics import iou
from avuc.metrics.iou import class_counts
from avuc.metrics.streaming import StreamingIoU


def world(seed: int, *shape: int, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.3), shape)
    labels = np.where(rng.random(shape) < 0.6, probs.argmax(-1), rng.integers(0, classes, shape))
    return np.moveaxis(probs, -1, 1), labels


def oracle(probs: np.ndarray, labels: np.ndarray, ignored: int = -100) -> list[float]:
    found = []
    for c in range(probs.shape[1]):
        both = either = 0
        for place in np.ndindex(labels.shape):
            if labels[place] == ignored:
                continue
            column = probs[(place[0], slice(None), *place[1:])]
            said = max(range(len(column)), key=lambda k: (column[k], -k)) == c
            both += said and labels[place] == c
            either += said or labels[place] == c
        found.append(both / either if either else math.nan)
    return found


@given(st.integers(0, 999), st.booleans(), st.sampled_from([2, 3, 7]))
def test_equals_loops(seed: int, ignore: bool, classes: int) -> None:
    probs, labels = world(seed, 2, 3, 4, classes=classes)
    if ignore:
        labels[:, :2, :2] = -100
    expected = oracle(probs, labels)
    for given_probs, given_labels in ((probs, labels), (torch.from_numpy(probs), torch.from_numpy(labels))):
        found = iou(given_probs, given_labels)
        np.testing.assert_allclose(found.per_class, expected)
        assert found.mean == pytest.approx(np.nanmean(expected))
    last = iou(np.moveaxis(probs, 1, -1), labels, class_dim=-1)
    assert last.mean == pytest.approx(found.mean)


@given(st.integers(0, 999), st.integers(2, 12))
def test_equals_scikit_learn(seed: int, classes: int) -> None:
    probs, labels = world(seed, 60, classes=classes)
    present = np.union1d(labels, probs.argmax(1))
    found = iou(probs, labels)
    assert found.mean == pytest.approx(jaccard_score(labels, probs.argmax(1), labels=present, average="macro"))
    np.testing.assert_allclose(
        found.per_class[present], jaccard_score(labels, probs.argmax(1), labels=present, average=None)
    )
    assert np.isnan(np.delete(found.per_class, present)).all()


@given(st.integers(0, 99), st.lists(st.integers(1, 8), max_size=3))
def test_streaming_in_any_parts_is_the_whole(seed: int, cuts: list[int]) -> None:
    probs, labels = world(seed, 9, 2, 3)
    labels[0] = -100
    stream = StreamingIoU(4)
    for part in np.split(np.arange(9), sorted(cuts)):
        if len(part):
            one = StreamingIoU(4).update(probs[part], labels[part])
            stream.merge(one)
    whole = iou(probs, labels)
    np.testing.assert_array_equal(stream.compute().per_class, whole.per_class)
    copy = StreamingIoU(4)
    copy.load_state_dict(stream.state_dict())
    assert copy.compute().mean == whole.mean


def test_streaming_files_and_refusals(tmp_path) -> None:
    probs, labels = world(3, 5)
    stream = StreamingIoU(4).update(probs, labels)
    stream.save(tmp_path / "state.safetensors")
    assert StreamingIoU(4).load(tmp_path / "state.safetensors").compute().mean == stream.compute().mean
    with pytest.raises(InputError, match="expected 4 classes, found 2"):
        stream.update([[0.5, 0.5]], [0])
    with pytest.raises(InputError, match="no labelled row"):
        StreamingIoU(4).compute()
    with pytest.raises(InputError, match="at least 2"):
        StreamingIoU(1)
    before = stream.compute().mean
    assert stream.update(probs, np.full(5, -100)).compute().mean == before


def test_extremes() -> None:
    eye = np.eye(3)
    assert iou(eye, [0, 1, 2]).mean == 1
    assert iou(eye, [1, 2, 0]).mean == 0
    assert iou([[1.0, 0.0]], [0]).per_class.tolist()[0] == 1  # one sample, p exactly 0 and 1
    assert math.isnan(iou([[1.0, 0.0]], [0]).per_class[1])
    assert iou([0.9, 0.2], [1, 0]).mean == 1  # binary
    half = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float16)
    assert iou(half, torch.tensor([0, 1])).mean == 1
    many = np.full((1, 1000), 1e-3)
    assert iou(many, [0]).mean == 1  # the first of equal classes
    for bad, message in (
        ((np.array([[math.nan, 1.0]]), [0]), "NaN"),
        ((np.array([[math.inf, 0.0]]), [0]), "inf"),
        ((np.zeros((0, 3)), []), "no samples"),
        ((np.eye(2), [0, 5]), "labels must be in"),
        ((np.ones((2, 3, 4)) / 3, [0, 1]), "labels must have shape"),
        ((np.eye(2), [-100, -100]), "every label is ignore_index"),
    ):
        with pytest.raises(InputError, match=message):
            iou(*bad)


def test_counts_of_tensors_and_arrays_are_equal() -> None:
    rng = np.random.default_rng(0)
    predicted, labels = rng.integers(0, 5, (2, 40))
    found = class_counts(predicted, labels, 5)
    np.testing.assert_array_equal(found, class_counts(torch.from_numpy(predicted), torch.from_numpy(labels), 5))
    assert found[1:].sum(1).tolist() == [40, 40]
