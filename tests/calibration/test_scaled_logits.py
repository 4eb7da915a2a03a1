"""One pass against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import avuc.calibration.scaled_logits as module
from avuc.calibration.scaled_logits import MOST_NLL, ScaledLogits


def slow_columns(logits, labels, temperature):
    """One row at a time, in float64, straight from the definitions."""
    draws, rows, classes = logits.shape
    columns = []
    for i in range(rows):
        mean = [0.0] * classes
        for s in range(draws):
            z = [float(v) / temperature for v in logits[s, i]]
            top = max(z)
            total = sum(math.exp(v - top) for v in z)
            for k in range(classes):
                mean[k] += math.exp(z[k] - top) / total / draws
        u = -sum(p * math.log(p) for p in mean if p > 0)
        columns.append((max(mean), u, mean.index(max(mean)) == labels[i], -math.log(max(mean[labels[i]], 1e-12))))
    return [np.array(column) for column in zip(*columns, strict=True)]


@pytest.mark.parametrize("temperature", [0.02, 0.3, 1.0, 7.0])
@pytest.mark.parametrize("draws", [1, 3])
def test_columns_equal_loops(draws, temperature):
    rng = np.random.default_rng(draws)
    logits, labels = rng.normal(size=(draws, 40, 6)) * 3, rng.integers(0, 6, 40)
    columns = ScaledLogits(torch.tensor(logits), torch.tensor(labels)).at(temperature)
    for fast, slow in zip(columns[:4], slow_columns(logits, labels, temperature), strict=True):
        np.testing.assert_allclose(fast.numpy(), slow, rtol=1e-12, atol=1e-14)


def test_derivatives_equal_autograd():
    rng = np.random.default_rng(0)
    logits, labels = torch.tensor(rng.normal(size=(50, 7)) * 3), torch.tensor(rng.integers(0, 7, 50))
    s = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits * s, labels)
    (slope,) = torch.autograd.grad(loss, s, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, s)
    found = ScaledLogits(logits.unsqueeze(0), labels).derivatives(0.7)
    assert found == pytest.approx((loss.item(), slope.item(), curvature.item()), rel=1e-11)


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_and_threads_do_not_matter(monkeypatch, threads):
    rng = np.random.default_rng(0)
    logits, labels = torch.tensor(rng.normal(size=(1, 101, 4))), torch.tensor(rng.integers(0, 4, 101))
    whole = ScaledLogits(logits, labels).derivatives(1.3)
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 24)
    monkeypatch.setattr(module, "ONE_THREAD_ELEMENTS", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        parts = ScaledLogits(logits, labels)
        assert parts.derivatives(1.3) == pytest.approx(whole, rel=1e-13)
        assert parts.nll(1 / 1.3) == pytest.approx(whole.value, rel=1e-13)
    finally:
        torch.set_num_threads(before)
    assert parts.passes == 2


def test_float32_pass_is_close_to_float64(monkeypatch):
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(1, 400, 1000)) * 3, dtype=torch.float32)
    labels = torch.tensor(rng.integers(0, 1000, 400))
    single = ScaledLogits(logits, labels).derivatives(0.8)  # 400,000 logits: more than EXACT_ELEMENTS
    double = ScaledLogits(logits.double(), labels).derivatives(0.8)
    assert single != double
    assert single == pytest.approx(double, rel=1e-5)
    assert single.value == pytest.approx(double.value, abs=1e-6)


def test_a_class_ruled_out_by_minus_infinity():
    logits = torch.tensor([[[1.0, 2.0, -math.inf], [0.5, 0.0, -math.inf]]])
    labels = torch.tensor([0, 1])
    two = ScaledLogits(logits[..., :2], labels)
    three = ScaledLogits(logits, labels)
    assert three.derivatives(0.05) == pytest.approx(two.derivatives(0.05), rel=1e-12)
    for a, b in zip(three.at(20.0), two.at(20.0), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("draws", [1, 2])
def test_an_impossible_label_counts_as_the_floor(draws):
    logits = torch.tensor([[1.0, -math.inf], [1.0, 0.0]]).expand(draws, 2, 2)
    scaled = ScaledLogits(logits, torch.tensor([1, 0]))
    assert scaled.impossible.tolist() == [True, False]
    expected = (MOST_NLL + math.log1p(math.exp(-1))) / 2
    assert scaled.nll(1.0) == pytest.approx(expected, rel=1e-12)
    assert float(scaled.at(1.0).nll.mean()) == pytest.approx(expected, rel=1e-12)
    if draws == 1:
        assert scaled.derivatives(1.0).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("draws", [1, 3])
def test_rows_below_the_floor_are_found_and_counted_as_the_floor(draws):
    """At T = 0.2 a gap of 10 is 50 nats; the likelihood's floor is 27.6."""
    rng = np.random.default_rng(draws)
    logits, labels = rng.normal(size=(draws, 60, 5)) * 3, rng.integers(0, 5, 60)
    scaled = ScaledLogits(torch.tensor(logits), torch.tensor(labels))
    for temperature in (0.05, 0.2, 1.0, 20.0):
        losses = slow_columns(logits, labels, temperature)[3]
        assert scaled.floored(temperature).tolist() == (losses >= MOST_NLL).tolist()
        assert scaled.nll(temperature) == pytest.approx(losses.mean(), rel=1e-12)
        if draws == 1:
            assert scaled.derivatives(1 / temperature).value == pytest.approx(losses.mean(), rel=1e-12)
    assert 0 < int(scaled.floored(0.05).sum()) < 60
    assert not scaled.floored(1.0).any()


def test_sample_is_evenly_spaced_and_whole_where_small():
    logits, labels = torch.arange(40.0).reshape(1, 20, 2), torch.zeros(20, dtype=torch.long)
    scaled = ScaledLogits(logits, labels)
    assert scaled.subsample(40) is scaled
    assert scaled.subsample(10).logits[0, :, 0].tolist() == [0.0, 8.0, 16.0, 24.0, 32.0]


@pytest.mark.gpu
def test_cuda_equals_cpu():
    rng = np.random.default_rng(0)
    for draws in (1, 3):
        logits, labels = torch.tensor(rng.normal(size=(draws, 60, 8))), torch.tensor(rng.integers(0, 8, 60))
        weight = torch.tensor(rng.random(60) + 0.1)
        here, there = ScaledLogits(logits, labels, weight), ScaledLogits(logits.cuda(), labels.cuda(), weight.cuda())
        for a, b in zip(here.at(1.4), there.at(1.4), strict=True):
            assert a is not None
            assert b is not None
            torch.testing.assert_close(a, b.cpu())
