"""The bootstrap over random cells of rows: equal to a loop over the rows of each resample, and shared by two models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from avuc import metrics
from avuc.metrics import METRICS, evaluate, more
from avuc.metrics.resampling import cell_units, random_cells, rows
from avuc.metrics.resampling.cell_units import cells_as_units, dealt
from avuc.metrics.resampling.rows import RowResampler
from avuc.metrics.statistics import prediction_statistics
from avuc.predictions import Predictions

RANKS = {"aurc", "adaptive_ece", "avu", "avu_auc", "p_accurate_given_certain", "p_uncertain_given_inaccurate"}


def predictions(probs, labels):
    return Predictions(torch.from_numpy(probs), torch.from_numpy(labels))


def few_cells(monkeypatch, cells):
    for module in (cell_units, random_cells):
        monkeypatch.setattr(module, "MOST_CELLS", cells)
    monkeypatch.setattr(random_cells, "FEWEST_CELLS", cells)


def resampled(probs, labels, cells, threshold="auto", bins=10, resamples=6):
    """Metrics of resamples of cells, and those of the rows that each resample has."""
    statistics = prediction_statistics(probs, labels, bins=bins)
    units = cells_as_units(probs, statistics, METRICS, bins, seed=3)
    sampler = RowResampler(probs, statistics, METRICS, threshold=threshold, bins=bins, units=units)
    drawn = torch.randint(cells, (resamples, cells), generator=torch.Generator().manual_seed(0)).numpy()
    weights = np.stack([np.bincount(index, minlength=cells) for index in drawn])
    fast, _ = sampler.evaluate(weights)
    cell = dealt(len(labels), seed=3) % cells
    slow = []
    for weight in weights:
        index = [row for row in range(len(labels)) for _ in range(weight[cell[row]])]
        slow.append(evaluate(predictions(probs[index], labels[index]), threshold=threshold, bins=bins))
    fast["debiased_ece"] = np.sqrt(np.maximum(fast["debiased_ece"], 0))
    return fast, slow


@pytest.mark.parametrize("threshold", ["auto", 0.5])
@pytest.mark.parametrize("classes", [2, 5])
def test_resamples_of_cells_equal_their_rows(threshold, classes, awkward, monkeypatch):
    few_cells(monkeypatch, 12)
    fast, slow = resampled(*awkward(170, classes), 12, threshold)
    for number, values in enumerate(slow):
        for name, value in values.items():
            assert fast[name][number] == pytest.approx(value, abs=1e-9, nan_ok=True), name


def test_few_groups_of_values_change_only_metrics_of_ranks(world, monkeypatch):
    """200 groups of 3,000 rows, of which a million rows have 1,000: a group is 0.5 % of the rows."""
    few_cells(monkeypatch, 40)
    monkeypatch.setattr(cell_units, "CELLS", 200)
    fast, slow = resampled(*world(3000, 4, sharpen=1.4), 40, resamples=3)
    for number, values in enumerate(slow):
        for name, value in values.items():
            assert fast[name][number] == pytest.approx(value, abs=5e-3 if name in RANKS else 1e-9), name


def test_differences_agree_with_the_bootstrap_over_rows(world, monkeypatch):
    """With 1,000 replicates an end has a standard error of 2 % of the width; 12 % allows for five of them."""
    probs, labels = world(8000, 5, seed=4)
    noise = np.random.default_rng(1).normal(size=probs.shape)
    other = probs**1.5 * np.exp(0.3 * noise)
    both = predictions(other / other.sum(1, keepdims=True), labels), predictions(probs, labels)
    exact = metrics.paired_intervals(*both, replicates=1000)
    monkeypatch.setattr("avuc.metrics.dependent_rows.needs_blocks", lambda *_: True)
    ours = [metrics.paired_intervals(*both, replicates=1000, seed=seed) for seed in range(3)]
    for name, interval in exact.items():
        width, found = interval.high - interval.low, [one[name] for one in ours]
        assert [one.value for one in found] == [interval.value] * 3
        low, high = np.mean([(one.low, one.high) for one in found], 0)
        assert max(abs(low - interval.low), abs(high - interval.high)) < 0.12 * width, name


def test_two_models_have_the_same_resamples(world, monkeypatch):
    """Nearly the same model twice: with other draws for the second, the interval of a − b would be wide."""
    monkeypatch.setattr("avuc.metrics.dependent_rows.needs_blocks", lambda *_: True)
    probs, labels = world(3000, 3, seed=1)
    nearly = 0.9999 * probs + 0.0001 / 3
    found = metrics.paired_intervals(predictions(nearly, labels), predictions(probs, labels), replicates=100)
    one = metrics.intervals(predictions(probs, labels), ["brier", "nll", "mean_entropy", "aurc"], replicates=100)
    for name, interval in one.items():
        assert found[name].high - found[name].low < 0.05 * (interval.high - interval.low), name
    same = metrics.paired_intervals(predictions(probs, labels), predictions(probs, labels), replicates=20)
    assert set(same.values()) == {(0.0, 0.0, 0.0)}


def test_many_classes_have_fewer_cells(world, monkeypatch):
    monkeypatch.setattr(random_cells, "HELD", 100 * 60)
    probs, labels = world(4000, 4)
    sharper = probs**1.3 / (probs**1.3).sum(1, keepdims=True)
    both = predictions(sharper, labels), predictions(probs, labels)
    exact = metrics.paired_intervals(*both, ["classwise_ece"], replicates=400)["classwise_ece"]
    monkeypatch.setattr("avuc.metrics.dependent_rows.needs_blocks", lambda *_: True)
    found = metrics.paired_intervals(*both, ["classwise_ece"], replicates=400)["classwise_ece"]
    # 100 cells: a standard error is known to 7 %
    assert found.high - found.low == pytest.approx(exact.high - exact.low, rel=0.3)


def test_draws_do_not_grow_with_the_rows(monkeypatch):
    """A million rows took 240 s: each of 1,000 resamples drew a million rows."""
    drawn = []
    original = rows.resampled_rows

    def counted(units, *rest):
        drawn.append(units)
        return original(units, *rest)

    monkeypatch.setattr(rows, "resampled_rows", counted)
    labels = torch.arange(100_001) % 2
    probs = torch.tensor([[0.7, 0.3], [0.4, 0.6]])[torch.arange(100_001) % 2].contiguous()
    a, b = Predictions(probs, labels), Predictions(0.9 * probs + 0.05, labels)
    found = metrics.paired_intervals(a, b, ["nll", "ece"], replicates=10)
    assert found["nll"].high < 0
    metrics.paired_bootstrap(metrics.nll, a.probs, b.probs, labels, replicates=10)
    metrics.bootstrap(metrics.nll, a.probs, labels, replicates=10)
    assert drawn
    assert max(drawn) == 1024


def test_the_same_seed_gives_the_same_intervals(world, monkeypatch):
    monkeypatch.setattr("avuc.metrics.dependent_rows.needs_blocks", lambda *_: True)
    probs, labels = world(2000, 4, seed=8)
    both = predictions(0.9 * probs + 0.025, labels), predictions(probs, labels)
    first, again, other = (metrics.paired_intervals(*both, replicates=60, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_more_metrics_of_cells_equal_their_rows(awkward, monkeypatch):
    """12 cells: over- and underconfidence, the terms of SmoothECE, and AUGRC of a resample are those of its rows."""
    probs, labels = awkward(170, 3)
    statistics, cell = prediction_statistics(probs, labels), dealt(170, seed=3) % 12
    monkeypatch.setattr(more, "MOST_CELLS", 12)
    drawn = torch.randint(12, (5, 12), generator=torch.Generator().manual_seed(0)).numpy()
    weights = np.stack([np.bincount(index, minlength=12) for index in drawn])
    by_cells = [part(statistics, 10, 1.0, 0, cell) for part in (more._Smooth, more._Sides, more._Area)]
    by_rows = [part(statistics, 10, 1.0, 0) for part in (more._Smooth, more._Sides, more._Area)]
    for part in by_cells:
        part.add(weights[:2])
        part.add(weights[2:])
    for weight in weights:
        index = np.array([row for row in range(170) for _ in range(weight[cell[row]])])
        for part in by_rows[:2]:
            part.add(index)
        # the area of rows is that of all N rows with weights
        ordered = np.bincount(index, minlength=170)[by_rows[2].order].astype(float)
        by_rows[2].missed.append(by_rows[2].values[0] - augrc_of(by_rows[2], ordered))
    for fast, slow in zip(by_cells, by_rows, strict=True):
        assert fast.values == slow.values
        for ours, theirs in zip(fast.errors(), slow.errors(), strict=True):
            np.testing.assert_allclose(ours.over, theirs.over, atol=1e-12)
            np.testing.assert_allclose(ours.under, theirs.under, atol=1e-12)


def augrc_of(area, weights):
    """AUGRC from pairs: half of each group of equal scores comes before the other half."""
    score = np.zeros(len(weights))
    score[area.starts] = 1
    group = np.cumsum(score)
    total = 0.0
    for g, weight in zip(group, weights, strict=True):
        surer = (weights * area.wrong)[group < g].sum()
        total += weight * (surer + (weights * area.wrong)[group == g].sum() / 2)
    return total / weights.sum() ** 2


def test_more_intervals_of_many_rows_agree_with_those_of_rows(world, monkeypatch):
    statistics = prediction_statistics(*world(12_000, 4, sharpen=1.5))
    exact = more.more_intervals(statistics, replicates=400)
    monkeypatch.setattr(more, "needs_blocks", lambda *_: True)
    ours = [more.more_intervals(statistics, replicates=400, seed=seed) for seed in range(3)]
    for name, interval in exact.items():
        width = interval.high - interval.low
        low, high = np.mean([(one[name].low, one[name].high) for one in ours], 0)
        assert {one[name].value for one in ours} == {interval.value}
        assert max(abs(low - interval.low), abs(high - interval.high)) < 0.15 * width + 1e-12, name
