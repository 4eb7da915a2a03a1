from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.metrics import (
    StreamingMetrics,
    accuracy,
    auto_threshold,
    avu,
    avu_auc,
    avu_curves,
    p_accurate_given_certain,
    p_uncertain_given_inaccurate,
)

World = Callable[..., tuple[np.ndarray, np.ndarray]]


def rows_of(probs: np.ndarray, labels: np.ndarray) -> list[tuple[bool, float]]:
    """(right, entropy) of each row, by loops."""
    return [
        (max(range(len(row)), key=row.__getitem__) == y, -sum(p * math.log(p) for p in row if p > 0))
        for row, y in zip(probs.tolist(), labels.tolist(), strict=True)
    ]


def slow_cells(rows: list[tuple[bool, float]], threshold: float) -> tuple[int, int, int, int]:
    ac = sum(right and u <= threshold for right, u in rows)
    au = sum(right and u > threshold for right, u in rows)
    ic = sum(not right and u <= threshold for right, u in rows)
    iu = sum(not right and u > threshold for right, u in rows)
    return ac, au, ic, iu


@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 99), st.floats(-0.1, 2))
def test_fixed_threshold_against_loops(n: int, c: int, seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    probs, labels = rng.dirichlet(np.full(c, 0.5), n), rng.integers(0, c, n)
    ac, _, ic, iu = slow_cells(rows_of(probs, labels), threshold)
    assert avu(probs, labels, threshold=threshold) == (ac + iu) / n
    certain = p_accurate_given_certain(probs, labels, threshold=threshold)
    assert certain == ac / (ac + ic) if ac + ic else math.isnan(certain)
    uncertain = p_uncertain_given_inaccurate(probs, labels, threshold=threshold)
    assert uncertain == iu / (ic + iu) if ic + iu else math.isnan(uncertain)


def test_auto_threshold_and_area_against_loops(world: World) -> None:
    probs, labels = world(300, 5, sharpen=1.5)
    rows = rows_of(probs, labels)
    means = [np.mean([u for right, u in rows if right is kind]) for kind in (True, False)]
    assert auto_threshold(probs, labels) == pytest.approx(np.mean(means), rel=1e-12)
    ac, _, _, iu = slow_cells(rows, float(np.mean(means)))
    assert avu(probs, labels) == (ac + iu) / 300
    low, high = min(u for _, u in rows), max(u for _, u in rows)
    points = []
    for i in range(21):
        # the largest entropy is certain at t = 1 whatever the rounding of the loop's own sums
        at = math.inf if i == 20 else low * (1 + 1e-12) + i / 20 * (high - low)
        cells = slow_cells(rows, at)
        points.append((cells[0] + cells[3]) / 300)
    area = sum(points[1:-1], (points[0] + points[-1]) / 2) * 0.05
    assert avu_auc(probs, labels) == pytest.approx(area, abs=1e-12)


def test_only_right_or_only_wrong_rows_use_the_overall_mean() -> None:
    probs = np.array([[0.9, 0.1], [0.6, 0.4]])
    mean = np.mean([u for _, u in rows_of(probs, np.array([0, 0]))])
    assert auto_threshold(probs, [0, 0]) == pytest.approx(mean)
    assert auto_threshold(probs, [1, 1]) == pytest.approx(mean)


@pytest.mark.parametrize("n", [1, 3, 7, 10, 49, 1000])
@pytest.mark.parametrize("c", [3, 10])
def test_equal_entropies_are_certain(n: int, c: int) -> None:
    """The mean of equal numbers can round below them; they must still be certain, at every point of the curve."""
    row = np.random.default_rng(c).dirichlet(np.ones(c))
    labels = np.where(np.arange(n) % 3 == 0, row.argmin(), row.argmax())
    probs = np.tile(row, (n, 1))
    right = (labels == row.argmax()).mean()
    assert avu(probs, labels) == pytest.approx(right)
    assert avu_auc(probs, labels) == pytest.approx(right)
    assert p_accurate_given_certain(probs, labels) == pytest.approx(right)


def test_curves_are_the_metrics_at_their_thresholds(awkward: World) -> None:
    probs, labels = awkward(200, 5)
    curves = avu_curves(probs, labels, points=7)
    assert curves.t.tolist() == pytest.approx(np.linspace(0, 1, 7).tolist())
    for i, threshold in enumerate(curves.threshold):
        at = {"threshold": float(threshold)}
        assert curves.avu[i] == avu(probs, labels, **at)
        assert curves.p_accurate_given_certain[i] == pytest.approx(p_accurate_given_certain(probs, labels, **at))
        assert curves.p_uncertain_given_inaccurate[i] == p_uncertain_given_inaccurate(probs, labels, **at)
    assert curves.certain[-1] == 1
    assert (np.diff(curves.certain) >= 0).all()


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="NaN"):
        avu([[0.5, 0.5]], [0], threshold=math.nan)
    with pytest.raises(InputError, match="at least 2"):
        avu_curves([[0.5, 0.5]], [0], points=1)


def test_avu_auc_does_not_depend_on_the_order_of_classes():
    """Rows with one distribution in several orders have one entropy, up to the last digit: all are certain."""
    rng = np.random.default_rng(0)
    row = rng.dirichlet(np.ones(12))
    probs, labels = np.stack([rng.permutation(row) for _ in range(40)]), rng.integers(0, 12, 40)
    assert avu_auc(probs, labels) == pytest.approx(accuracy(probs, labels), abs=1e-12)
    stream = StreamingMetrics(num_classes=12)
    stream.update(probs, labels)
    assert stream.compute()["avu_auc"] == pytest.approx(accuracy(probs, labels), abs=1e-12)
