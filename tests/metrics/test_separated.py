"""Intervals of detection for samples that the entropy separates: a bootstrap alone would say that they are exact."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from avuc.metrics import detection, detection_intervals
from avuc.metrics.detection_bootstrap import blockwise_detection_intervals
from avuc.metrics.sorted_samples import SortedPair

METRICS = ("auroc", "detection_accuracy", "aupr_in", "aupr_out", "fpr95")


def separated(inside: int, outside: int) -> tuple[np.ndarray, np.ndarray]:
    return np.linspace(0.1, 0.5, inside), np.linspace(0.6, 1.0, outside)


@pytest.mark.parametrize(("inside", "outside"), [(300, 100), (20, 500), (80, 72), (80, 71)])
def test_separated_samples_have_the_bounds_of_the_two_worst_cases(inside, outside):
    """A share of in-distribution rows above all others, or of OOD rows below, of which no row was seen."""
    found = detection_intervals(*separated(inside, outside), replicates=50)
    shares = [stats.binomtest(0, rows).proportion_ci().high for rows in (inside, outside)]
    for name in ("auroc", "detection_accuracy"):
        assert found[name] == pytest.approx((1, 1 - max(shares), 1))
    assert found["fpr95"] == pytest.approx((0, 0, 1 if shares[1] > 0.05 else shares[0]))
    for name, (own, other), ratio in (
        ("aupr_out", (shares[1], shares[0]), inside / outside),
        ("aupr_in", (shares[0], shares[1]), outside / inside),
    ):
        lost = integrate.quad(lambda t, hidden=other * ratio: hidden / (t + hidden), 0, 1)[0]
        assert found[name] == pytest.approx((1, 1 - max(own, lost), 1))
    assert (found["fpr95"].high == 1) == (outside < 72)
    assert 0 < found["wasserstein"].low < found["wasserstein"].high  # distances have noise of their own


def test_every_way_to_an_interval_has_the_rule():
    inside, outside = separated(200, 150)
    rows = detection_intervals(inside, outside, replicates=50)
    large = blockwise_detection_intervals(SortedPair(inside.copy(), outside.copy()), replicates=50)
    assert [large[name] for name in METRICS] == [pytest.approx(rows[name], abs=1e-3) for name in METRICS]
    pairs = detection_intervals(inside, outside, replicates=50, in_groups=np.arange(200) // 2)
    assert pairs["auroc"].low == pytest.approx(0.025 ** (1 / 100))
    one = detection_intervals(inside, outside, replicates=50, out_groups=np.zeros(150))
    assert np.isnan(one["auroc"].low)
    wide = detection_intervals(inside, outside, replicates=50, level=0.99)
    assert wide["auroc"].low == pytest.approx(0.005 ** (1 / 150))


def test_the_reverse_order():
    outside, inside = separated(200, 150)
    found = detection_intervals(inside, outside, replicates=50)
    values = detection(inside, outside)
    share = 1 - 0.025 ** (1 / 150)
    assert found["auroc"] == pytest.approx((0, 0, share))
    assert found["fpr95"] == pytest.approx((1, 1 - share, 1))
    for name in ("detection_accuracy", "aupr_in", "aupr_out"):
        assert found[name].low == pytest.approx(values[name])
        assert found[name].high == pytest.approx(values[name] + share, abs=0.005)  # ties in resamples change AUPR


def test_fpr95_of_0_with_some_mistakes():
    inside, outside = separated(100, 1000)
    outside[:10] = 0.05
    found = detection_intervals(inside, outside, replicates=50)
    assert 0.98 < found["auroc"].low < found["auroc"].value < 1
    assert found["fpr95"] == pytest.approx((0, 0, 1 - 0.025**0.01))


def samples(kind: str, rows: tuple[int, int], share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two normal samples far apart, but for a share of rows."""
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(0, 1, rows[0]), rng.normal(30, 1, rows[1])
    inside += np.where(rng.random(rows[0]) < share, {"above": 60, "overlap": 15}.get(kind, 0), 0)
    outside -= np.where(rng.random(rows[1]) < share, {"below": 60, "overlap": 15}.get(kind, 0), 0)
    return inside, outside


@pytest.mark.parametrize("rows", [(100, 100), (400, 25)])
@pytest.mark.parametrize(("kind", "side"), [("above", 0), ("below", 1), ("overlap", None)])
def test_intervals_of_separated_samples_contain_the_truth(kind, side, rows):
    """Each sample has 1.5 such rows on average, and often none of them."""
    share = 1.5 / (min(rows) if side is None else rows[side])
    many = 100_000 // max(rows)
    truth = detection(*samples(kind, (rows[0] * many, rows[1] * many), share, 0))
    apart, missed = 0, dict.fromkeys(METRICS, 0)
    for seed in range(1, 81):
        found = detection_intervals(*samples(kind, rows, share, seed), replicates=20)
        if found["auroc"].value == 1:
            apart += 1
            for name in METRICS:
                missed[name] += not found[name].low <= truth[name] <= found[name].high
    assert apart > 10  # each of them would miss the AUROC without the rule
    assert max(missed.values()) == 0, missed
