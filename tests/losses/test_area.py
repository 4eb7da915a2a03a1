"""The exact area under AvU with rows that do not count: value and gradient of the rows that do."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from avuc.losses import auavuc_loss


def loop(logits: list[list[float]], labels: list[int], weights: list[float], monotone: bool) -> float:
    """−log ∫ AvU dt, row by row in Python: AvU is constant between neighbouring uncertainties."""
    rows = []
    for z, y, w in zip(logits, labels, weights, strict=True):
        if w > 0:
            e = [math.exp(x - max(z)) for x in z]
            p = [x / sum(e) for x in e]
            rows.append((-sum(x * math.log(x) for x in p if x > 0), max(p), z.index(max(z)) == y, w))
    us = sorted(u for u, *_ in rows)

    def avu(threshold: float) -> float:
        good = bad = 0.0
        for u, p, right, w in rows:
            certain = u <= threshold
            share = (p if certain else 1 - p) if monotone else (p if right else 1 - p)
            mass = w * share * (1 - math.tanh(u) if certain else math.tanh(u))
            if right == certain:
                good += mass
            else:
                bad += mass
        return good / (good + bad)

    if us[-1] == us[0]:
        return -math.log(avu(us[0]))
    return -math.log(sum(avu(a) * (b - a) for a, b in itertools.pairwise(us)) / (us[-1] - us[0]))


def slope(logits: Tensor, labels: Tensor, weights: Tensor, monotone: bool) -> Tensor:
    """Central differences of the loop."""
    out, h = torch.zeros_like(logits), 1e-6
    for i in range(logits.shape[0]):
        for k in range(logits.shape[1]):
            ends = []
            for sign in (1, -1):
                moved = logits.clone()
                moved[i, k] += sign * h
                ends.append(loop(moved.tolist(), labels.tolist(), weights.tolist(), monotone))
            out[i, k] = (ends[0] - ends[1]) / (2 * h)
    return out


@pytest.mark.parametrize("variant", ["paper", "monotone"])
@pytest.mark.parametrize("how", ["ignored", "weightless", "weighted"])
@given(n=st.integers(3, 7), seed=st.integers(0, 9999))
def test_rows_that_do_not_count(how: str, variant: str, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (n,), generator=generator)
    used = torch.rand(n, generator=generator) < 0.6
    used[:2] = True  # at least two rows count, so that there is an area
    u = torch.special.entr(logits.softmax(-1)).sum(-1)
    surest = torch.where(used, u, math.inf).argmin()
    labels[surest] = logits[surest].argmax()  # and the area is not 0
    weights = torch.where(used, 1.0 if how != "weighted" else 0.5 + torch.arange(n), 0.0).double()
    leaf = logits.clone().requires_grad_()
    marked, given_weights = (torch.where(used, labels, -100), None) if how == "ignored" else (labels, weights)
    loss = auavuc_loss(leaf, marked, points=None, variant=variant, weights=given_weights)
    (ours,) = torch.autograd.grad(loss, leaf)
    assert loss.item() == pytest.approx(loop(logits.tolist(), labels.tolist(), weights.tolist(), variant == "monotone"))
    expected = slope(logits, labels, weights, variant == "monotone")
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()) + 1e-7)
    assert not ours[~used].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("points", [None, 21])
@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0, 300.0, 1e3, 1e4])
def test_saturated_logits_have_finite_gradients(scale: float, points: int | None, dtype: torch.dtype) -> None:
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        logits = (scale * torch.randn(8, 5, generator=generator)).to(dtype)
        labels = torch.randint(0, 5, (8,), generator=generator)
        for weights in (None, (torch.arange(8) % 3 > 0).to(dtype)):
            leaf = logits.clone().requires_grad_()
            loss = auavuc_loss(leaf, labels, points=points, weights=weights)
            (found,) = torch.autograd.grad(loss, leaf)
            assert loss.isfinite()
            assert found.isfinite().all()
            assert found.abs().max() < 1e4


def test_all_rows_of_one_uncertainty() -> None:
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]], requires_grad=True)
    loss = auavuc_loss(logits, torch.tensor([0, 0, -100]), points=None)
    (found,) = torch.autograd.grad(loss, logits)
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert found.isfinite().all()
