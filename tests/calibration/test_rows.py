"""Folds are stratified by label; rows of a group stay together; samples keep whole groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avuc.calibration.rows import Rows


def rows(labels: list[int], groups: list[int] | None = None) -> Rows:
    return Rows(
        torch.zeros(len(labels), 3), torch.tensor(labels), None, None if groups is None else torch.tensor(groups)
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=5, max_size=60), st.integers(2, 5), st.integers(0, 9))
def test_every_label_is_in_all_folds_alike(labels: list[int], folds: int, seed: int) -> None:
    parts = rows(labels).parts(folds, seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for label in set(labels):
        counts = [sum(labels[row] == label for row in part.tolist()) for part in parts]
        assert max(counts) - min(counts) <= 1


def test_other_seeds_give_other_folds() -> None:
    labels = [0, 1] * 30
    one, same, other = (rows(labels).parts(3, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_rows_of_one_group_are_held_out_together() -> None:
    groups = [row // 7 for row in range(100)]
    parts = rows([0] * 100, groups).parts(5, 0)
    assert sorted(torch.cat(parts).tolist()) == list(range(100))
    for one in parts:
        others = {groups[row] for other in parts if other is not one for row in other.tolist()}
        assert not {groups[row] for row in one.tolist()} & others


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_stratified_by_their_most_frequent_label(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(30), 5)).tolist()
    kind = [0 if group < 6 else 1 for group in groups]  # a fifth of the groups
    labels = [label if rng.random() < 0.9 else 2 for label in kind]
    frequent = {}
    for group in range(30):
        found = [label for label, of in zip(labels, groups, strict=True) if of == group]
        frequent[group] = max(set(found), key=found.count)
    for label in (0, 1):
        counts = []
        for part in rows(labels, groups).parts(3, seed):
            counts.append(sum(frequent[group] == label for group in {groups[row] for row in part.tolist()}))
        assert max(counts) - min(counts) <= 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=80), st.integers(1, 40), st.integers(0, 9))
def test_samples_have_the_same_share_of_each_label(labels: list[int], most: int, seed: int) -> None:
    found = rows(labels).sample(most, seed)
    assert len(found) == min(most, len(labels))
    kept, all_of = (torch.bincount(each, minlength=4) for each in (found.labels, torch.tensor(labels)))
    share = kept / all_of.clamp(min=1)
    for label in set(labels):
        for other in set(labels):
            # taking one place more of `label` is fair only if `other` has its share, too
            assert (kept[label] - 1) / all_of[label] <= share[other] + 1e-6
    if most >= len(set(labels)):
        assert set(found.labels.tolist()) == set(labels)


def test_samples_of_groups_are_stratified_by_their_most_frequent_label() -> None:
    groups = [row // 4 for row in range(400)]
    labels = [int(group % 10 == 0) if row % 4 else 2 for row, group in enumerate(groups)]  # 10 groups of 100 are of 1
    for seed in range(5):
        found = rows(labels, groups).sample(200, seed)
        assert len(found) == 200  # 50 whole groups
        assert len(set(found.groups.tolist())) == 50
        assert int((found.labels == 1).sum()) == 5 * 3
