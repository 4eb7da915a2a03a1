"""Intervals from groups of rows agree with those from rows, and cover the truth where it is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from avuc import metrics
from avuc.metrics.blockwise import BlockCollector, BlockwiseStatistics
from avuc.metrics.detection_bootstrap import blockwise_detection_intervals
from avuc.metrics.intervals import Bootstrap, Interval, blockwise_intervals
from avuc.metrics.resampling import cells
from avuc.metrics.resampling import rows as row_bootstrap
from avuc.metrics.sorted_samples import SortedPair
from avuc.predictions import Predictions


def statistics(probs: np.ndarray, labels: np.ndarray, seed: int = 0) -> BlockwiseStatistics:
    collector = BlockCollector(len(labels), probs.shape[1], dtype=torch.float64, seed=seed)
    collector.add(probs, labels)
    return collector.finish()


def apart(ours: list[Interval], theirs: Interval) -> tuple[float, float]:
    """How far the ends are from each other, the mean over seeds, as a share of the width."""
    low, high = np.mean([(one.low, one.high) for one in ours], 0)
    width = theirs.high - theirs.low
    return abs(low - theirs.low) / width, abs(high - theirs.high) / width


@pytest.mark.parametrize(("sharpen", "threshold"), [(1.0, "auto"), (1.6, 0.5)])
def test_agrees_with_the_bootstrap_over_rows(world, sharpen, threshold):
    """With 1,000 replicates an end has a standard error of 2 % of the width; 12 % allows for five of them."""
    probs, labels = world(10_000, 5, seed=4, sharpen=sharpen)
    exact = metrics.intervals(
        Predictions(torch.from_numpy(probs), torch.from_numpy(labels)), replicates=1000, threshold=threshold
    )
    ours = [
        blockwise_intervals(statistics(probs, labels, seed), Bootstrap(1000, seed=seed, threshold=threshold))
        for seed in range(3)
    ]
    for name, interval in exact.items():
        for one in ours:
            assert one[name].value == pytest.approx(interval.value, abs=1e-12)
            assert one[name].low <= interval.value <= one[name].high
        assert max(apart([one[name] for one in ours], interval)) < 0.12, name


def test_detection_agrees_with_the_bootstrap_over_rows():
    rng = np.random.default_rng(5)
    inside, outside = rng.gamma(1.5, 0.4, 12_000).astype(np.float32), rng.gamma(2.5, 0.6, 4_000).astype(np.float32)
    exact = metrics.detection_intervals(inside, outside, replicates=1000)
    ranking = SortedPair(inside.copy(), outside.copy())
    ours = [blockwise_detection_intervals(ranking, replicates=1000, seed=seed) for seed in range(3)]
    for name, interval in exact.items():
        assert max(apart([one[name] for one in ours], interval)) < 0.12, name


def test_covers_the_truth(monkeypatch):
    """100 data sets whose accuracy, NLL, ECE and AUROC are known: at least 86 of the 95 % intervals contain the truth.

    Fewer do so with a probability below 0.1 % if the intervals are right; intervals half as wide cover it 67 times.
    """
    monkeypatch.setattr(cells, "CELLS", 64)
    rng, hits = np.random.default_rng(11), dict.fromkeys(("accuracy", "nll", "ece", "auroc"), 0)
    truth = {"accuracy": 0.7, "nll": -0.7 * np.log(0.8) - 0.3 * np.log(0.2), "ece": 0.1, "auroc": 2 / 3}
    for seed in range(100):
        labels = (rng.random(1000) > 0.7).astype(np.int64)
        probs = np.tile([0.8, 0.2], (1000, 1))
        found = blockwise_intervals(statistics(probs, labels), Bootstrap(200, seed=seed))
        # the larger of two exponentials of rates 1 and 1/2 is the second with probability 2/3
        sides = rng.exponential(1, 600).astype(np.float32), rng.exponential(2, 600).astype(np.float32)
        found |= blockwise_detection_intervals(SortedPair(*sides), replicates=200, seed=seed)
        for name, value in truth.items():
            hits[name] += found[name].low <= value <= found[name].high
    assert min(hits.values()) >= 86, hits


def test_the_order_of_the_rows_does_not_matter(world):
    """Groups of rows are dealt at random: sorted labels would make groups of neighbours differ too much."""
    probs, labels = world(10_000, 3, seed=7, sharpen=1.4)
    order = np.argsort(labels, kind="stable")
    widths = [
        (lambda one: one.high - one.low)(blockwise_intervals(statistics(p, y), Bootstrap(1000))["classwise_ece"])
        for p, y in ((probs, labels), (probs[order], labels[order]))
    ]
    assert widths[1] == pytest.approx(widths[0], rel=0.2)


def test_awkward_rows_and_few_rows(awkward):
    for rows in (1, 2, 40, 3000):
        probs, labels = awkward(rows, 4, seed=rows)
        found = blockwise_intervals(statistics(probs, labels), Bootstrap(50))
        expected = metrics.evaluate(Predictions(torch.from_numpy(probs), torch.from_numpy(labels)))
        for name, interval in found.items():
            assert interval.value == pytest.approx(expected[name], abs=1e-12, nan_ok=True)
            assert np.isnan(interval.low) or interval.low <= interval.value <= interval.high


def test_the_same_seed_gives_the_same_intervals(world):
    probs, labels = world(2000, 4, seed=8)
    first, again, other = (blockwise_intervals(statistics(probs, labels, s), Bootstrap(60, seed=s)) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_no_block_of_resamples_is_empty(world, monkeypatch):
    """Weights of many rows were split into more parts than there were resamples: an IndexError from 4.9 million on."""
    monkeypatch.setattr(row_bootstrap, "HELD", 1000)
    monkeypatch.setattr(row_bootstrap, "BLOCK", 1)
    probs, labels = world(300, 3)
    p = Predictions(torch.from_numpy(probs), torch.from_numpy(labels))
    found = metrics.intervals(p, ["accuracy", "ece"], replicates=7)
    monkeypatch.undo()
    assert found == metrics.intervals(p, ["accuracy", "ece"], replicates=7)
