"""Data of one's own that come with a validation split, and lie in a folder."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from avuc.core.errors import InputError
from avuc.data import split_dataset
from avuc.data.tensors import TensorData
from avuc.methods import Vanilla
from avuc.study import load_recipe, run
from avuc.study.data.sets import StudyData
from avuc.study.grid import VALIDATION
from avuc.study.recipe.parser import parse_recipe
from avuc.study.trial.run import try_own_code

SIZES = {"train": 30, "val": 7, "test": 9}
RECIPE = """
[study]
shifts = []
[data]
source = "own_splits:load"
root = "{root}"
validation_split = "val"
[net]
name = "own_splits:make_net"
[train]
epochs = 1
[[methods]]
name = "Plain"
method = "vanilla"
"""
MODULE = """
from pathlib import Path

import torch
from torch import nn

def load(split, root):
    count = {"train": 30, "val": 7, "test": 9}[split]
    first = int(Path(root, "first.txt").read_text())
    return torch.full((count, 3), float(count + first)), torch.arange(count) % 2

def make_net(num_classes):
    return nn.Linear(3, num_classes)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_splits.py").write_text(MODULE)
    (tmp_path / "first.txt").write_text("100")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(root=tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_splits", raising=False)
    return tmp_path


def test_the_split_is_held_out_and_all_training_data_train(folder):
    data = StudyData(load_recipe("recipe.toml"), torch.device("cpu"))
    assert [len(data.train(4, 0)), len(data.validation), len(data.test)] == list(SIZES.values())
    assert data.validation.inputs.unique().tolist() == [107.0]
    assert data.train(4, 0).inputs.unique().tolist() == [130.0]
    assert data.images(VALIDATION) is data.validation
    fewer = StudyData(load_recipe("recipe.toml", ["data.train_images=12"]), torch.device("cpu"))
    assert (fewer.num_train, len(fewer.validation)) == (12, 7)


def test_half_of_it_is_evaluated_in_rehearsals(folder):
    data = StudyData(load_recipe("recipe.toml", ["data.evaluate_on_validation=true"]), torch.device("cpu"))
    assert (len(data.validation), len(data.test)) == (3, 4)


def test_the_recipe_survives_and_moves(folder):
    recipe = load_recipe("recipe.toml")
    assert parse_recipe(recipe.stored_text()) == recipe
    assert "validation_split" not in load_recipe("demo").stored_text()


def test_messages(folder):
    with pytest.raises(InputError, match="own_splits:load needs the folder of the data; set"):
        try_own_code(load_recipe("recipe.toml", ["data.root="]))
    with pytest.raises(InputError, match="validation_split is for a source of your own"):
        load_recipe("demo", ["data.validation_split=val"])
    assert try_own_code(load_recipe("recipe.toml"))
    too_many = load_recipe("recipe.toml", ["data.validation_split=", "data.validation=5000"])
    with pytest.raises(InputError, match=r"cannot hold out 5000 of 30 examples; .*; set data\.validation$"):
        _ = StudyData(too_many, torch.device("cpu")).validation


def test_objects_in_place_of_names(tmp_path):
    """A mapping of splits may have "validation" as a third one."""
    data = {name: (torch.randn(count, 3), torch.arange(count) % 2) for name, count in SIZES.items()}
    data["validation"] = data.pop("val")
    given = {"methods": {"V": Vanilla()}, "net": lambda num_classes: nn.Linear(3, num_classes), "progress": False}
    store = run(data=data, out=tmp_path, device="cpu", shifts=[], **given)
    assert store.recipe().data.validation_split == "validation"
    assert store.select("SELECT shift, rows FROM cells ORDER BY shift") == [("clean", 9), ("validation", 7)]


def test_labels_of_tokens_cannot_be_stratified():
    """They ended in an IndexError of torch."""
    tokens = TensorData(torch.zeros(6, 4), torch.zeros(6, 4, dtype=torch.int64), num_classes=2)
    with pytest.raises(InputError, match=r"stratified needs one label for each example, found \(6, 4\)"):
        split_dataset(tokens, 2, seed=0, stratified=True)
    assert len(split_dataset(tokens, 2, seed=0).held_out) == 2
    recipe = parse_recipe(RECIPE.replace('validation_split = "val"', "validation = 2\nstratified = true"))
    data = StudyData(recipe, torch.device("cpu"))
    data._load = lambda split: tokens
    with pytest.raises(InputError, match=r"^data.stratified: needs one label for each example"):
        data.train(2, 0)
