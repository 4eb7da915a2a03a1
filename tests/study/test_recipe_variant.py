"""In a recipe, an objective without a variant is as printed, as in version 0.1.0; for AvUC the command says so."""

from typing import get_args

import pytest
import torch
from torch import nn

from avuc.cli.app import main
from avuc.core.errors import InputError
from avuc.losses.quadrants import VARIANTS
from avuc.methods import SVI, Objective, Vanilla
from avuc.methods.objective import FAMILY, Kind
from avuc.study import load_recipe
from avuc.study.from_python import Parts, recipe_of
from avuc.study.recipe.load import load_training, recipe_names
from avuc.study.recipe.parser import parse_recipe, parse_training
from avuc.study.store.store import Store
from avuc.training.settings import TrainSettings

ALL = [
    (kind, variant)
    for kind in get_args(Kind)
    for variant in FAMILY.get(kind, VARIANTS)
    if (kind, variant) != ("auavuc", "soft")
]
LINE = 'this recipe uses AvUC as printed; write variant = "monotone" (recommended) or variant = "paper"'
# `stored_text()` of these methods before the default in Python changed
STORED = """\
[[methods]]
name = "plain"
method = {kind = "vanilla"}
objective = {}

[[methods]]
name = "printed"
method = {kind = "vanilla"}
objective = {kind = "avuc"}

[[methods]]
name = "monotone"
method = {kind = "vanilla"}
objective = {kind = "avuc", variant = "monotone"}

[[methods]]
name = "area"
method = {kind = "vanilla"}
objective = {kind = "auavuc", beta = 1.0}
"""
OBJECTIVES = {
    "plain": Objective(),
    "printed": Objective("avuc", variant="paper"),
    "monotone": Objective("avuc"),
    "area": Objective("auavuc", beta=1.0),
}


def recipe(methods):
    """Return a recipe of Python objects."""
    data = {"train": (torch.zeros(20, 2), torch.arange(20) % 2), "test": (torch.zeros(4, 2), torch.arange(4) % 2)}
    return recipe_of(methods, Parts(data, lambda num_classes: nn.Linear(2, num_classes)), TrainSettings(), {})


def user_file(tmp_path, objective, extra=""):
    path = tmp_path / "mine.toml"
    path.write_text(f'[[methods]]\nname = "A"\nmethod = "svi"\nobjective = {objective}\n{extra}')
    return path


@pytest.mark.parametrize(("kind", "variant"), ALL)
def test_a_recipe_that_is_written_and_read_has_the_same_objective(kind, variant, capsys):
    objective = Objective(kind, variant=variant)
    default = Objective(kind)
    made = recipe(
        {"given": {"method": Vanilla(), "objective": objective}, "default": {"method": SVI(), "objective": default}}
    )
    assert made.method("given").objective == objective
    for text in (made.to_toml(), made.stored_text()):
        again = parse_recipe(text)
        assert again == made
        assert again.method("given").objective.identity() == objective.identity()
        assert again.method("default").objective.identity() == default.identity()
    table = f'kind = "{kind}"\nvariant = "{variant}"'
    assert parse_training(f"[objective]\n{table}").objective == objective
    assert not capsys.readouterr().err


def test_stored_texts_are_those_of_older_versions():
    read = parse_recipe(STORED)
    assert {method.name: method.objective for method in read.methods} == OBJECTIVES
    assert read.stored_text().endswith("\n" + STORED)
    made = recipe({name: {"method": Vanilla(), "objective": objective} for name, objective in OBJECTIVES.items()})
    assert made.stored_text().endswith("\n" + STORED)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_without_a_variant_every_kind_of_a_recipe_is_as_printed(kind):
    expected = Objective(kind, variant="paper")
    for value in (f'"{kind}"', f'{{kind = "{kind}"}}'):
        assert (
            parse_recipe(f'[[methods]]\nname = "A"\nmethod = "svi"\nobjective = {value}').methods[0].objective
            == expected
        )
    assert parse_training(f'[objective]\nkind = "{kind}"').objective == expected
    words = recipe({"A": {"method": "svi", "objective": kind}, "B": {"method": "svi", "objective": {"kind": kind}}})
    assert [method.objective for method in words.methods] == [expected, expected]


@pytest.mark.parametrize("objective", ['"avuc"', '{kind = "avuc"}', '{kind = "avuc", beta = 1}'])
def test_a_users_recipe_without_a_variant_is_one_line(objective, tmp_path, capsys):
    path = user_file(tmp_path, objective, f'[[methods]]\nname = "B"\nmethod = "svi"\nobjective = {objective}\n')
    read = load_recipe(path)
    assert read.method("A").objective.variant == "paper"
    expected = f"avuc: {path}: methods.A.objective, methods.B.objective: {LINE}\n"
    assert capsys.readouterr().err == expected
    load_recipe(path, ["methods.A.objective.variant=monotone", "methods.B.objective.variant=paper"])
    assert not capsys.readouterr().err


@pytest.mark.parametrize("objective", ['{kind = "avuc", variant = "paper"}', '"auavuc"', '"plain"', "{beta = 1}"])
def test_other_recipes_are_silent(objective, tmp_path, capsys):
    load_recipe(user_file(tmp_path, objective))
    assert not capsys.readouterr().err


def test_our_recipes_name_the_variant(capsys):
    for name in recipe_names():
        load_recipe(name)
    assert not capsys.readouterr().err
    load_recipe("demo", ["methods.SVI.objective.kind=avuc"])
    assert capsys.readouterr().err == f"avuc: demo.toml: methods.SVI.objective: {LINE}\n"


def test_the_commands_say_so(tmp_path, monkeypatch, capsys):
    path = tmp_path / "train.toml"
    path.write_text('[data]\nname = "nothing-here"\n[objective]\nkind = "avuc"\n')
    assert load_training(path).objective == Objective("avuc", variant="paper")
    assert capsys.readouterr().err == f"avuc: {path}: objective: {LINE}\n"
    monkeypatch.setenv("RANK", "1")  # under torchrun, the first process says it
    load_training(path)
    assert not capsys.readouterr().err
    monkeypatch.delenv("RANK")
    study = user_file(tmp_path, '"avuc"')
    assert main(["study", str(study), "--only", "nobody", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"avuc: {study}: methods.A.objective: {LINE}"


def test_a_bad_recipe_stays_one_line(tmp_path, capsys):
    study = user_file(tmp_path, '{kind = "avuc", betta = 1}')
    assert main(["study", str(study)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    path = tmp_path / "train.toml"
    path.write_text('[objective]\nkind = "avuc"\n[train]\nepoch = 2\n')
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_starter_names_the_variant(tmp_path, capsys):
    assert main(["study", "--init", str(tmp_path / "mine")]) == 0
    capsys.readouterr()
    assert 'kind = "avuc", beta = 3.0, variant = "monotone"' in (tmp_path / "mine" / "recipe.toml").read_text()
    assert load_recipe(tmp_path / "mine" / "recipe.toml").method("SVI-AvUC").objective.variant == "monotone"
    assert not capsys.readouterr().err


def test_a_stored_study_is_read_without_a_line(tmp_path, capsys):
    stored = parse_recipe(STORED)
    store = Store(tmp_path)
    store.adopt(stored)
    store.adopt(parse_recipe(STORED))  # resumes it
    assert store.recipe() == stored
    assert store.recipe().method("printed").objective.variant == "paper"
    changed = parse_recipe(STORED.replace('{kind = "avuc"}', '{kind = "avuc", variant = "monotone"}'))
    with pytest.raises(InputError, match=r"printed.objective.variant was 'paper', now 'monotone'"):
        store.adopt(changed)
    store.close()
    assert not capsys.readouterr().err


def test_objects_are_not_words(capsys):
    recipe({"A": {"method": SVI(), "objective": Objective("avuc", variant="paper")}})
    assert not capsys.readouterr().err
    recipe({"A": {"method": SVI(), "objective": "avuc"}})
    assert capsys.readouterr().err == f"avuc: avuc.study.run: methods.A.objective: {LINE}\n"


def test_a_recipe_that_is_written_names_the_variant(capsys, tmp_path):
    """So that running a written recipe again prints no line about it; what a study stores keeps its text."""
    text = '[data]\nsource = "mnist5k"\n[[methods]]\nname = "a"\nmethod = "vanilla"\nobjective = { kind = "avuc" }\n'
    recipe = parse_recipe(text)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert 'variant = "paper"' in path.read_text(encoding="utf-8")
    assert "variant" not in recipe.stored_text()
    assert load_recipe(path) == recipe
    assert capsys.readouterr().err == ""
