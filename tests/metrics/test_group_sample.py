"""A sample of rows of many groups: which rows it has, and intervals as wide as those of all rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from avuc.evaluation import image_sample
from avuc.metrics import dependent_rows as module
from avuc.metrics import detection_intervals, intervals, paired_intervals
from avuc.metrics.dependent_rows import NOT_SCALED
from avuc.metrics.intervals import Bootstrap
from avuc.metrics.resampling import group_sample
from avuc.metrics.resampling.group_sample import effective_groups, sample_factor, sample_groups
from avuc.predictions import Predictions

NAMES = ["aurc", "adaptive_ece", "classwise_ece", "mce", "avu", "p_accurate_given_certain", "nll", "ece"]


def rows_by_group(sizes: np.ndarray, chosen: np.ndarray) -> dict[int, list[int]]:
    """The chosen rows of each group that has some, by a loop."""
    group_of = [group for group, size in enumerate(sizes.tolist()) for _ in range(size)]
    found: dict[int, list[int]] = {}
    for row in chosen.tolist():
        found.setdefault(group_of[row], []).append(row)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "sizes",
    [
        np.full(900, 3),
        np.random.default_rng(0).integers(0, 9, 800),
        np.full(30, 100),
        np.append(np.ones(2000, np.int64), 2000),
    ],
    ids=["threes", "uneven", "large", "one giant"],
)
def test_a_sample_has_distinct_rows_and_whole_groups_where_they_fit(
    monkeypatch: pytest.MonkeyPatch, sizes: np.ndarray, seed: int
) -> None:
    monkeypatch.setattr(group_sample, "LEAST_GROUPS", 50)
    monkeypatch.setattr(group_sample, "LEAST_LARGEST", 20)
    most = 500
    chosen = sample_groups(sizes, most, seed)
    assert len(chosen) == most
    assert all(a < b for a, b in pairwise(chosen.tolist()))  # sorted, none twice
    assert 0 <= chosen[0] <= chosen[-1] < sizes.sum()
    found = rows_by_group(sizes, chosen)
    assert len(found) >= min(50, np.count_nonzero(sizes))
    incomplete = [group for group, rows in found.items() if len(rows) < sizes[group]]
    if sizes.max() < 9:  # only what is beyond `most` is left out
        assert len(incomplete) <= sizes.max()
    if sizes.max() == 2000:  # the giant keeps its share of the rows: one half
        assert len(found[2000]) == pytest.approx(most / 2, rel=0.1)
    np.testing.assert_array_equal(sample_groups(sizes, most, seed), chosen)
    np.testing.assert_array_equal(sample_groups(sizes, int(sizes.sum()), seed), np.arange(sizes.sum()))


def test_effective_groups_equal_plain_loops() -> None:
    sizes = np.random.default_rng(0).integers(0, 9, 70)
    rows = [group for group, size in enumerate(sizes) for _ in range(size)]
    alike = sum(1 for a in rows for b in rows if a == b)  # pairs of rows of one group
    assert effective_groups(sizes) == pytest.approx(len(rows) ** 2 / alike)
    assert sample_factor(sizes, sizes[:20]) == pytest.approx(
        (effective_groups(sizes[:20]) / effective_groups(sizes)) ** 0.5
    )
    assert sample_factor(sizes[:20], sizes) == 1.0


def made_up(rng: np.random.Generator, sizes: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities (N, 3), labels and groups; `share` of the variance is that of the groups."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    ease, luck = (
        np.sqrt(share) * rng.normal(size=len(sizes))[groups] + np.sqrt(1 - share) * rng.normal(size=len(groups))
        for _ in range(2)
    )
    first = 1 / (1 + np.exp(-1.3 - ease))
    right = 1 / (1 + np.exp(-1 - 0.8 * ease)) > 1 / (1 + np.exp(-1.7 * luck))
    return np.stack([first, 0.7 * (1 - first), 0.3 * (1 - first)], 1), np.where(right, 0, 1), groups


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_intervals_of_many_groups_are_as_wide_as_those_of_all_rows(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Of 3,000 groups a sample of 900 rows has 300. Without the factor, these intervals are three times as wide."""
    monkeypatch.setattr(group_sample, "LEAST_GROUPS", 100)
    rng = np.random.default_rng(1)
    probs, labels, groups = made_up(rng, np.full(3000, 3), share)
    a = Predictions(probs, labels)
    b = Predictions(np.where(rng.random((len(probs), 1)) < 0.5, probs, probs[:, ::-1]), labels)
    whole = intervals(a, replicates=200, groups=groups), paired_intervals(a, b, NAMES, replicates=200, groups=groups)
    monkeypatch.setattr(module, "MOST_ROWS", 900)
    some = intervals(a, replicates=200, groups=groups), paired_intervals(a, b, NAMES, replicates=200, groups=groups)
    for found, expected in zip(some, whole, strict=True):
        for name in set(found) - set(NOT_SCALED):
            assert found[name].value == expected[name].value
            width, wanted = (each.high - each.low for each in (found[name], expected[name]))
            assert 0.6 < width / wanted < 1.75, (name, width / wanted)


def test_one_giant_group_does_not_make_intervals_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rows are one group: the other groups are many, but their number does not shrink its share."""
    monkeypatch.setattr(group_sample, "LEAST_GROUPS", 100)
    probs, labels, groups = made_up(np.random.default_rng(2), np.append(np.ones(4000, np.int64), 4000), 0.5)
    whole = intervals(Predictions(probs, labels), NAMES, replicates=200, groups=groups)
    monkeypatch.setattr(module, "MOST_ROWS", 900)
    some = intervals(Predictions(probs, labels), NAMES, replicates=200, groups=groups)
    for name in ("aurc", "avu", "classwise_ece"):
        assert some[name].high - some[name].low > 0.8 * (whole[name].high - whole[name].low), name


def test_detection_of_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_sample, "LEAST_GROUPS", 100)
    rng, groups = np.random.default_rng(3), np.repeat(np.arange(2000), 3)
    sides = [rng.normal(size=2000)[groups] + rng.normal(size=6000) + shift for shift in (0, 1.5)]
    few = rng.normal(size=300) + 1.5
    named = {"in_groups": groups, "out_groups": groups}
    whole = detection_intervals(*sides, replicates=200, **named)
    whole_few = detection_intervals(sides[0], few, replicates=200, in_groups=groups)
    monkeypatch.setattr("avuc.metrics.detection_bootstrap.MOST_ROWS", 600)
    some = detection_intervals(*sides, replicates=200, **named)
    some_few = detection_intervals(sides[0], few, replicates=200, in_groups=groups)
    for name, expected in whole.items():
        assert some[name].value == expected.value
        assert 0.7 < (some[name].high - some[name].low) / (expected.high - expected.low) < 1.6, name
        # the side with few rows is complete, and its noise stays
        assert (some_few[name].high - some_few[name].low) / (whole_few[name].high - whole_few[name].low) > 0.8, name


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_images_that_come_in_blocks(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Rows of a file that is read in blocks are sampled in the same way; the old sample was single rows, unscaled."""
    monkeypatch.setattr(group_sample, "LEAST_GROUPS", 100)
    sizes = np.random.default_rng(4).integers(1, 6, 3000)
    probs, labels, groups = made_up(np.random.default_rng(5), sizes, share)
    a = Predictions(probs, labels)
    whole = intervals(a, replicates=200, groups=groups)
    monkeypatch.setattr(image_sample, "MOST_ROWS", 900)
    sample = image_sample.ImageSample(sizes, 3, 15, 0)
    for start in range(0, len(a.labels), 1000):
        sample.add(a.probs[start : start + 1000], a.labels[start : start + 1000])
    some = sample.intervals(Bootstrap(200), {name: each.value for name, each in whole.items()})
    for name in set(some) - set(NOT_SCALED):
        width, wanted = (each.high - each.low for each in (some[name], whole[name]))
        assert 0.6 < width / wanted < 1.75, (name, width / wanted)
