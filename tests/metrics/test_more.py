"""SmoothECE, over- and underconfidence, AUGRC, and their intervals: loops, references, extremes."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from avuc import InputError, metrics
from avuc.metrics import MORE_METRICS, augrc, ece, overconfidence, smooth_ece, underconfidence
from avuc.metrics.more import _Sides, _Smooth, more_intervals
from avuc.metrics.smooth import cosine_waves, residual_masses, smooth_error, smoothed
from avuc.metrics.statistics import prediction_statistics

make = runpy.run_path(str(Path(__file__).with_name("make_smooth_reference.py")))
# what make_smooth_reference.py printed
RELPLOT = (0.037086804929227224, 0.09448639081070907, 0.10662825352001704, 0.21571879380872036)


def slow_smooth(confidence: np.ndarray, correct: np.ndarray, sigma: float, points: int = 4000) -> float:
    """The definition: a Gaussian for every row and for its images in the mirrors at 0 and 1."""
    mesh, total = np.linspace(0, 1, points + 1), np.zeros(points + 1)
    for stated, right in zip(confidence, correct, strict=True):
        for mirror in range(-6, 7, 2):
            for image in (stated + mirror, -stated + mirror):
                density = np.exp(-0.5 * ((mesh - image) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
                total += (stated - right) * density / len(confidence)
    return float(torch.trapezoid(torch.from_numpy(np.abs(total)), torch.from_numpy(mesh)))


@pytest.mark.parametrize(("case", "expected"), list(zip(make["CASES"], RELPLOT, strict=True)))
def test_smooth_ece_is_that_of_relplot(case: tuple[int, float, int], expected: float) -> None:
    """Its search for the bandwidth stops at steps of 1/1024."""
    assert smooth_error(*make["confidences"](*case))[0] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_smooth_ece_is_its_definition(seed: int) -> None:
    """At the bandwidth that was found, the definition returns that bandwidth; confidences of 1 included."""
    confidence, correct = make["confidences"](60, 2.0, seed)
    confidence[:5] = 1.0
    value, sigma = smooth_error(confidence, correct)
    assert value == pytest.approx(sigma, abs=1e-9)
    assert slow_smooth(confidence, correct, sigma) == pytest.approx(value, rel=2e-3)


def test_smooth_ece_of_one_sided_residuals_is_their_mean() -> None:
    probs = np.array([[0.9, 0.1], [0.7, 0.3], [1.0, 0.0]] * 20)
    assert smooth_ece(probs, [1] * 60) == pytest.approx(probs.max(1).mean())
    assert smooth_ece(probs, [0] * 60) == pytest.approx(1 - probs.max(1).mean())
    assert smooth_ece([[1.0, 0.0]], [0]) == pytest.approx(0, abs=1e-9)


@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 99))
def test_smooth_ece_is_at_most_the_mean_absolute_residual(rows: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs, labels = rng.dirichlet(np.ones(classes), rows), rng.integers(0, classes, rows)
    residual = probs.max(1) - (probs.argmax(1) == labels)
    assert abs(residual.mean()) - 1e-9 <= smooth_ece(probs, labels) <= np.abs(residual).mean() + 1e-9


@given(st.integers(1, 60), st.integers(2, 5), st.integers(0, 99), st.sampled_from([1, 5, 15]))
def test_over_and_underconfidence_are_loops_and_add_up_to_ece(rows: int, classes: int, seed: int, bins: int) -> None:
    rng = np.random.default_rng(seed)
    probs, labels = rng.dirichlet(np.ones(classes), rows), rng.integers(0, classes, rows)
    over = under = 0.0
    for k in range(bins):
        here = [i for i in range(rows) if k / bins < probs[i].max() <= (k + 1) / bins]
        gap = sum(probs[i].max() - (probs[i].argmax() == labels[i]) for i in here) / rows
        over, under = over + max(0, gap), under + max(0, -gap)
    assert overconfidence(probs, labels, bins=bins) == pytest.approx(over, abs=1e-12)
    assert underconfidence(probs, labels, bins=bins) == pytest.approx(under, abs=1e-12)
    assert over + under == pytest.approx(ece(probs, labels, bins=bins), abs=1e-12)


@pytest.mark.parametrize("score", ["confidence", "entropy"])
@given(rows=st.integers(2, 60), seed=st.integers(0, 99), ties=st.booleans())
def test_augrc_is_a_loop_and_the_closed_form(score: str, rows: int, seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(3), rows)
    if ties and score == "confidence":  # entropies of permuted rows differ by rounding
        probs = (rng.multinomial(4, [1 / 3] * 3, rows) + 1) / 7
    labels = rng.integers(0, 3, rows)
    wrong = probs.argmax(1) != labels
    sure = probs.max(1) if score == "confidence" else (probs * np.log(probs)).sum(1)
    sure = sure.round(12)
    area, before, kept = 0.0, 0.0, 0.0
    for value in sorted(set(sure), reverse=True):
        errors = wrong[sure >= value].sum() / rows
        coverage = (sure >= value).mean()
        area += (coverage - kept) * (before + errors) / 2
        before, kept = errors, coverage
    found = augrc(probs, labels, score=score)
    assert found == pytest.approx(area, abs=1e-9)
    if 0 < wrong.sum() < rows:
        accuracy = 1 - wrong.mean()
        closed = (1 - roc_auc_score(~wrong, sure)) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
        assert area == pytest.approx(closed, abs=1e-9)


def test_augrc_is_that_of_torch_uncertainty() -> None:
    """AUGRC of torch-uncertainty 0.13.0 begins at a coverage of 1/n, and is divided by 1 − 1/n."""
    rng = np.random.default_rng(3)
    probs = rng.dirichlet([0.3] * 4, 500)
    labels = np.where(rng.random(500) < 0.7, probs.argmax(1), rng.integers(0, 4, 500))
    assert augrc(probs, labels) / (1 - 1 / 500) == pytest.approx(0.1096733464836133, abs=1e-8)


@pytest.mark.parametrize("name", list(MORE_METRICS))
def test_extremes_and_layouts(name: str) -> None:
    metric = MORE_METRICS[name]
    assert metric is getattr(metrics, name)
    assert metric([[1.0, 0.0]] * 9, [0] * 9) == pytest.approx(0, abs=1e-9)
    worst = {"smooth_ece": 1, "overconfidence": 1, "underconfidence": 0, "augrc": 0.5}[name]
    assert metric([[1.0, 0.0]] * 9, [1] * 9) == pytest.approx(worst, abs=1e-9)
    assert 0 <= metric([[0.6, 0.4]], [1]) <= 1
    many = torch.full((20, 1000), 1e-3, dtype=torch.float16)
    assert 0 <= metric(many, torch.arange(20)) <= 1
    rows = np.random.default_rng(0).dirichlet([1, 1, 1], 40)
    labels = np.random.default_rng(1).integers(0, 3, 40)
    dense = np.moveaxis(rows.reshape(10, 4, 3), -1, 1)
    assert metric(dense, labels.reshape(10, 4)) == pytest.approx(metric(rows, labels))
    assert metric(rows[:, :2] / rows[:, :2].sum(1, keepdims=True), [0] * 40) == pytest.approx(
        metric(rows[:, 1] / rows[:, :2].sum(1), [0] * 40)
    )
    for bad in ([[math.nan, 1.0]], [[math.inf, 0.0]], [[2.0, 3.0]], np.zeros((0, 2))):
        with pytest.raises(InputError):
            metric(bad, [0] * len(bad))


def test_the_intervals_have_the_values_of_the_metrics() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4), 300)
    probs[:20] = [0.7, 0.1, 0.1, 0.1]
    labels = rng.integers(0, 4, 300)
    found = more_intervals(prediction_statistics(probs, labels), replicates=100)
    assert list(found) == list(MORE_METRICS)
    for name, interval in found.items():
        assert interval.value == pytest.approx(MORE_METRICS[name](probs, labels), abs=1e-12)
        assert interval.low <= interval.value <= interval.high
    again = more_intervals(prediction_statistics(probs, labels), replicates=100)
    assert again == found
    none = more_intervals(prediction_statistics(probs, labels), replicates=0)
    assert math.isnan(none["augrc"].low)
    with pytest.raises(InputError):
        more_intervals(prediction_statistics(probs, labels), level=2)


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_the_intervals_contain_the_truth(world, power: float) -> None:
    """In at least 90 % of 60 samples; the truth is that of 200,000 rows."""
    probs, labels = world(200_000, 4, seed=9, sharpen=power)
    truth = {name: metric(probs, labels) for name, metric in MORE_METRICS.items()}
    inside = dict.fromkeys(MORE_METRICS, 0)
    for seed in range(60):
        rows = slice(1000 * seed, 1000 * (seed + 1))
        for name, interval in more_intervals(prediction_statistics(probs[rows], labels[rows]), replicates=100).items():
            inside[name] += interval.low - 1e-4 <= truth[name] <= interval.high + 1e-4
    assert min(inside.values()) >= 52, inside


@pytest.mark.parametrize(
    ("rows", "confidence", "group"), [(300, 0.95, 1), (300, 0.99, 1), (1000, 0.99, 1), (300, 0.97, 3)]
)
def test_intervals_of_calibrated_models_with_few_mistakes_contain_0(rows: int, confidence: float, group: int) -> None:
    """Resamples of one mistake where three are expected show too little noise: up to 19 % missed 0 without the rule."""
    missed = dict.fromkeys(("smooth_ece", "overconfidence", "underconfidence"), 0)
    for seed in range(80):
        rng = np.random.default_rng(seed)
        stated = np.repeat(1 - (1 - confidence) * 2 * rng.random(rows // group), group)
        right = np.repeat(rng.random(rows // group), group) < stated
        statistics = prediction_statistics(np.stack([stated, 1 - stated], 1), (~right).astype(int))
        groups = None if group == 1 else np.arange(rows) // group
        for name, interval in more_intervals(statistics, missed, replicates=100, groups=groups).items():
            missed[name] += interval.low > 1e-9
    assert max(missed.values()) <= 5, missed


def test_the_implied_noise_equals_a_loop() -> None:
    """Outcomes drawn with the confidences, row by row, have the standard errors that the intervals assume."""
    rng = np.random.default_rng(0)
    stated = rng.uniform(0.55, 1, 60)
    statistics = prediction_statistics(np.stack([stated, 1 - stated], 1), (rng.random(60) > stated).astype(int))
    smooth, sides = _Smooth(statistics, 15), _Sides(statistics, 15)
    terms, gaps = [], []
    for _ in range(3000):
        residual = stated - (rng.random(60) < stated)
        terms.append(smoothed(cosine_waves(residual_masses(smooth.below, smooth.share, residual)), smooth.bandwidth))
        gaps.append([sum(r for r, c in zip(residual, sides.bin, strict=True) if c == k) / 60 for k in range(15)])
    implied = smooth.sum._implied, sides.sum._implied
    assert implied[0] is not None
    assert implied[1] is not None
    assert implied[1].spread == pytest.approx(np.std(gaps, 0), rel=0.06, abs=1e-9)
    assert implied[1].draw(3000).std(0) == pytest.approx(np.std(gaps, 0), rel=0.1, abs=1e-9)
    known = np.std(terms, 0)
    assert np.median(np.abs(implied[0].spread / known - 1)) < 0.1
    assert _Sides(statistics, 15, rows_of_unit=4.0).sum._implied.draw(3000).std(0) == pytest.approx(  # type: ignore[union-attr]
        2 * np.std(gaps, 0), rel=0.1, abs=1e-9
    )
    extremes = prediction_statistics([[1.0, 0.0]] * 3 + [[0.5, 0.5]], [0, 1, 0, 0])
    for interval in more_intervals(extremes, replicates=50).values():
        assert 0 <= interval.low <= interval.value <= interval.high <= 1
