"""Resampling by weights equals resampling by rows; intervals cover the truth they claim to cover."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from avuc import evaluation, metrics
from avuc.core.errors import InputError
from avuc.metrics import (
    METRICS,
    Interval,
    bootstrap,
    detection_intervals,
    evaluate,
    intervals,
    paired_bootstrap,
    paired_intervals,
)
from avuc.metrics.intervals import Bootstrap, intervals_of
from avuc.metrics.resampling.percentile import UNBOUNDED
from avuc.metrics.resampling.rows import RowResampler, resampled_rows
from avuc.metrics.statistics import prediction_statistics
from avuc.predictions import Predictions

World = Callable[..., tuple[np.ndarray, np.ndarray]]


def predictions(probs: np.ndarray, labels: np.ndarray) -> Predictions:
    return Predictions(torch.from_numpy(probs), torch.from_numpy(labels))


@pytest.mark.parametrize("threshold", ["auto", 0.5])
def test_weights_equal_rows(threshold: float, awkward: World) -> None:
    probs, labels = awkward(70, 5)
    sampler = RowResampler(probs, prediction_statistics(probs, labels), METRICS, threshold=threshold, bins=10)
    index = list(resampled_rows(70, 6, seed=3))
    weights = np.stack([np.bincount(rows, minlength=70) for rows in index]).astype(float)
    fast, _ = sampler.evaluate(weights)
    for b, rows in enumerate(index):
        slow = evaluate(predictions(probs[rows], labels[rows]), threshold=threshold, bins=10)
        for name, value in slow.items():
            got = max(fast[name][b], 0) ** 0.5 if name == "debiased_ece" else fast[name][b]
            assert got == pytest.approx(value, abs=1e-9, nan_ok=True), name


def test_known_and_unknown_metrics_see_the_same_resamples(world: World) -> None:
    probs, labels = world(90, 4)
    for metric in (metrics.accuracy, metrics.nll, metrics.aurc, metrics.avu):
        fast = bootstrap(metric, probs, labels, replicates=40, seed=5)
        slow = bootstrap(lambda p, y, metric=metric: metric(p, y), probs, labels, replicates=40, seed=5)
        assert fast == pytest.approx(slow, abs=1e-12)
        assert fast == pytest.approx(
            bootstrap(metric, torch.from_numpy(probs), torch.from_numpy(labels), replicates=40, seed=5)
        )


def test_intervals_of_the_suite(world: World) -> None:
    probs, labels = world(400, 5, sharpen=1.5)
    p = predictions(probs, labels)
    out, values = intervals(p, replicates=100), evaluate(p)
    assert list(out) == list(METRICS)
    for name, interval in out.items():
        assert interval.value == values[name]
        assert 0 <= interval.low <= interval.high
    for name in ("ece", "uce", "classwise_ece", "adaptive_ece", "mce"):
        assert out[name].low <= out[name].value <= out[name].high
    assert out["ece"] == pytest.approx(bootstrap(metrics.ece, probs, labels, replicates=100), abs=1e-12)
    assert intervals(p, ["ece"], replicates=100)["ece"] == out["ece"]
    assert intervals(p, ["nll"], replicates=100, seed=1)["nll"] != out["nll"]


def test_accuracy_interval_is_the_binomial_one(world: World) -> None:
    probs, labels = world(2000, 5)
    a, low, high = bootstrap(metrics.accuracy, probs, labels, replicates=2000)
    half = 1.96 * math.sqrt(a * (1 - a) / 2000)
    assert (low, high) == pytest.approx((a - half, a + half), abs=0.15 * half)


@pytest.mark.parametrize(("sharpen", "n"), [(1.0, 300), (1.0, 1500), (1.2, 600), (1.6, 600)])
def test_calibration_intervals_cover_the_truth(sharpen: float, n: int, world: World) -> None:
    """Truth from 400,000 rows. The percentile interval of ECE would cover none of the calibrated cases at n = 300."""
    truth = evaluate(predictions(*world(400_000, 5, seed=999, sharpen=sharpen)))
    names = ["accuracy", "nll", "ece", "uce", "adaptive_ece", "classwise_ece", "debiased_ece", "mce"]
    hits = dict.fromkeys(names, 0)
    for seed in range(40):
        for name, (_, low, high) in intervals(
            predictions(*world(n, 5, seed=seed, sharpen=sharpen)), names, replicates=150, seed=seed
        ).items():
            hits[name] += low <= truth[name] + 1e-3 and truth[name] - 1e-3 <= high
    # 40 cases at 95 %: fewer than 33 has a probability below 0.2 %
    assert min(hits.values()) >= 33, hits


def test_paired_is_narrower_and_finds_the_better_model(world: World) -> None:
    probs, labels = world(500, 5)
    worse, _ = world(500, 5, sharpen=1.4)
    paired = paired_bootstrap(metrics.nll, worse, probs, labels, replicates=200)
    assert paired.value == pytest.approx(metrics.nll(worse, labels) - metrics.nll(probs, labels))
    assert 0 < paired.low < paired.value < paired.high
    a, b = (bootstrap(metrics.nll, p, labels, replicates=200) for p in (worse, probs))
    assert paired.high - paired.low < 0.6 * math.hypot(a.high - a.low, b.high - b.low)
    back = paired_bootstrap(metrics.nll, probs, worse, labels, replicates=200)
    assert (back.low, back.high) == pytest.approx((-paired.high, -paired.low))
    slow = paired_bootstrap(lambda p, y: metrics.nll(p, y), worse, probs, labels, replicates=200)
    assert slow == pytest.approx(paired)
    gap = paired_bootstrap(metrics.ece, worse, probs, labels, replicates=200)
    assert gap.low < gap.value < gap.high


def test_the_same_model_twice_differs_by_nothing(world: World) -> None:
    probs, labels = world(100, 3)
    assert paired_bootstrap(metrics.nll, probs, probs, labels, replicates=50) == Interval(0, 0, 0)


@pytest.mark.parametrize(("threshold", "bins"), [("auto", 15), (0.7, 9)])
def test_paired_intervals_are_the_paired_bootstraps(threshold: float, bins: int, awkward: World) -> None:
    probs, labels = awkward(150, 4)
    softer = 0.8 * probs + 0.05
    a, b = predictions(softer, labels), predictions(probs, labels)
    out = paired_intervals(a, b, threshold=threshold, bins=bins, replicates=60, seed=2)
    values = [evaluate(one, threshold=threshold, bins=bins) for one in (a, b)]
    assert list(out) == list(METRICS)
    for name, interval in out.items():
        assert interval.value == values[0][name] - values[1][name]
        assert interval.low <= interval.value <= interval.high, name
        if threshold == "auto":
            one = paired_bootstrap(METRICS[name], softer, probs, labels, replicates=60, seed=2)
            assert interval == pytest.approx(one, abs=1e-12), name
    # resampling rows of a metric the library does not know
    name = "p_accurate_given_certain" if threshold != "auto" else "aurc"
    options = {"threshold": threshold} if threshold != "auto" else {}
    slow = paired_bootstrap(lambda p, y: METRICS[name](p, y, **options), softer, probs, labels, replicates=60, seed=2)
    assert out[name] == pytest.approx(slow, abs=1e-9)


def test_paired_needs_the_same_rows(world: World) -> None:
    probs, labels = world(30, 3)
    with pytest.raises(InputError, match="same rows"):
        paired_intervals(predictions(probs, labels), predictions(probs, (labels + 1) % 3))


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (2, 3), (40, 12), (300, 3)])
def test_every_interval_contains_its_value(rows: int, classes: int, awkward: World) -> None:
    for seed in range(6):
        p, q = (predictions(*awkward(rows, classes, seed=seed)) for _ in range(2))
        q = predictions(0.5 * p.probs.numpy() + 0.5 / classes, p.labels.numpy())
        for found in (intervals(p, replicates=40), paired_intervals(p, q, replicates=40)):
            for name, (value, low, high) in found.items():
                assert math.isnan(value) or low <= value <= high, (seed, name)
                assert name in UNBOUNDED or math.isnan(value) or (low >= -1 and high <= 1), (seed, name)


def test_weights_in_one_block_or_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    p = predictions(*world(60, 3))
    said: list[int] = []
    whole = intervals(p, replicates=30)
    monkeypatch.setattr("avuc.metrics.resampling.rows.BLOCK", 100)
    monkeypatch.setattr("avuc.metrics.resampling.rows.HELD", 700)
    how = Bootstrap(30, advance=lambda done: said.append(done))
    pieces = intervals_of(p.probs, prediction_statistics(p.probs, p.labels, bins=15), None, how)
    assert sum(said) == 30
    assert len(said) > 2
    for name in METRICS:
        # the pilot that decides which bins may be 0 has at least 64 resamples, here all of them
        assert pieces[name] == pytest.approx(whole[name], abs=1e-12), name


def test_detection_intervals_of_groups_equal_a_loop():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 12, 90), rng.integers(0, 9, 70)
    inside = rng.normal(size=90).round(1) + rng.normal(size=12)[groups[0]]
    outside = rng.normal(size=70).round(1) + 1 + rng.normal(size=9)[groups[1]]
    named = [np.array(list("abcdefghijkl"))[each] for each in groups]
    found = detection_intervals(inside, outside, replicates=80, in_groups=named[0], out_groups=groups[1])
    values = metrics.detection(inside, outside)
    drawn = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    errors = []
    for _ in range(80):
        rows = []
        for group, generator in zip(groups, drawn, strict=True):
            count = group.max() + 1
            chosen = torch.randint(count, (count,), generator=generator).tolist()
            rows.append(np.concatenate([np.flatnonzero(group == number) for number in chosen]))
        sample = metrics.detection(inside[rows[0]], outside[rows[1]])
        errors.append([values[name] - sample[name] for name in values])
    factor = 2.306004 / 1.959964 * math.sqrt(9 / 8)  # Student's t of the side with the fewest groups
    for k, (name, value) in enumerate(values.items()):
        low, high = value - factor * np.quantile(np.array(errors)[:, k], (0.975, 0.025))
        if name == "wasserstein":
            assert found[name] == pytest.approx((value, max(low, 0), high), rel=3e-3, abs=2e-3)
        elif name != "detection_accuracy":  # test_near_limit.py has its loop, and the rest of the rule for few groups
            assert found[name].low <= max(low, 0) + 2e-3
            assert found[name].high >= min(high, 1) - 2e-3


def test_detection_intervals_of_groups_are_wider_where_rows_are_alike(monkeypatch):
    """Copies of a row tell nothing new: the interval is that of the rows without their copies."""
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=60), rng.normal(size=60) + 1
    alone = detection_intervals(inside, outside)["auroc"]
    copies, groups = (np.repeat(inside, 50), np.repeat(outside, 50)), np.repeat(np.arange(60), 50)
    narrow = detection_intervals(*copies)["auroc"]
    found = detection_intervals(*copies, in_groups=groups, out_groups=groups)["auroc"]
    width = [one.high - one.low for one in (alone, narrow, found)]
    assert width[1] < 0.3 * width[0]
    assert width[2] == pytest.approx(width[0], rel=0.15)
    monkeypatch.setattr("avuc.metrics.detection_bootstrap.MOST_ROWS", 500)
    sampled = detection_intervals(*copies, in_groups=groups, out_groups=groups)["auroc"]
    assert sampled.value == found.value
    assert sampled.high - sampled.low == pytest.approx(width[0], rel=0.3)
    one = detection_intervals(*copies, in_groups=groups, out_groups=np.zeros(3000))["auroc"]
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    same = detection_intervals(inside, outside, in_groups=np.arange(60))["auroc"]
    assert same == alone  # each row is a group
    with pytest.raises(InputError, match="out_groups must have one value for each of 60 rows"):
        detection_intervals(inside, outside, out_groups=[1, 2])


def test_detection_intervals(world: World) -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 0.3, 200).clip(0).round(2), rng.normal(1.4, 0.4, 80).clip(0).round(2)
    found = detection_intervals(inside, outside, replicates=300)
    values = metrics.detection(inside, outside)
    assert list(found) == list(values)
    for name, interval in found.items():
        assert interval.value == values[name]
        assert interval.low < interval.value < interval.high
    # rows drawn one by one, each side from itself
    pairs = zip(resampled_rows(200, 300, 0), resampled_rows(80, 300, 1), strict=True)
    slow = [metrics.detection(inside[i], outside[o]) for i, o in pairs]
    for name in values:
        low, high = np.quantile([one[name] for one in slow], [0.025, 0.975])
        if name == "wasserstein":
            assert found[name][1:] == pytest.approx((low, high), abs=1e-12), name
        elif name != "detection_accuracy":  # wider for few mistakes; test_near_limit.py has all in a loop
            assert found[name].low <= low + 1e-12, name
            assert found[name].high >= high - 1e-12, name
    # Hanley & McNeil's standard error of the AUROC
    a, m, n = values["auroc"], len(outside), len(inside)
    q1, q2 = a / (2 - a), 2 * a * a / (1 + a)
    spread = math.sqrt((a * (1 - a) + (m - 1) * (q1 - a * a) + (n - 1) * (q2 - a * a)) / (m * n))
    assert found["auroc"].high - found["auroc"].low == pytest.approx(2 * 1.96 * spread, rel=0.25)


def test_undefined_metrics_have_no_interval() -> None:
    probs, labels = np.tile([0.9, 0.1], (20, 1)), np.zeros(20, int)
    assert all(map(math.isnan, bootstrap(metrics.p_uncertain_given_inaccurate, probs, labels, replicates=20)))


def test_bad_arguments() -> None:
    p = predictions(np.full((4, 2), 0.5), np.zeros(4, int))
    with pytest.raises(InputError, match="unknown metric 'f1'"):
        intervals(p, ["f1"])
    with pytest.raises(InputError, match="replicates"):
        intervals(p, replicates=0)
    with pytest.raises(InputError, match="level"):
        bootstrap(metrics.nll, p.probs, p.labels, level=95)


def test_intervals_of_many_rows_are_those_of_evaluate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avuc.metrics.blockwise.LARGE_ROWS", 1000)
    given, outside = (predictions(*world(2000, 4, seed)) for seed in (3, 4))
    entropy, other = given.entropy.numpy(), outside.entropy.numpy()
    before = entropy.copy()
    found = evaluation.evaluate(given, replicates=100, outside_entropy=outside.entropy)
    assert (found.bootstrap, found.detection_bootstrap) == ("cells", "cells")
    for names in (None, ["nll", "ece"]):
        some = intervals(given, names, replicates=100)
        assert list(some) == (list(metrics.METRICS) if names is None else names)
        for name, interval in some.items():
            assert (interval.low, interval.high) == found.intervals[name]
    detected = detection_intervals(entropy, other, replicates=100)
    for name, interval in detected.items():
        assert (interval.low, interval.high) == pytest.approx(found.detection_intervals[name])
    assert np.array_equal(entropy, before)
