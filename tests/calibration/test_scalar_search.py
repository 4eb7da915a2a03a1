"""The searches against SciPy and known minima."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from avuc.calibration.scalar_search import brent_minimum, newton_minimum
from avuc.calibration.scaled_logits import Derivatives

# convex functions with value, slope and curvature, and their minimisers as functions of a parameter m
CONVEX = {
    "square": (lambda x, m: ((x - m) ** 2, 2 * (x - m), 2.0)),
    "exp": (lambda x, m: (math.exp(x - m) - (x - m), math.exp(x - m) - 1, math.exp(x - m))),
    "log": (lambda x, m: (x / m - math.log(x / m), 1 / m - 1 / x, 1 / (x * x))),
    "cosh": (lambda x, m: (math.log(math.cosh(x - m)), math.tanh(x - m), 1 / math.cosh(x - m) ** 2)),
    "quartic": (lambda x, m: ((x - m) ** 4, 4 * (x - m) ** 3, 12 * (x - m) ** 2)),
}


@pytest.mark.parametrize("name", CONVEX)
@given(m=st.floats(0.06, 19), start=st.floats(0.05, 20))
def test_newton_finds_interior_minima(name, m, start):
    f = CONVEX[name]
    calls = []

    def at(x):
        calls.append(x)
        assert 0.05 <= x <= 20
        return Derivatives(*f(x, m))

    found = newton_minimum(at, start, 0.05, 20.0, 1e-6)
    # where curvature vanishes at the minimum, convergence is linear and the last step is what is left
    assert found.x == pytest.approx(m, rel=1e-5 if name != "quartic" else 1e-3)
    assert not found.at_bound
    assert len(calls) <= 60


@pytest.mark.parametrize("name", ["square", "exp", "log", "cosh"])
@given(m=st.sampled_from([0.01, 0.02, 30.0, 100.0]), start=st.floats(0.05, 20))
@example(m=0.01, start=0.05000000000000001)  # closer to the end than the tolerance
@example(m=30.0, start=19.999999999999996)
def test_newton_stops_at_the_end_of_the_range(name, m, start):
    f = CONVEX[name]
    found = newton_minimum(lambda x: Derivatives(*f(x, m)), start, 0.05, 20.0, 1e-6)
    assert found.at_bound
    assert found.x == (0.05 if m < 1 else 20.0)


def test_newton_on_a_flat_function_stays():
    found = newton_minimum(lambda x: Derivatives(1.0, 0.0, 0.0), 1.0, 0.05, 20.0, 1e-6)
    assert found == (1.0, 1.0, False)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x - 0.3) ** 2,
        lambda x: abs(x - 0.3),
        lambda x: math.cosh(x - 0.3) ** 0.1,
        lambda x: -math.exp(-((x - 0.3) ** 2)),
        lambda x: (x - 0.3) ** 4,
    ],
)
def test_brent_equals_scipy(f):
    calls = []

    def counted(x):
        calls.append(x)
        assert -1 < x < 2
        return f(x)

    found = brent_minimum(counted, -1.0, 0.1, 2.0, 1e-8)
    expected = minimize_scalar(f, bounds=(-1, 2), method="bounded", options={"xatol": 1e-9})
    assert found.value <= expected.fun + 1e-15
    assert len(calls) < 80


def test_brent_on_a_step():
    found = brent_minimum(lambda x: float(x < 0.7), 0.0, 0.2, 1.0, 1e-6)
    assert found.value == 0.0


def test_brent_runs_to_the_end_of_a_falling_function():
    assert brent_minimum(lambda x: x, 0.0, 0.5, 1.0, 1e-6).x < 5e-6
