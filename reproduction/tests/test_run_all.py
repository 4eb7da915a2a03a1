"""What `make reproduce` runs, study by study."""

from __future__ import annotations

import sys
from pathlib import Path

import past
import pytest
import run_all

from avuc.core.errors import InputError
from avuc.study.recipe.load import load_recipe

HOME = Path(__file__).parents[2]
OOD = '["svhn", "a.npy"]'


@pytest.fixture
def calls(monkeypatch):
    """The commands that would run, without Python."""
    found: list[list[str]] = []

    class Done:
        returncode = 0

    def run(command, **_):
        assert command[0] == sys.executable
        found.append(command[1:])
        return Done()

    monkeypatch.setattr(run_all.subprocess, "run", run)
    return found


@pytest.mark.parametrize("name", run_all.RECIPES)
def test_each_study_runs_a_recipe_that_exists(name, calls, monkeypatch, tmp_path):
    monkeypatch.setattr(past, "choose", lambda folder: "MOPED 0.2 + cautious")
    out = str(tmp_path / "out")
    arguments = ["--data", str(tmp_path), "--out", out, "--only", name, "--ood", OOD, "--minutes", "9"]
    assert run_all.main([*arguments, "--", "--set", "train.epochs=1", "--no-report"]) == 0
    for command in calls:
        recipe = command[3] if command[1] == "avuc" else command[1]
        changes = [command[place + 1] for place, part in enumerate(command) if part == "--set"]
        loaded = load_recipe(HOME / recipe if "/" in recipe else recipe, changes)
        assert loaded.data.root == str(tmp_path)
        assert loaded.train.epochs == 1
        if loaded.data.evaluate_on_validation:
            assert name in run_all.HELD_OUT
        else:
            assert [other.name for other in loaded.study.others] == ["svhn", "a"]
        named = {command[place + 1] for place, part in enumerate(command) if part == "--only"}
        assert named <= {method.name for method in loaded.methods}
    last = calls[-1]
    assert last[:5] == ["-m", "avuc", "study", run_all.RECIPES[name], "--out"]
    assert last[last.index("--minutes") + 1] == "9.0"
    assert len(calls) == (3 if name in run_all.MEMBERS else 1)


def test_only_the_chosen_method_and_its_opponents_are_evaluated(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(past, "choose", lambda folder: "MOPED 0.2 + cautious")
    run_all.main(["--data", str(tmp_path), "--out", str(tmp_path), "--only", "past"])
    named = [calls[-1][place + 1] for place, part in enumerate(calls[-1]) if part == "--only"]
    networks = ["SGD", "SGD + TS", "MOPED 0.2", "MOPED 0.2 + TS", "MOPED 0.2 + cautious"]
    assert named == [*networks, "Dropout", "Dropout + TS", "Ensemble", "Ensemble + TS"]
    assert past.evaluated("SGD + TS")[:3] == ["SGD", "SGD + TS", "Dropout"]


def test_the_first_study_that_stops_ends_it(monkeypatch, tmp_path):
    codes = iter([0, 75, 0])

    class Done:
        def __init__(self) -> None:
            self.returncode = next(codes)

    monkeypatch.setattr(run_all.subprocess, "run", lambda command, **_: Done())
    assert run_all.main(["--data", str(tmp_path), "--out", str(tmp_path)]) == 75
    assert next(codes) == 0  # the third was not begun
    with pytest.raises(InputError, match="no such folder"):
        run_all.main(["--data", str(tmp_path / "none"), "--out", str(tmp_path)])
