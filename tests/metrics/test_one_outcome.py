"""Intervals of predictions that are all right or all wrong: a bootstrap alone would say that they are exact."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy import stats

from avuc import metrics
from avuc.evaluation import evaluate
from avuc.evaluation.groups import evaluate_groups
from avuc.metrics.resampling.absolute_error import hidden_spread
from avuc.metrics.resampling.one_outcome import CHANGED, unseen_share
from avuc.metrics.statistics import prediction_statistics
from avuc.predictions import Predictions


def confident(rows: int, confidence: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a calibrated model, and labels; its ECE is 0."""
    rng = np.random.default_rng(seed)
    stated = 1 - (1 - confidence) * 2 * rng.random(rows)
    return np.stack([stated, 1 - stated], 1), (rng.random(rows) > stated).astype(int)


@pytest.mark.parametrize(("rows", "confidence"), [(300, 0.999), (200, 0.995), (30, 0.95)])
def test_intervals_of_a_calibrated_model_contain_the_truth(rows, confidence):
    missed = dict.fromkeys(("ece", "adaptive_ece", "classwise_ece", "debiased_ece", "accuracy"), 0)
    for seed in range(60):
        probs, labels = confident(rows, confidence, seed)
        found = metrics.intervals(Predictions(probs, labels), list(missed), replicates=100)
        for name, interval in found.items():
            missed[name] += not interval.low <= (confidence if name == "accuracy" else 0) + 1e-9 <= interval.high + 2e-9
    assert max(missed.values()) <= 8  # the 99 % point of Binomial(60, 0.05)


@pytest.mark.parametrize("right", [True, False])
def test_the_accuracy_has_the_exact_interval(right):
    probs, labels = np.tile([0.9, 0.1], (50, 1)), np.full(50, 0 if right else 1)
    exact = stats.binomtest(50 if right else 0, 50).proportion_ci()
    result = evaluate(probs, labels, replicates=50)
    assert result.intervals["accuracy"] == pytest.approx((exact.low, exact.high))
    grouped = evaluate(probs, labels, replicates=50, groups=np.arange(50) // 2)
    exact = stats.binomtest(25 if right else 0, 25).proportion_ci()
    assert grouped.intervals["accuracy"] == pytest.approx((exact.low, exact.high))
    share = unseen_share(50, 0.95)
    assert result.intervals["ece"][0] == pytest.approx(max(0.0, result.metrics["ece"] - share), abs=1e-6)


def test_every_way_to_an_interval_has_the_rule(monkeypatch):
    probs, labels = np.tile([0.9, 0.1], (400, 1)), np.zeros(400, int)
    share = unseen_share(400, 0.95)
    predictions = Predictions(probs, labels)
    (group,) = evaluate_groups(predictions, ["a"] * 400, replicates=50)
    assert group.metrics["accuracy"].low == pytest.approx(1 - share)
    assert group.metrics["underconfidence"].low == pytest.approx(0.1 - share, abs=1e-6)
    some = metrics.more.more_intervals(prediction_statistics(probs, labels), replicates=50)
    assert some["smooth_ece"].low < some["smooth_ece"].value - share / 2
    monkeypatch.setattr(sys.modules["avuc.metrics.intervals"], "needs_blocks", lambda *_: True)
    large = evaluate(predictions, replicates=50)
    assert large.bootstrap == "cells"
    assert large.intervals["accuracy"][0] == pytest.approx(1 - share)


def test_one_mistake_is_enough_for_the_bootstrap():
    probs, labels = np.tile([0.9, 0.1], (50, 1)), np.zeros(50, int)
    labels[0] = 1
    found = evaluate(probs, labels, replicates=200)
    assert found.intervals["accuracy"][0] > 0.9
    assert "mce" not in CHANGED


def test_one_group_has_no_interval():
    found = metrics.intervals(Predictions(np.tile([0.9, 0.1], (5, 1)), np.zeros(5, int)), replicates=20, groups=[0] * 5)
    assert np.isnan(found["accuracy"].low)


def test_a_smaller_error_of_rows_that_are_all_right_is_not_significant():
    """Any calibrator that raises the confidence seems to lower ECE, if no row is wrong."""
    labels = np.zeros(300, int)
    before, after = (Predictions(np.tile([each, 1 - each], (300, 1)), labels) for each in (0.98, 0.9999))
    found = metrics.paired_intervals(after, before, ["ece", "accuracy", "nll"], replicates=50)
    assert found["ece"].value == pytest.approx(-0.0199)
    assert found["ece"].high > 0
    assert found["accuracy"] == (0, 0, 0)
    assert found["nll"].high < 0


def uncertain_wrong(certain: int, wrong: int) -> Predictions:
    """Certain predictions that are all right, and uncertain ones that are all wrong."""
    probs = np.concatenate([np.tile([0.99, 0.01], (certain, 1)), np.tile([0.6, 0.4], (wrong, 1))])
    return Predictions(probs, np.repeat([0, 1], [certain, wrong]))


RATIOS = ["p_accurate_given_certain", "p_uncertain_given_inaccurate"]


def test_ratios_of_0_or_1_have_the_exact_interval(monkeypatch):
    p = uncertain_wrong(40, 25)
    exact = [stats.binomtest(many, many).proportion_ci() for many in (40, 25)]
    found = metrics.intervals(p, ["avu", *RATIOS], replicates=50)
    assert [found[name] for name in RATIOS] == [pytest.approx((1, each.low, 1)) for each in exact]
    assert found["avu"] == pytest.approx((1, stats.binomtest(65, 65).proportion_ci().low, 1))
    for name in RATIOS:
        assert metrics.bootstrap(metrics.METRICS[name], p.probs, p.labels, replicates=50) == found[name]
    assert metrics.bootstrap(metrics.accuracy, p.probs[:40], p.labels[:40], replicates=50).low < 0.95
    pairs = metrics.intervals(p, RATIOS, replicates=50, groups=np.arange(65) // 2)  # group 20 has a row of each kind
    for name, many in zip(RATIOS, (20, 13), strict=True):
        assert pairs[name] == pytest.approx((1, stats.binomtest(many, many).proportion_ci().low, 1))
    turned = Predictions(p.probs, 1 - p.labels)  # certain ones wrong, uncertain ones right
    none = metrics.intervals(turned, RATIOS, replicates=50, threshold=0.3)
    for name in RATIOS:
        assert none[name] == pytest.approx((0, 0, stats.binomtest(0, 40).proportion_ci().high))
    monkeypatch.setattr(sys.modules["avuc.metrics.intervals"], "needs_blocks", lambda *_: True)
    large = evaluate(p, replicates=50)
    assert large.bootstrap == "cells"
    assert [large.intervals[name][0] for name in RATIOS] == pytest.approx([each.low for each in exact])


def test_intervals_of_ratios_contain_the_truth():
    """Of the certain predictions 99 % are right, and 95 % of the wrong ones are uncertain."""
    missed = dict.fromkeys(RATIOS, 0)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        kind = rng.choice(4, 200, p=[0.495, 0.31, 0.005, 0.19])  # certain right, uncertain right, certain wrong, rest
        probs = np.where(np.isin(kind, (0, 2))[:, None], [0.99, 0.01], [0.6, 0.4])
        found = metrics.intervals(
            Predictions(probs, (kind >= 2).astype(int)), RATIOS, replicates=100, threshold=0.3, seed=seed
        )
        for name, truth in zip(RATIOS, (0.99, 0.19 / 0.195), strict=True):
            missed[name] += not found[name].low <= truth <= found[name].high
    assert max(missed.values()) <= 11  # the 99 % point of Binomial(100, 0.05); 36 without the rule


def test_a_difference_of_ratios_counts_what_few_rows_hide():
    """One model is certain of ten rows, all of them right; the other one of 100, of which 90 are right."""
    labels = np.zeros(100, int)
    labels[:10] = 1
    sure = np.tile([0.99, 0.01], (100, 1))
    few = np.where((np.arange(100) >= 90)[:, None], [0.99, 0.01], [0.6, 0.4])
    a, b = Predictions(few, labels), Predictions(sure, labels)
    name = "p_accurate_given_certain"
    found = metrics.paired_intervals(a, b, [name], replicates=200, threshold=0.3)[name]
    assert found.value == pytest.approx(0.1)
    assert found.low < 0 < found.value < found.high < 0.2
    back = metrics.paired_intervals(b, a, [name], replicates=200, threshold=0.3)[name]
    assert back == pytest.approx((-found.value, -found.high, -found.low))
    same = metrics.paired_intervals(a, a, [name], replicates=200, threshold=0.3)[name]
    assert same == (0, 0, 0)
    assert metrics.paired_bootstrap(metrics.METRICS[name], few, few, labels, replicates=20) == (0, 0, 0)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("rows", "confidence"), [(300, 0.99), (1000, 0.995)])
def test_adaptive_ece_of_bins_with_one_outcome(rows, confidence, large, monkeypatch):
    """Three of 300 predictions are wrong: most bins of equal mass have no mistake, and resamples of them no noise."""
    if large:
        monkeypatch.setattr(sys.modules["avuc.metrics.intervals"], "needs_blocks", lambda *_: True)
    missed = 0
    for seed in range(60):
        predictions = Predictions(*confident(rows, confidence, seed))
        if large:
            low = evaluate(predictions, replicates=100).intervals["adaptive_ece"][0]
        else:
            low = metrics.intervals(predictions, ["adaptive_ece"], replicates=100)["adaptive_ece"].low
        missed += low > 1e-9
    assert missed <= 3  # 14 % and 24 % of 200 repetitions without the noise that the confidence implies


@pytest.mark.parametrize(("rows", "bins"), [(300, 15), (40, 15), (7, 15), (64, 4)])
def test_hidden_spread_equals_a_loop(rows, bins):
    rng = np.random.default_rng(rows)
    stated = np.sort(rng.uniform(0.5, 1, rows))
    right = rng.random(rows) < stated**0.2
    expected = []
    for k in range(bins):
        first, last = k * rows / bins, (k + 1) * rows / bins
        share = [max(0.0, min(last, i + 1) - max(first, i)) for i in range(rows)]  # of each row that the bin holds
        inside = [i for i in range(rows) if share[i] > 1e-9]
        mean = sum(share[i] * stated[i] for i in inside) / (last - first)
        one = len({bool(right[i]) for i in inside}) == 1
        expected.append(np.sqrt((last - first) * mean * (1 - mean)) / rows if one else 0)
    sums = [np.concatenate([[0], np.cumsum(each)]) for each in (np.ones(rows), right, stated)]
    assert hidden_spread(*sums, bins) == pytest.approx(np.array(expected), abs=1e-9)
    assert np.count_nonzero(expected) > 0 or rows == 64


def test_adaptive_ece_of_clear_errors_stays_significant():
    """Bins that are all right at a confidence of 60 % are not calibrated, and neither is their difference to 99 %."""
    probs = np.tile([0.6, 0.4], (300, 1)) + np.linspace(0, 0.01, 300)[:, None] * [1, -1]
    labels = (np.arange(300) % 50 == 0).astype(int)
    found = metrics.intervals(Predictions(probs, labels), ["adaptive_ece"], replicates=100)["adaptive_ece"]
    assert found.low > 0.3
    groups = np.arange(300) // 3
    wide = metrics.intervals(Predictions(probs, labels), ["adaptive_ece"], replicates=100, groups=groups)[
        "adaptive_ece"
    ]
    assert 0.1 < wide.low < found.low  # seven groups in a bin say less than 20 rows
    sure = np.tile([0.99, 0.01], (300, 1)) - np.linspace(0, 0.01, 300)[:, None] * [1, -1]
    change = metrics.paired_intervals(
        Predictions(sure, labels), Predictions(probs, labels), ["adaptive_ece"], replicates=100
    )
    assert change["adaptive_ece"].high < -0.3


def test_the_brier_score_of_rows_that_are_all_right_counts_mistakes_that_few_rows_hide(monkeypatch):
    """A model states 99.99 % and is right in 99.5 %: its Brier score is 0.01, and 0.00000002 without a mistake."""
    missed = {"brier": 0, "nll": 0}
    right = [1e-8 * 2, -np.log(0.9999)]
    truth = dict(
        zip(missed, (0.995 * right[0] + 0.005 * 2 * 0.9999**2, 0.995 * right[1] - 0.005 * np.log(1e-4)), strict=True)
    )
    for seed in range(100):
        labels = (np.random.default_rng(seed).random(200) > 0.995).astype(int)
        found = metrics.intervals(Predictions(np.tile([0.9999, 0.0001], (200, 1)), labels), missed, replicates=50)
        if not labels.any():
            for name in missed:
                missed[name] += not found[name].low <= truth[name] <= found[name].high
    assert missed["brier"] == 0
    assert missed["nll"] > 20  # no bound exists, as the guide says
    probs, labels, share = np.tile([0.9, 0.1], (100, 1)), np.zeros(100, int), unseen_share(100, 0.95)
    expected = pytest.approx((0.02, 0.02 * (1 - share), 0.02 + share * 1.98))
    assert metrics.intervals(Predictions(probs, labels), ["brier"], replicates=20)["brier"] == expected
    assert metrics.bootstrap(metrics.brier, probs, labels, replicates=20) == expected
    wrong = metrics.intervals(Predictions(probs, 1 - labels), ["brier"], replicates=20)["brier"]
    assert wrong == pytest.approx((1.62, 1.62 * (1 - share), 1.62 + share * 0.38))
    pairs = metrics.intervals(Predictions(probs, labels), ["brier"], replicates=20, groups=np.arange(100) // 2)["brier"]
    assert pairs.high == pytest.approx(0.02 + unseen_share(50, 0.95) * 1.98)
    one = metrics.intervals(Predictions(probs, labels), ["brier"], replicates=20, groups=np.zeros(100))["brier"]
    assert np.isnan([one.low, one.high]).all()
    sure = np.tile([0.99, 0.01], (100, 1))
    for found in (
        metrics.paired_intervals(Predictions(sure, labels), Predictions(probs, labels), ["brier"], replicates=20)[
            "brier"
        ],
        metrics.paired_bootstrap(metrics.brier, sure, probs, labels, replicates=20),
    ):
        change = 2 * (0.01**2 - 0.1**2)
        assert found == pytest.approx((change, change - share * (2 + change), change + share * (2 - change)))
    monkeypatch.setattr(sys.modules["avuc.metrics.intervals"], "needs_blocks", lambda *_: True)
    large = evaluate(Predictions(probs, labels), replicates=20)
    assert large.intervals["brier"] == pytest.approx((0.02 * (1 - share), 0.02 + share * 1.98))
