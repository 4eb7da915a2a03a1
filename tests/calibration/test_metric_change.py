"""Changes of metrics against the slow reference, and groups of dependent rows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from avuc.calibration import metric_change
from avuc.calibration.metric_change import Figures, ece_change, figures, mean_change
from avuc.metrics import brier, ece, nll, paired_intervals
from avuc.metrics.resampling.percentile import few_groups_factor
from avuc.metrics.statistics import prediction_statistics
from avuc.predictions import Predictions


def models(rows: int, classes: int = 4) -> tuple[Predictions, Predictions]:
    generator = torch.Generator().manual_seed(rows)
    labels = torch.randint(classes, (rows,), generator=generator)
    logits = 3 * torch.randn(rows, classes, generator=generator) + 2 * torch.eye(classes)[labels]
    return Predictions(logits.softmax(-1), labels), Predictions((logits / 2).softmax(-1), labels)


def statistics(one: Predictions):
    return prediction_statistics(one.probs, one.labels)


@pytest.mark.parametrize("rows", [1, 9, 300])
def test_ece_is_that_of_the_paired_bootstrap(rows):
    before, after = models(rows)
    found = ece_change(statistics(before), statistics(after), seed=3)
    reference = paired_intervals(after, before, ["ece"], replicates=metric_change.REPLICATES, seed=3)["ece"]
    assert found[2:] == pytest.approx(tuple(reference), abs=1e-12)


def test_nothing_changes_without_an_interval():
    before, _ = models(9)
    found = ece_change(statistics(before), statistics(before))
    assert found[2:] == (0.0, 0.0, 0.0)
    assert found.before == found.after > 0
    assert set(paired_intervals(before, before, replicates=20).values()) == {(0.0, 0.0, 0.0)}


def test_ten_copies_of_each_row_are_one_group():
    before, after = models(200)
    first, second = statistics(before), statistics(after)
    many = [
        Predictions(one.probs.repeat_interleave(10, 0), one.labels.repeat_interleave(10)) for one in (before, after)
    ]
    copies, groups = [statistics(one) for one in many], np.repeat(np.arange(200), 10)
    once = mean_change(first.nll, second.nll, None)
    assert mean_change(copies[0].nll, copies[1].nll, None, groups) == pytest.approx(once)
    rows, grouped = ece_change(first, second), ece_change(*copies, groups=groups)
    assert grouped[:3] == pytest.approx(rows[:3])
    factor = few_groups_factor(200)  # a little above 1
    ends = [rows.change + factor * (end - rows.change) for end in rows[3:]]
    assert grouped[3:] == pytest.approx(ends)
    alone = mean_change(copies[0].nll, copies[1].nll, None)
    assert alone.high - alone.low < (once.high - once.low) / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_figures_are_those_of_the_metrics_also_with_weights(dtype):
    one, _ = models(300)
    probs = one.probs.to(dtype)
    probs[:3] = torch.eye(4, dtype=dtype)[one.labels[:3]]  # p exactly 0 and 1
    probs[3] = torch.eye(4, dtype=dtype)[(one.labels[3] + 1) % 4]
    found = figures(probs, one.labels)
    reference = [float(metric(probs, one.labels)) for metric in (nll, brier, ece)]
    assert found == pytest.approx(tuple(reference), abs=1e-6)
    weight = np.random.default_rng(0).integers(1, 4, 300)
    repeated = torch.from_numpy(np.repeat(np.arange(300), weight))
    assert figures(probs, one.labels, weight.astype(float)) == pytest.approx(
        figures(probs[repeated], one.labels[repeated]), abs=1e-6
    )


def test_figures_that_are_worse_are_named():
    assert Figures(1.0, 0.2, 0.1).worse(Figures(1.0, 0.1, 0.2)) == ["brier"]
    assert Figures(1.0, 0.1, float("nan")).worse(Figures(0.9, 0.1, 0.2)) == ["nll", "ece"]


def test_the_interval_of_many_rows_needs_no_table_of_rows_and_bins():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 100_000)
    before, after = (prediction_statistics(rng.dirichlet(np.ones(2), len(labels)), labels) for _ in range(2))
    tracemalloc.start()
    try:
        assert ece_change(before, after).low < 0 < ece_change(before, after).high
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24_000_000  # 10 resamples at a time, 8 MB, and a few columns; the table alone would take 25 MB
