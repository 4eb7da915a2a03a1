"""Running sums equal sums over all samples; the Monte Carlo error follows its definition and the true error."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.prediction.running_sums import SampleSums, monte_carlo_error
from avuc.predictions import Predictions
from avuc.uncertainty import expected_entropy, mutual_information


def draws(count: int, rows: int, classes: int, seed: int, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(count, rows, classes, generator=generator)).softmax(-1)


def error_by_loops(probs: np.ndarray, num_draws: int | None) -> float:
    count, rows, classes = probs.shape
    total = 0.0
    for row in range(rows):
        worst = 0.0
        for c in range(classes):
            mean = sum(probs[s, row, c] for s in range(count)) / count
            variance = sum((probs[s, row, c] - mean) ** 2 for s in range(count)) / (count - 1)
            worst = max(worst, variance / count)
        total += worst
    correction = 1.0 if num_draws is None else 1.0 - count / num_draws
    return math.sqrt(total / rows * correction)


@given(
    count=st.integers(2, 6),
    rows=st.integers(1, 5),
    classes=st.integers(1, 4),
    seed=st.integers(0, 99),
    extra=st.none() | st.integers(1, 5),
)
def test_error_is_its_definition(count: int, rows: int, classes: int, seed: int, extra: int | None) -> None:
    probs = draws(count, rows, classes, seed).double()
    num_draws = None if extra is None else count + extra
    found = monte_carlo_error(probs.sum(0), probs.square().sum(0), count, num_draws)
    assert found == pytest.approx(error_by_loops(probs.numpy(), num_draws), abs=1e-9)


def test_error_of_one_draw_is_unknown_and_of_all_members_zero() -> None:
    probs = draws(3, 2, 2, 0).double()
    assert monte_carlo_error(probs[0], probs[0].square(), 1) is None
    assert monte_carlo_error(probs[0], probs[0].square(), 1, num_samples=1) == 0.0
    assert monte_carlo_error(probs.sum(0), probs.square().sum(0), 3, num_samples=3) == 0.0


def test_error_predicts_the_distance_from_infinitely_many_draws() -> None:
    truth = draws(60_000, 30, 3, 0, scale=1.0).double().mean(0)
    ratios = []
    for seed in range(1, 41):
        probs = draws(20, 30, 3, seed, scale=1.0).double()
        claimed = monte_carlo_error(probs.sum(0), probs.square().sum(0), 20)
        variance = probs.var(0)
        worst = variance.argmax(1, keepdim=True)
        actual = (probs.mean(0) - truth).gather(1, worst).square().mean().sqrt()
        ratios.append(float(actual) / claimed)
    # RMS of 30 × 40 normal errors: 1 within a few per cent, a little below as the largest variance is picked
    assert 0.85 < np.sqrt(np.mean(np.square(ratios))) < 1.05


@given(seed=st.integers(0, 50), split=st.integers(1, 6), count=st.integers(1, 5))
def test_sums_equal_all_draws_kept(seed: int, split: int, count: int) -> None:
    probs = draws(count, 7, 3, seed)
    sums = SampleSums(7, torch.device("cpu"))
    for draw in probs:
        for start in range(0, 7, split):
            rows = slice(start, min(start + split, 7))
            assert not bool(sums.add(rows, draw[rows]))
    found = sums.predictions(torch.zeros(7, dtype=torch.int64), count, None)
    torch.testing.assert_close(found.probs, probs.mean(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.expected_entropy, expected_entropy(probs), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.mutual_information, mutual_information(probs), rtol=0, atol=1e-6)
    assert isinstance(found, Predictions)
    assert found.samples == count


@given(seed=st.integers(0, 50), chunk=st.integers(1, 9), split=st.integers(1, 7), double=st.booleans())
def test_chunks_of_draws_equal_single_draws(seed: int, chunk: int, split: int, double: bool) -> None:
    probs = draws(9, 7, 3, seed).to(torch.float64 if double else torch.float32)
    given_probs = probs.clone()
    single, chunked = (SampleSums(7, torch.device("cpu")) for _ in range(2))
    for draw in probs:
        single.add(slice(0, 7), draw)
    for some in probs.split(chunk):
        for start in range(0, 7, split):
            rows = slice(start, min(start + split, 7))
            assert chunked.add(rows, some[:, rows]).shape == (len(some),)
    for name in ("probs", "squares", "entropy"):
        torch.testing.assert_close(getattr(chunked, name), getattr(single, name), rtol=0, atol=1e-12, msg=name)
    torch.testing.assert_close(single.squares, probs.double().square().sum(0), rtol=0, atol=1e-12)
    assert torch.equal(probs, given_probs)


def test_sums_say_which_draws_hold_nan() -> None:
    probs = draws(4, 5, 3, 0)
    probs[2, 4, 1] = float("nan")
    sums = SampleSums(5, torch.device("cpu"))
    assert sums.add(slice(0, 4), probs[:, :4]).tolist() == [False] * 4
    assert sums.add(slice(4, 5), probs[:, 4:]).tolist() == [False, False, True, False]


def test_sums_say_nan() -> None:
    sums = SampleSums(2, torch.device("cpu"))
    assert bool(sums.add(slice(0, 1), torch.tensor([[float("nan"), 0.5]])))


def test_many_equal_draws_leave_no_rounding() -> None:
    # 0.1 is not a binary fraction: in float32 the sum of 4,096 of them is off by more than 1e-4
    probs = torch.tensor([[0.1, 0.9]])
    sums = SampleSums(1, torch.device("cpu"))
    for _ in range(4096):
        sums.add(slice(0, 1), probs)
    assert torch.equal(sums.predictions(torch.tensor([0]), 4096, None).probs, probs)
    assert monte_carlo_error(sums.probs, sums.squares, 4096) < 1e-7
