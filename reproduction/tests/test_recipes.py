"""The recipes of the reproduction that are not shipped in the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from avuc.study.recipe.load import load_recipe

FOLDER = Path(__file__).parents[1] / "recipes"
RECIPES = sorted(FOLDER.glob("*.toml"))
SWITCHES = [FOLDER / "code-49500.toml", FOLDER / "code-switches.toml"]
OWN = ("name", "seeds", "train", "objective", "start")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_read(path):
    assert load_recipe(path).methods


@pytest.mark.parametrize("path", SWITCHES, ids=lambda path: path.stem)
def test_everything_but_the_switch_is_cifar10_code(path):
    """The rows differ from those of cifar10-code in what their names say, and in nothing else."""
    base, recipe = load_recipe("cifar10-code"), load_recipe(path)
    assert recipe.net == base.net
    assert recipe.train == base.train
    for row in recipe.methods:
        if row.name == "Vanilla":
            continue
        same = base.row(row.name.partition(",")[0])
        assert row.method == same.method
        assert set(recipe.seeds(row)) <= set(base.seeds(same))
        differs = {key for key in OWN[2:] if getattr(row, key) != getattr(same, key)}
        expected = {
            "new Adam each epoch": {"train"},
            "best epoch": {"train"},
            "threshold 1": {"objective"},
            "trained start": {"start"},
            "": set(),
        }
        assert differs == expected[row.name.partition(", ")[2]], row.name


def test_switches():
    recipe = load_recipe(SWITCHES[1])
    assert recipe.row("SVI, new Adam each epoch").train.reset_optimizer
    assert recipe.row("SVI-AvUC, best epoch").train.keep == "best_accuracy"
    assert load_recipe(SWITCHES[0]).data.validation == 500
