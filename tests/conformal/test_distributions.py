"""Distributions against SciPy and plain sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from avuc.conformal.distributions import (
    beta_binomial,
    beta_cdf,
    beta_quantile,
    binomial_cdf,
    central_interval,
    clopper_pearson,
    total_of,
)


@pytest.mark.parametrize(
    ("x", "a", "b"),
    [(0.5, 2, 3), (0.9, 900, 101), (0.01, 0.5, 0.5), (0.999, 5, 1), (0.91, 1e5, 1e4), (0.9001, 9e6, 1e6), (0.3, 1, 1)],
)
def test_beta_is_that_of_scipy(x: float, a: float, b: float) -> None:
    assert beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), abs=1e-9)
    for share in (0.025, 0.5, 0.975):
        assert beta_quantile(share, a, b) == pytest.approx(stats.beta.ppf(share, a, b), rel=1e-9)


def test_beta_at_the_ends() -> None:
    assert beta_cdf(0, 2, 3) == 0 == beta_cdf(-1, 2, 3)
    assert beta_cdf(1, 2, 3) == 1 == beta_cdf(2, 2, 3)


@given(st.integers(1, 40), st.data())
def test_binomial_is_the_sum_of_its_terms(rows: int, data: st.DataObject) -> None:
    events, share = data.draw(st.integers(-1, rows)), data.draw(st.floats(0.001, 0.999))
    terms = sum(math.comb(rows, k) * share**k * (1 - share) ** (rows - k) for k in range(events + 1))
    assert binomial_cdf(events, rows, share) == pytest.approx(terms, abs=1e-12)


@pytest.mark.parametrize(("events", "rows"), [(0, 10), (10, 10), (3, 17), (12, 5000), (1, 1)])
def test_clopper_pearson_is_that_of_scipy(events: int, rows: int) -> None:
    found = stats.binomtest(events, rows).proportion_ci(0.95, method="exact")
    assert clopper_pearson(events, rows) == pytest.approx((found.low, found.high), abs=1e-10)


def test_clopper_pearson_without_rows_is_everything() -> None:
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("rows", "a", "b"), [(1, 1, 1), (500, 90, 11), (20, 5, 1), (3000, 9001, 1000)])
def test_beta_binomial_is_that_of_scipy(rows: int, a: int, b: int) -> None:
    expected = stats.betabinom(rows, a, b)
    mass = beta_binomial(rows, a, b)
    assert mass == pytest.approx(expected.pmf(np.arange(rows + 1)), abs=1e-11)
    assert central_interval(mass, 0.95) == tuple(expected.ppf([0.025, 0.975]).astype(int))


def test_a_share_of_one_covers_every_row() -> None:
    assert beta_binomial(3, 4, 0).tolist() == [0, 0, 0, 1]


def test_a_sum_of_counts_is_the_convolution() -> None:
    parts = [beta_binomial(n, a, b) for n, a, b in ((7, 3, 2), (4, 9, 1), (1, 1, 1), (12, 5, 0))]
    slow = np.ones(1)
    for part in parts:
        slow = np.convolve(slow, part)
    assert total_of(parts) == pytest.approx(slow, abs=1e-14)


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 30), st.floats(0.5, 0.999))
def test_the_interval_has_its_probability_and_no_end_can_move_in(rows: int, a: int, b: int, level: float) -> None:
    mass = beta_binomial(rows, a, b)
    low, high = central_interval(mass, level)
    tail = (1 - level) / 2
    assert mass[low : high + 1].sum() >= level - 1e-9
    assert mass[:low].sum() <= tail + 1e-9
    assert mass[high + 1 :].sum() <= tail + 1e-9
    assert low == high or (mass[: low + 1].sum() > tail - 1e-9 and mass[high:].sum() > tail - 1e-9)
