"""The suite from blocks of rows equals the suite from all rows; the same for detection from two sorted samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from avuc import metrics
from avuc.core.errors import InputError
from avuc.metrics import sorted_samples
from avuc.metrics.avu import avu_curves_from_statistics
from avuc.metrics.blockwise import BlockCollector, BlockwiseStatistics, bytes_needed
from avuc.metrics.calibration import confidence_table, uncertainty_table
from avuc.metrics.detection import detection_from_sorted
from avuc.metrics.selective import risk_curve
from avuc.metrics.sorted_samples import SortedPair
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.suite import from_statistics
from avuc.metrics.ties import group_ties
from avuc.predictions import Predictions

DTYPES = (torch.float16, torch.float32, torch.float64)


def collected(probs: torch.Tensor, labels: torch.Tensor, step: int, **options: object) -> BlockwiseStatistics:
    collector = BlockCollector(len(probs), probs.shape[1], dtype=probs.dtype, **options)  # type: ignore[arg-type]
    for start in range(0, len(probs), step):
        collector.add(probs[start : start + step], labels[start : start + step])
    return collector.finish()


def world(name: str, rows: int = 500, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    probs = (3 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(-1)
    labels = torch.multinomial(probs.sqrt(), 1, generator=generator)[:, 0]
    if name == "tied":  # few distinct confidences and entropies, some exactly on the edges of bins
        probs = torch.tensor([[0.8, 0.2, 0, 0], [0.6, 0.2, 0.2, 0], [1.0, 0, 0, 0], [0.25] * 4])[labels % 4].double()
        labels = torch.randint(classes, (rows,), generator=generator)
    if name == "all right":
        labels = probs.argmax(1)
    if name == "all wrong":
        labels = (probs.argmax(1) + 1) % classes
    if name == "sure":
        probs = torch.eye(classes, dtype=torch.float64)[labels.flip(0)]
    if name == "one row":
        probs, labels = probs[:1], labels[:1]
    return probs, labels


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["spread", "tied", "all right", "all wrong", "sure", "one row"])
@pytest.mark.parametrize("chunk", [5, 1 << 18])
def test_equals_the_suite_on_any_split(monkeypatch, name, dtype, chunk):
    monkeypatch.setattr(sorted_samples, "CHUNK", chunk)
    probs, labels = world(name)
    probs = probs.to(dtype)
    whole = prediction_statistics(probs, labels, bins=15)
    for step in (1000, 37):
        for threshold in ("auto", 0.4):
            found = collected(probs, labels, step)
            expected = metrics.suite.from_statistics(whole, threshold=threshold)
            assert found.metrics(threshold=threshold) == pytest.approx(expected, abs=1e-12, nan_ok=True)
        for ours, theirs in (
            (found.confidence_table(), confidence_table(whole, 15)),
            (found.uncertainty_table(), uncertainty_table(whole, 15)),
        ):
            np.testing.assert_allclose(ours, theirs, atol=1e-10)
        for ours, theirs in zip(found.avu_curves(9), avu_curves_from_statistics(whole, 9), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_one_class_and_other_bins():
    probs, labels = torch.ones(20, 1), torch.zeros(20, dtype=torch.int64)
    expected = from_statistics(prediction_statistics(probs, labels, bins=15))
    assert collected(probs, labels, 7).metrics() == pytest.approx(expected, abs=1e-12, nan_ok=True)
    probs, labels = world("spread", classes=7)
    expected = metrics.evaluate(Predictions(probs, labels), bins=4)
    assert collected(probs, labels, 64, bins=4).metrics() == pytest.approx(expected, abs=1e-12)


def test_charts_are_those_of_the_rows(monkeypatch):
    monkeypatch.setattr(sorted_samples, "CHUNK", 11)
    probs, labels = world("spread")
    found, whole = collected(probs, labels, 50), prediction_statistics(probs, labels, bins=15)
    exact = risk_curve(group_ties(whole.confidence, whole.correct))
    points = found.risk_curve(40)
    assert 20 <= len(points.score) <= 40
    assert points.coverage[-1] == 1
    for coverage, risk, score in zip(*points, strict=True):
        at = np.flatnonzero(exact.score == score)[0]
        assert (coverage, risk) == pytest.approx((exact.coverage[at], exact.risk[at]), abs=1e-12)
    edges = np.linspace(0, np.log(4), 9)
    for ours, kept in zip(found.entropy_histogram(edges), (whole.correct, ~whole.correct), strict=True):
        assert ours.tolist() == np.histogram(whole.entropy[kept], edges)[0].tolist()


def test_detection_equals_the_function(monkeypatch):
    rng = np.random.default_rng(0)
    cases = [
        (rng.random(300), 0.3 + rng.random(200)),
        (rng.integers(0, 4, 300) / 4, rng.integers(1, 6, 77) / 4),  # many equal values
        (np.array([-1e-7, 0.0, 0.2]), np.array([0.1, -1e-7])),  # rounding can make an entropy slightly negative
        (np.array([0.5]), np.array([0.5])),
        (rng.random(40), np.full(1000, 0.5)),
    ]
    for chunk in (4, 64, 1 << 18):
        monkeypatch.setattr(sorted_samples, "CHUNK", chunk)
        for inside, outside in cases:
            inside, outside = inside.astype(np.float32), outside.astype(np.float32)
            expected = metrics.detection(inside, outside)
            assert detection_from_sorted(SortedPair(inside.copy(), outside.copy())) == pytest.approx(
                expected, abs=1e-12
            )
    with pytest.raises(InputError, match="both kinds"):
        detection_from_sorted(SortedPair(np.empty(0), np.ones(3)))


def test_groups_are_those_of_one_sort(monkeypatch):
    rng = np.random.default_rng(1)
    values, flags = rng.integers(0, 30, 400) / 8, rng.random(400) < 0.6
    expected = group_ties(values, flags)
    for chunk in (3, 50, 1 << 18):
        monkeypatch.setattr(sorted_samples, "CHUNK", chunk)
        stretches = list(SortedPair(values[~flags], values[flags]).tie_groups())
        for k in range(3):
            np.testing.assert_array_equal(np.concatenate([part[k] for part in stretches]), expected[k])


def test_cells_hold_every_row_once_and_end_at_the_edges():
    rng = np.random.default_rng(2)
    wrong, right = rng.random(300), rng.random(900) ** 2
    cells = SortedPair(wrong.copy(), right.copy()).value_groups(50, np.array([0.25, 0.5]), alone=3)
    assert (cells.negative.sum(), cells.positive.sum()) == (300, 900)
    assert (cells.negative_sum.sum(), cells.positive_sum.sum()) == pytest.approx((wrong.sum(), right.sum()))
    assert (cells.high[:-1] < cells.low[1:]).all()
    for edge in (0.25, 0.5):
        inside = (cells.low <= edge) & (cells.high > edge)
        assert not inside.any()
    everything = np.sort(np.concatenate([wrong, right]))
    np.testing.assert_array_equal(cells.low[:3], everything[:3])
    np.testing.assert_array_equal(cells.low[-3:], everything[-3:])
    np.testing.assert_array_equal(cells.high[-3:], everything[-3:])


def test_bad_blocks_are_refused():
    probs, labels = world("spread")
    with pytest.raises(InputError, match="expected 500 rows, at least 1, found 0"):
        BlockCollector(500, 4).finish()
    collector = BlockCollector(100, 4)
    with pytest.raises(InputError, match="expected 100 rows of 4 classes, found 500 rows of 4"):
        collector.add(probs, labels)
    with pytest.raises(InputError, match="found 10 rows of 3"):
        collector.add(torch.full((10, 3), 1 / 3), torch.zeros(10, dtype=torch.int64))
    collector.add(probs[:60], labels[:60])
    broken = probs[60:100].clone()
    broken[7, 2] = torch.nan
    with pytest.raises(InputError, match="NaN \\(row 67\\)"):
        collector.add(broken, labels[60:100])


def test_a_file_of_two_gigabytes_passes_the_default_limit():
    assert bytes_needed(50_000_000, 10) < 1e9
    assert bytes_needed(500_000, 1_000) < 0.4e9
    assert bytes_needed(50_000_000, 10, detection=True) - bytes_needed(50_000_000, 10) == 4 * 50_000_000
