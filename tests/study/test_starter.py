"""`avuc study --init`: what it writes runs as it is."""

from __future__ import annotations

import shlex
import sys

import pytest

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.study import Store, load_recipe
from avuc.study.data.own import forget
from avuc.study.recipe.starter import write_starter


def test_init_writes_a_study_that_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["study", "--init", "my-study"]) == 0
    assert "cd my-study && avuc study recipe.toml" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "my-study")
    small = ["study.seeds=[0]", "study.samples=4", "study.severities=[5]", "train.epochs=4", "train.milestones=[3]"]
    changes = [part for change in small for part in ("--set", change)]
    assert main(["study", "recipe.toml", "--device", "cpu", *changes]) == 0
    store = Store("out/my-study", create=False)
    found = {row[:5]: row[5] for row in store.rows()}
    assert len(store.done()) == 3 * 4
    assert found["Vanilla", 0, "clean", 0, "accuracy"] > found["Vanilla", 0, "my_study:rain", 5, "accuracy"] > 0.25
    assert (tmp_path / "my-study" / "out" / "my-study" / "report.html").exists()
    sys.modules.pop("my_study")
    forget()


def test_init_overwrites_nothing(tmp_path, capsys):
    write_starter(tmp_path / "a")
    with pytest.raises(InputError, match="there is such a file already"):
        write_starter(tmp_path / "a")
    assert main(["study", "demo", "--init", str(tmp_path / "b")]) == 2
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", ["2nd try", "class-α", 'a"b', "x.y"])
def test_any_folder_name_gives_a_recipe_that_can_be_read(tmp_path, name):
    recipe, module = write_starter(tmp_path / name)
    assert load_recipe(recipe).net.name == f"{module.stem}:make_net"
    assert module.stem.isidentifier()


def test_the_next_command_can_be_pasted(tmp_path, capsys):
    folder = tmp_path / "a study; of mine"
    assert main(["study", "--init", str(folder)]) == 0
    assert shlex.split(capsys.readouterr().out.split("next: cd ")[1])[0] == str(folder)
