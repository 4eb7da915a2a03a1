"""The negative ELBO against a float64 loop, and its misuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from avuc.core.errors import InputError
from avuc.losses import elbo_loss


def batch(n: int = 12, classes: int = 4, draws: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (draws, n, classes) if draws else (n, classes)
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (n,), generator=generator)


def loop(logits: Tensor, labels: Tensor, kl: float, num_train: int, kl_weight: float, ignore: int = -100) -> float:
    draws = logits.tolist() if logits.ndim == 3 else [logits.tolist()]
    losses = []
    for draw in draws:
        for row, label in zip(draw, labels.tolist(), strict=True):
            if label != ignore:
                top = max(row)
                losses.append(math.log(sum(math.exp(z - top) for z in row)) - (row[label] - top))
    return sum(losses) / max(len(losses), 1) + kl_weight * kl / num_train


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 3), st.floats(0, 100), st.floats(0, 2), st.integers(0, 99))
def test_elbo_equals_the_loop(n: int, classes: int, draws: int, kl: float, kl_weight: float, seed: int) -> None:
    logits, labels = batch(n, classes, draws, seed)
    labels[::3] = -100
    expected = loop(logits, labels, kl, 500, kl_weight)
    value = elbo_loss(logits, labels, kl, num_train=500, kl_weight=kl_weight, task="multiclass")
    assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("draws", [0, 3])
def test_derivatives(draws: int) -> None:
    logits, labels = batch(draws=draws)
    labels[:2] = -100
    kl = torch.tensor(7.0, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda z, k: elbo_loss(z, labels, k, num_train=50), (logits.requires_grad_(), kl))
    assert gradgradcheck(lambda z: elbo_loss(z, labels, 7.0, num_train=50), logits)


def test_ordinary_batches_have_the_bits_of_cross_entropy() -> None:
    for seed in range(50):
        logits, labels = batch(n=37, seed=seed)
        ours = elbo_loss(logits.float(), labels, 0.0, num_train=50)
        assert torch.equal(ours, F.cross_entropy(logits.float(), labels))


@pytest.mark.parametrize("rows", [0, 5])
def test_nothing_to_learn_from_is_the_kl_alone(rows: int) -> None:
    """The mean of no cross-entropies is NaN, which would reach every weight."""
    logits = torch.zeros(rows, 3, requires_grad=True)
    loss = elbo_loss(logits, torch.full((rows,), -100), 10.0, num_train=100)
    loss.backward()
    assert loss.item() == pytest.approx(0.1)
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_train": 0}, "num_train is the size of the training set and must be at least 1; found 0"),
        ({"num_train": 50.5}, "num_train is the size of the training set and must be a whole number"),
        ({"num_train": math.nan}, "whole number"),
        ({"num_train": True}, "whole number"),
        ({"num_train": 50, "kl_weight": -1.0}, "kl_weight must not be negative"),
        ({"num_train": 50, "kl_weight": math.nan}, "kl_weight must not be"),
        ({"num_train": 50, "kl": torch.ones(3)}, "kl must be one number, the sum over all weights; found"),
        ({"num_train": 50, "kl": math.nan}, "kl must be a finite number"),
        ({"num_train": 50, "kl": math.inf}, "kl must be a finite number"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        elbo_loss(*batch(), **{"kl": 1.0, **options})


@pytest.mark.parametrize("labels", [torch.eye(4)[[0, 1, 2]], torch.eye(4, dtype=torch.long)[[0, 1, 2]]])
def test_one_hot_labels_are_refused(labels: Tensor) -> None:
    with pytest.raises(InputError, match=r"one-hot or soft labels of shape \(3, 4\): use labels.argmax"):
        elbo_loss(torch.zeros(3, 4), labels, 0.0, num_train=10)


def test_the_number_of_batches_is_not_the_number_of_samples() -> None:
    logits, labels = batch(n=12)
    with pytest.warns(UserWarning, match="num_train=4 is less than the 12 rows of this batch"):
        elbo_loss(logits, labels, 10.0, num_train=4)


@pytest.mark.parametrize("kl", [-3.0, torch.tensor(-3.0)])
def test_a_negative_kl_is_reported(kl: float | Tensor) -> None:
    with pytest.warns(UserWarning, match="kl is -3, and a KL divergence is not negative"):
        elbo_loss(*batch(), kl, num_train=50)


def test_small_integers_are_labels() -> None:
    logits, labels = batch(n=6, classes=200)
    labels[0] = 156  # as uint8 the same number as the ignore_index −100
    expected = elbo_loss(logits, labels, 0.0, num_train=10)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if dtype == torch.uint8 or labels.max() < 2**15:
            assert elbo_loss(logits, labels.to(dtype), 0.0, num_train=10) == expected


@pytest.mark.parametrize(
    ("shape", "labels", "classes"),
    [((4,), [0, 1, 2, 1], 2), ((4,), [0, 1, -1, 1], 2), ((4, 3), [0, 1, 5, 1], 3), ((2, 4, 3), [0, 3, 1, 1], 3)],
)
def test_labels_that_are_no_classes(shape: tuple[int, ...], labels: list[int], classes: int) -> None:
    with pytest.raises(InputError, match=f"labels must be 0 … {classes - 1} "):
        elbo_loss(torch.zeros(shape), torch.tensor(labels), 0.0, num_train=10)
