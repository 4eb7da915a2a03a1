"""Splits: by seed, stratified, stored and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.data.arrays import Dataset
from avuc.data.split import Split, split_dataset


def dataset(labels: list[int] | torch.Tensor, classes: int = 10) -> Dataset:
    targets = torch.as_tensor(labels, dtype=torch.int64)
    images = torch.arange(len(targets)).remainder(256).to(torch.uint8).view(-1, 1, 1, 1)
    return Dataset(images, targets, classes, "toy")


def test_the_papers_split() -> None:
    data = dataset(torch.arange(50_000) % 10)
    split = split_dataset(data, 5000, seed=1)
    train, validation = split.apply(data)
    assert (len(train), len(validation)) == (45_000, 5000)
    assert torch.equal(torch.cat([split.kept, split.held_out]).sort().values, torch.arange(50_000))
    assert not torch.equal(split.held_out, split_dataset(data, 5000, seed=2).held_out)
    assert torch.equal(split.held_out, split_dataset(data, 5000, seed=1).held_out)
    assert torch.equal(split.held_out, split_dataset(data, 0.1, seed=1).held_out)
    balanced = split_dataset(data, 5000, seed=1, stratified=True)
    assert data.labels[balanced.held_out].bincount().tolist() == [500] * 10


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=80),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
    stratified=st.booleans(),
)
def test_any_split(labels: list[int], share: float, seed: int, stratified: bool) -> None:
    data = dataset(labels, 5)
    count = 1 + int(share * (len(labels) - 2))
    split = split_dataset(data, count, seed=seed, stratified=stratified)
    assert sorted([*split.kept.tolist(), *split.held_out.tolist()]) == list(range(len(labels)))
    assert len(split.held_out) == count
    if stratified:
        for label in set(labels):
            quota = labels.count(label) * count / len(labels)
            assert abs(int((data.labels[split.held_out] == label).sum()) - quota) < 1
    again = Split.from_json(split.to_json())
    for field in ("n", "seed", "stratified", "labels_sha256"):
        assert getattr(again, field) == getattr(split, field)
    assert torch.equal(again.held_out, split.held_out)
    assert again.to_json() == split.to_json()


def test_every_image_is_as_likely_as_any_other() -> None:
    data = dataset(torch.arange(20) % 2)
    counts = sum(np.bincount(split_dataset(data, 5, seed=s).held_out, minlength=20) for s in range(2000))
    assert abs(counts / 2000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2000)


@pytest.mark.parametrize("held_out", [0, -1, 10, 11, 0.0, 0.01])
def test_impossible_sizes(held_out: Any, refused: Callable[..., str]) -> None:
    assert "expected between 1 and 9" in refused(split_dataset, dataset(torch.arange(10)), held_out, seed=0)


def test_another_set_is_refused(refused: Callable[..., str]) -> None:
    data = dataset(torch.arange(10) % 3)
    split = split_dataset(data, 4, seed=0)
    assert "made for another set" in refused(split.apply, dataset(torch.arange(11) % 3))
    assert "made for another set" in refused(split.apply, data.subset([1, 0, *range(2, 10)]))
    assert len(split.apply(data)[0]) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"held_out": [1, 2, 4]},
        {"held_out": [2, 1, 3]},
        {"held_out": [1, 1, 3]},
        {"held_out": [1, 2, 99]},
        {"held_out": [-1, 2, 3]},
        {"held_out": ["1"]},
        {"held_out": 3},
        {"n": 2},
        {"n": None},
        {"held_out_sha256": "0"},
        {"stratified": "no"},
        {"labels_sha256": 3},
    ],
)
def test_a_changed_record_is_refused(change: dict[str, Any], refused: Callable[..., str]) -> None:
    record = json.loads(split_dataset(dataset(torch.arange(10) % 3), 3, seed=0).to_json())
    assert "make it again" in refused(Split.from_json, json.dumps(record | change))
    for text in ("", "{}", "[1]", "null", json.dumps(record)[:-5]):
        refused(Split.from_json, text)
