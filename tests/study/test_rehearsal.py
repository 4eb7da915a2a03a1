"""Choosing between recipes without opening the test data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from avuc.core.errors import InputError
from avuc.study import load_recipe
from avuc.study.data.sets import StudyData
from avuc.study.recipe.sections import DataConfig


def test_the_held_out_images_stand_for_the_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    load = StudyData._load
    monkeypatch.setattr(StudyData, "_load", lambda self, split: (opened.append(split), load(self, split))[1])
    recipe = load_recipe("demo", ["data.validation=301", "data.test_images=0"])
    usual = StudyData(recipe, torch.device("cpu"))
    data = StudyData(replace(recipe, data=replace(recipe.data, evaluate_on_validation=True)), torch.device("cpu"))
    assert (len(data.validation), len(data.test)) == (150, 151)
    assert opened == ["train"]
    together = [image.tolist() for half in (data.validation, data.test) for image in half.images]
    assert sorted(together) == sorted(usual.validation.images.tolist())
    assert data.num_train == usual.num_train


def test_both_halves_have_all_classes_if_the_data_are_in_the_order_of_their_classes() -> None:
    recipe = load_recipe("demo", ["data.validation=301", "data.test_images=0", "data.evaluate_on_validation=true"])
    data = StudyData(recipe, torch.device("cpu"))
    assert (data._split[1].labels.diff() >= 0).all()  # sorted
    counts = [half.labels.bincount(minlength=10) for half in (data.validation, data.test)]
    assert int((counts[0] - counts[1]).abs().max()) <= 1


def test_halves_of_mixed_data_are_the_first_and_the_second_half() -> None:
    recipe = load_recipe("demo", ["data.validation=301", "data.test_images=0", "data.evaluate_on_validation=true"])
    data = StudyData(recipe, torch.device("cpu"))
    held = data._split[1]
    mixed = held.subset(torch.randperm(len(held), generator=torch.Generator().manual_seed(0)))
    data._split = data._split[0], mixed
    together = torch.cat([data.validation.images, data.test.images])
    assert torch.equal(together, mixed.images)


@pytest.mark.parametrize("other", [{"stream": True}, {"corruptions_dir": str(Path("x"))}, {"validation": 1}])
def test_what_a_rehearsal_needs(other: dict[str, object]) -> None:
    with pytest.raises(InputError, match="evaluate_on_validation"):
        DataConfig(evaluate_on_validation=True, **other)  # type: ignore[arg-type]
