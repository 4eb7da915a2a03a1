"""Intervals of rows that are not independent: images and groups are resampled as a whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from avuc import metrics
from avuc.core.errors import InputError
from avuc.metrics import METRICS, bootstrap, intervals, paired_bootstrap, paired_intervals
from avuc.metrics import dependent_rows as module
from avuc.metrics.more import MORE_METRICS, more_intervals
from avuc.metrics.resampling.absolute_error import grouped_spread
from avuc.metrics.resampling.group_sums import GroupSums
from avuc.metrics.resampling.percentile import few_groups_factor
from avuc.metrics.resampling.rows import RowResampler, resampled_errors
from avuc.metrics.statistics import prediction_statistics
from avuc.predictions import MultiLabelPredictions, Predictions


def images(rng: np.random.Generator, count: int, pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, pixels) of class 1 and labels; the pixels of an image share most of how hard they are."""
    ease = rng.normal(1.5, 1.5, (count, 1)) + 0.3 * rng.normal(size=(count, pixels))
    right = rng.random((count, pixels)) < 1 / (1 + np.exp(-ease))
    predicted = rng.integers(0, 2, (count, pixels))
    return np.where(predicted == 1, 0.8, 0.2), np.where(right, predicted, 1 - predicted)


def test_copies_of_a_row_are_one_group() -> None:
    """Ten copies of each row are no evidence: the interval is that of the rows, wider by the factor for few groups."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4), 60)
    labels = (probs.cumsum(1) > rng.random((60, 1))).argmax(1)
    once, order = Predictions(probs, labels), rng.permutation(np.repeat(np.arange(60), 10))
    many = Predictions(probs[order], labels[order])
    names = [
        name for name in METRICS if name not in ("mce", "debiased_ece", "aurc")
    ]  # AURC of ties depends on their number
    rows, grouped = intervals(once, names, replicates=80), intervals(many, names, replicates=80, groups=order)
    factor = few_groups_factor(60)
    for name in names:
        value, low, high = rows[name]
        assert grouped[name].value == pytest.approx(value)
        for found, end in ((grouped[name].low, low), (grouped[name].high, high)):
            wanted = value + factor * (end - value)
            assert found == pytest.approx(wanted, abs=1e-9) or found in (0.0, 1.0) or end in (0.0, 1.0), name
    a, b = (
        more_intervals(prediction_statistics(p.probs, p.labels), replicates=80, groups=g)
        for p, g in ((once, np.arange(60)), (many, order))
    )
    for name in MORE_METRICS:
        assert b[name] == pytest.approx(a[name], abs=1e-9), name


def test_weights_equal_whole_groups_taken_row_by_row() -> None:
    rng = np.random.default_rng(1)
    probs, labels, groups = rng.dirichlet(np.ones(3), 70), rng.integers(0, 3, 70), rng.integers(0, 9, 70).astype(str)
    for metric in (metrics.accuracy, metrics.nll, metrics.aurc, metrics.avu):
        fast = bootstrap(metric, probs, labels, replicates=40, seed=5, groups=groups)
        slow = bootstrap(lambda p, y, m=metric: m(p, y), probs, labels, replicates=40, seed=5, groups=groups)
        assert fast == pytest.approx(slow, abs=1e-12)
        other = probs[:, ::-1].copy()
        assert paired_bootstrap(metric, probs, other, labels, replicates=40, groups=groups) == pytest.approx(
            paired_intervals(Predictions(probs, labels), Predictions(other, labels), replicates=40, groups=groups)[
                metric.__name__
            ]
        )


def test_the_interval_covers_the_truth_and_that_of_pixels_does_not() -> None:
    rng, names, truth = np.random.default_rng(2), ["accuracy", "brier", "ece"], {}
    p, y = images(np.random.default_rng(3), 20_000, 4)
    truth = intervals(Predictions(p.reshape(-1), y.reshape(-1)), names, replicates=1)
    for count, least in ((25, 0.9), (6, 0.88)):
        inside = {"images": np.zeros(3), "pixels": np.zeros(3)}
        for _ in range(120):
            p, y = images(rng, count, 30)
            both = {"images": Predictions(p[:, None], y), "pixels": Predictions(p.reshape(-1), y.reshape(-1))}
            for kind, found in both.items():
                ends = intervals(found, names, replicates=100)
                inside[kind] += [ends[name].low <= truth[name].value <= ends[name].high for name in names]
        assert (inside["images"] / 120 >= least).all(), inside
        assert (inside["pixels"][:2] / 120 < 0.7).all(), inside


def test_layouts_know_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    p, y = images(rng, 20, 15)
    y[:3, 4:] = -100
    y[5] = -100  # an image without labels
    dense, keep = Predictions(p[:, None], y), y >= 0
    flat, numbers = Predictions(p[keep], y[keep]), np.nonzero(keep)[0]
    found = intervals(dense, replicates=60)
    assert found == intervals(flat, replicates=60, groups=numbers)
    assert found["accuracy"] == bootstrap(metrics.accuracy, p[:, None], y, replicates=60)
    several = MultiLabelPredictions(p, np.where(y < 0, -100, y))
    assert intervals(several, ["brier"], replicates=60)["brier"] == pytest.approx(found["brier"])
    one = intervals(dense, ["nll"], groups=np.zeros(20), replicates=60)["nll"]
    assert math.isnan(one.low)  # one group tells nothing about others
    with pytest.raises(InputError, match="groups must have one value for each"):
        intervals(dense, groups=[1, 2])
    # a sample of many pixels: the same values, and about the same ends
    monkeypatch.setattr(module, "MOST_ROWS", 150)
    some = intervals(dense, replicates=200)
    whole = {name: each.high - each.low for name, each in intervals(flat, replicates=200, groups=numbers).items()}
    assert {name: each.value for name, each in some.items()} == {name: each.value for name, each in found.items()}
    for name in ("accuracy", "brier"):
        assert 0.7 < (some[name].high - some[name].low) / whole[name] < 1.6


def test_sums_of_groups_give_the_errors_of_all_rows() -> None:
    rng = np.random.default_rng(6)
    probs, labels, groups = rng.dirichlet(np.ones(3), 90), rng.integers(0, 3, 90), rng.permutation(np.arange(90) % 11)
    statistics = prediction_statistics(probs, labels, bins=10)
    sums = GroupSums(11, 10)
    for part in (slice(0, 40), slice(40, 90)):
        sums.add(prediction_statistics(probs[part], labels[part]), groups[part])
    found = sums.errors(70, seed=3)
    sampler = RowResampler(probs, statistics, list(found), threshold="auto", bins=10)
    (expected,) = resampled_errors([sampler], 70, 3, groups=groups)
    for name, errors in found.items():
        np.testing.assert_allclose(errors, expected[name], atol=1e-12, err_msg=name)


def test_spread_of_the_bins_equals_plain_loops() -> None:
    rng = np.random.default_rng(5)
    residual, place, groups = rng.normal(size=50), rng.integers(0, 4, 50), rng.integers(0, 6, 50)
    place[place == 2] = 3
    place[7], groups[7] = 2, 0  # a bin with one group
    found = grouped_spread(residual, place, groups, 5)
    for b in (0, 1, 3):
        inside = [i for i in range(50) if place[i] == b]
        mean = sum(residual[i] for i in inside) / len(inside)
        sums = [sum(residual[i] - mean for i in inside if groups[i] == g) for g in {int(groups[i]) for i in inside}]
        variance = sum(s * s for s in sums) * len(sums) / (len(sums) - 1) / len(inside) ** 2
        assert found[b] == pytest.approx(math.sqrt(variance))
    assert (found[2], found[4]) == (0.5, 0.5)
    assert torch.isfinite(torch.from_numpy(found)).all()


def test_debiased_error_of_a_sample_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The debiased error of a calibrated model is 0. A sample with another estimate moved the interval away from it."""
    monkeypatch.setattr(module, "MOST_ROWS", 300)
    rng, inside = np.random.default_rng(0), 0
    for _ in range(60):
        p = np.repeat(rng.beta(2, 2, 500), 3)
        y = (np.repeat(rng.random(500), 3) < p).astype(int)
        both = Predictions(np.stack([1 - p, p], 1), y)
        found = intervals(both, ["debiased_ece"], replicates=100, groups=np.repeat(np.arange(500), 3))["debiased_ece"]
        inside += found.low == 0
    assert inside >= 54
