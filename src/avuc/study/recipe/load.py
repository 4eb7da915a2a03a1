"""Recipes from files, or by the name of one that comes with avuc."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from avuc.core.errors import InputError
from avuc.core.files import read_text
from avuc.core.text import did_you_mean
from avuc.study.recipe.config import Recipe
from avuc.study.recipe.parser import TrainingRecipe, parse_recipe, parse_training

# shipped with version 0.1.0; kept in the repository since
IN_REPOSITORY = (
    "auavuc",
    "beta-ablation",
    "cifar10-ablation",
    "cifar10-choice",
    "cifar10-code-pretrained",
    "draws-ablation",
)


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with avuc."""
    folder = resources.files("avuc").joinpath("recipes")
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def recipe_summary(name: str) -> str:
    """Return the first line of a recipe that comes with avuc.

    >>> recipe_summary("demo")
    'nine methods on 5,000 digits, a few minutes on two cores'
    """
    return _shipped(name).partition("\n")[0].removeprefix("# ")


def _shipped(name: str) -> str:
    return resources.files("avuc").joinpath("recipes", f"{name}.toml").read_text(encoding="utf-8")


def load_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Read the recipe of a study. Keys of version 0.1.0 are read too; a line on stderr says their new names.

    An objective of kind "avuc" without a variant is AvUC as printed, "paper"; a line on stderr says so, too. In Python,
    `Objective("avuc")` is "monotone".

    Args:
        name: a .toml file, or the name of a recipe that comes with avuc.
        changes: like "train.epochs=2" or "methods.SVI.objective.beta=1".

    >>> load_recipe("demo", ["study.samples=4"]).study.samples
    4
    """
    source = str(name)
    if source in recipe_names():
        return parse_recipe(_shipped(source), f"{source}.toml", changes, notify=to_stderr)
    try:
        text = read_text(source)
    except (OSError, UnicodeDecodeError) as error:
        if source in IN_REPOSITORY:
            raise InputError(
                f"{source} is not shipped any more; it is reproduction/recipes/{source}.toml in the repository"
            ) from error
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        known = f"{did_you_mean(source, recipe_names())}, or give a .toml file"
        instead = _instead(source) if source.endswith(".toml") else known
        raise InputError(f"{source}: this recipe cannot be read ({reason}); {instead}") from error
    recipe = parse_recipe(text, source, changes, notify=to_stderr)
    return replace(recipe, code_folder=str(Path(source).resolve().parent))


def _instead(source: str) -> str:
    """Return what to give in place of a recipe that cannot be read: a file of the same folder."""
    files = [str(file) for file in sorted(Path(source).parent.glob("*.toml")) if file != Path(source)]
    return did_you_mean(source, files) if files else "give a .toml file"


def load_training(path: str | Path) -> TrainingRecipe:
    """Read the recipe of one training, as `avuc train` takes it, from a .toml file."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"{path}: cannot be read ({reason}); {_instead(str(path))}") from error
    return parse_training(text, str(path), notify=to_stderr)


def to_stderr(line: str) -> None:
    """Print a line about a recipe; under torchrun, only once."""
    if os.environ.get("RANK", "0") == "0":
        print(f"avuc: {line}", file=sys.stderr)
