"""PAvPU against a loop over patches, and against AvU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.metrics import avu, p_accurate_given_certain, p_uncertain_given_inaccurate, pavpu


def world(seed: int, *shape: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.3), shape)
    labels = np.where(rng.random(shape) < 0.6, probs.argmax(-1), rng.integers(0, classes, shape))
    return np.moveaxis(probs, -1, 1), labels


def oracle(probs: np.ndarray, labels: np.ndarray, threshold: float, patch: int) -> tuple[float, ...]:
    n_ac = n_au = n_ic = n_iu = 0
    images, height, width = labels.shape
    for i in range(images):
        for top in range(0, height - patch + 1, patch):
            for left in range(0, width - patch + 1, patch):
                right, entropies = [], []
                for y in range(top, top + patch):
                    for x in range(left, left + patch):
                        if labels[i, y, x] == -100:
                            continue
                        p = probs[i, :, y, x]
                        right.append(p.argmax() == labels[i, y, x])
                        entropies.append(-sum(q * math.log(q) for q in p if q > 0))
                if not right:
                    continue
                accurate, certain = np.mean(right) >= 0.5, np.mean(entropies) <= threshold
                n_ac += accurate and certain
                n_au += accurate and not certain
                n_ic += not accurate and certain
                n_iu += not accurate and not certain
    total = n_ac + n_au + n_ic + n_iu
    return (
        (n_ac + n_iu) / total,
        n_ac / (n_ac + n_ic) if n_ac + n_ic else math.nan,
        n_iu / (n_ic + n_iu) if n_ic + n_iu else math.nan,
        total,
    )


@given(st.integers(0, 999), st.integers(1, 4), st.sampled_from([0.2, 0.4, 0.6]), st.booleans())
def test_equals_a_loop(seed: int, patch: int, threshold: float, ignore: bool) -> None:
    probs, labels = world(seed, 2, 7, 9)
    if ignore:
        labels[:, :4, :5] = -100
    expected = oracle(probs, labels, threshold, patch)
    assert tuple(pavpu(probs, labels, threshold=threshold, patch=patch)) == pytest.approx(expected, nan_ok=True)
    tensors = torch.from_numpy(probs), torch.from_numpy(labels)
    assert tuple(pavpu(*tensors, threshold=threshold, patch=patch)) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("threshold", ["auto", 0.3])
def test_patches_of_one_pixel_are_avu(threshold: float) -> None:
    probs, labels = world(0, 2, 5, 6, 4)  # volumes
    result = pavpu(probs, labels, threshold=threshold, patch=1)
    assert result.pavpu == pytest.approx(avu(probs, labels, threshold=threshold))
    assert result.p_accurate_given_certain == pytest.approx(
        p_accurate_given_certain(probs, labels, threshold=threshold)
    )
    assert result.p_uncertain_given_inaccurate == pytest.approx(
        p_uncertain_given_inaccurate(probs, labels, threshold=threshold)
    )
    assert result.patches == labels.size


def test_layouts_and_extremes() -> None:
    probs, labels = world(1, 2, 8, 8, classes=2)
    labels[:, :4] = 1 - labels[:, :4]  # wrong patches too
    expected = pavpu(probs, labels, patch=2)
    assert not any(map(math.isnan, expected))
    assert pavpu(np.moveaxis(probs, 1, -1), labels, patch=2, class_dim=-1) == expected
    assert pavpu(probs[:, 1:], labels, patch=2) == expected  # binary
    sure = np.zeros((1, 2, 4, 4))
    sure[:, 0] = 1
    right, wrong = pavpu(sure, np.zeros((1, 4, 4), int)), pavpu(sure, np.ones((1, 4, 4), int))
    assert (right.pavpu, right.p_accurate_given_certain) == (1, 1)
    assert math.isnan(right.p_uncertain_given_inaccurate)
    assert (wrong.pavpu, wrong.p_uncertain_given_inaccurate) == (0, 0)
    half = torch.from_numpy(probs).half()
    assert pavpu(half / half.sum(1, keepdim=True), labels).patches == 8
    many, numbers = world(2, 1, 4, 4, classes=1000)
    assert pavpu(many, numbers, patch=2).patches == 4


def test_errors() -> None:
    probs, labels = world(0, 1, 6, 6)
    for options, words in (
        ({"patch": 7}, "no patch of 7 pixels fits"),
        ({"patch": 0}, "patch must be"),
        ({"patch": 2.5}, "patch must be"),
        ({"accuracy": 2}, "accuracy is a share"),
        ({"threshold": math.nan}, "threshold is NaN"),
    ):
        with pytest.raises(InputError, match=words):
            pavpu(probs, labels, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="spatial dimensions"):
        pavpu(probs[:, :, 0, 0], labels[:, 0, 0])
    with pytest.raises(InputError, match="every label is ignored"):
        pavpu(probs, np.full_like(labels, -100))
    edge = np.full_like(labels, -100)
    edge[:, 5, 5] = 0
    with pytest.raises(InputError, match="no whole patch"):
        pavpu(probs, edge, patch=4)
    with pytest.raises(InputError):
        pavpu(probs * math.nan, labels)
    with pytest.raises(InputError):
        pavpu(probs[:0], labels[:0])
