"""Choosing between recipes without opening the test data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from avuc.core.errors import InputError
from avuc.study import load_recipe
from avuc.study.sections import DataConfig
from avuc.study.sets import StudyData


def test_the_held_out_images_stand_for_the_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    load = StudyData._load
    monkeypatch.setattr(StudyData, "_load", lambda self, split: (opened.append(split), load(self, split))[1])
    recipe = load_recipe("demo", ["data.validation=301", "data.test_images=0"])
    usual = StudyData(recipe, torch.device("cpu"))
    data = StudyData(replace(recipe, data=replace(recipe.data, evaluate_on_validation=True)), torch.device("cpu"))
    assert (len(data.validation), len(data.test)) == (150, 151)
    assert opened == ["train"]
    together = torch.cat([data.validation.images, data.test.images])
    assert torch.equal(together, usual.validation.images)
    assert data.num_train == usual.num_train


@pytest.mark.parametrize("other", [{"stream": True}, {"corruptions_dir": str(Path("x"))}, {"validation": 1}])
def test_what_a_rehearsal_needs(other: dict[str, object]) -> None:
    with pytest.raises(InputError, match="evaluate_on_validation"):
        DataConfig(evaluate_on_validation=True, **other)  # type: ignore[arg-type]
