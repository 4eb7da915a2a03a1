"""Modules of your own beside a recipe in another folder than the working directory."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import replace

import pytest
import torch

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.study import Store, load_recipe, run_study
from avuc.study.data.own import forget
from avuc.study.own import code as own_code

from .test_own_code import MODULE, RECIPE

SMALL = ["study.shifts=[]"]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A recipe and its module in a folder, and an empty working directory; the module is forgotten afterwards."""
    (tmp_path / "work").mkdir()
    (tmp_path / "study").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("_RECIPE_FOLDERS", "_ADDED"):
        monkeypatch.setattr(own_code, name, [])
    (tmp_path / "study" / "own_parts.py").write_text(MODULE)
    (tmp_path / "study" / "recipe.toml").write_text(RECIPE)
    yield tmp_path
    _forget()


def _forget():
    sys.modules.pop("own_parts", None)
    forget()


def study(path, out, *words):
    small = [part for change in SMALL for part in ("--set", change)]
    return main(["study", str(path), "--out", str(out), "--device", "cpu", "--no-report", *small, *words])


def test_found_beside_the_recipe_and_resumed_from_another_folder(elsewhere, monkeypatch, capsys):
    out = elsewhere / "out"
    assert study("../study/recipe.toml", out, "--only", "Vanilla") == 0
    assert str(elsewhere / "study") in sys.path
    _forget()
    monkeypatch.chdir(elsewhere)
    assert study("study/recipe.toml", out) == 0
    _forget()
    monkeypatch.chdir(elsewhere / "study")
    assert study("recipe.toml", out) == 0
    store = Store(out, create=False)
    assert len(store.done()) == 3 * 2
    store.close()
    assert "changed" not in capsys.readouterr().err  # the code is the same


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(("engine", "device"), [("local", "cpu,cpu"), ("ray", "cpu")])
def test_every_engine_finds_it(elsewhere, engine, device):
    if engine == "ray":
        pytest.importorskip("ray")
    recipe = load_recipe("../study/recipe.toml", SMALL)
    store = run_study(recipe, elsewhere / "out", engine=engine, device=device, progress=False)
    assert len(store.done()) == 3 * 2
    store.close()


def test_a_worker_of_ray_looks_there(elsewhere):
    ray = pytest.importorskip("avuc.study.engines.ray")
    recipe = load_recipe("../study/recipe.toml", SMALL)
    folders = os.getcwd(), recipe.code_folder
    given = ({}, {})  # no objects, no digests of the driver's data
    made = ray._worker(recipe.to_toml(), str(elsewhere / "out"), "cpu", torch.get_num_threads(), folders, given, "a")
    assert made.recipe == recipe
    assert own_code.find("own_parts:make_net", "net.name")(3)
    ray._WORKERS.clear()


def test_the_folder_is_no_part_of_the_study(elsewhere):
    recipe = load_recipe("../study/recipe.toml")
    assert recipe.code_folder == str(elsewhere / "study")
    assert replace(recipe, code_folder="") == recipe
    assert "code_folder" not in recipe.to_toml() + recipe.stored_text() + repr(recipe)
    assert pickle.loads(pickle.dumps(recipe)).code_folder == recipe.code_folder
    assert load_recipe("demo").code_folder == ""


def test_the_working_directory_comes_first(elsewhere):
    for name in ("work", "study"):
        (elsewhere / name / "own_parts.py").write_text(f"def where():\n    return {name!r}\n")
    own_code.search_recipe_folder(str(elsewhere / "study"))
    assert own_code.find("own_parts:where", "net.name")() == "work"
    at = sys.path.index(str(elsewhere / "work"))
    assert sys.path[at + 1] == str(elsewhere / "study")
    _forget()
    (elsewhere / "work" / "own_parts.py").unlink()
    for cached in (elsewhere / "work").glob("__pycache__/*"):
        cached.unlink()
    assert own_code.find("own_parts:where", "net.name")() == "study"


def test_a_module_of_another_recipe_is_not_taken(elsewhere):
    """Python keeps modules by their name: without a word the network of the first recipe would be trained."""
    other = elsewhere / "other"
    other.mkdir()
    (other / "own_parts.py").write_text("def make_net():\n    return 'other'\n")
    own_code.search_recipe_folder(str(elsewhere / "study"))
    own_code.find("own_parts:make_net", "net.name")
    own_code.search_recipe_folder(str(other))
    assert str(elsewhere / "study") not in sys.path
    problem = f"net.name: own_parts was imported from {elsewhere / 'study'}, for another recipe; run this one in a new"
    with pytest.raises(InputError) as error:
        own_code.find("own_parts:make_net", "net.name")
    assert str(error.value).startswith(problem)
    own_code.search_recipe_folder("")  # a study from Python
    assert own_code.find("own_parts:make_net", "net.name")
    own_code.search_recipe_folder(str(elsewhere / "study"))
    assert own_code.find("own_parts:make_net", "net.name").__module__ == "own_parts"


def test_the_message_names_both_folders(elsewhere, capsys):
    assert study("../study/recipe.toml", elsewhere / "out", "--set", "net.name=own_part:make_net") == 2
    said = capsys.readouterr().err
    assert f"no module 'own_part' in {os.getcwd()} or {elsewhere / 'study'} or among the installed packages" in said


def test_a_file_with_the_name_of_another_module(elsewhere):
    """Python has imported `queue` already and takes that one."""
    (elsewhere / "work" / "queue.py").write_text("def make_net():\n    return 1\n")
    own_code.search_recipe_folder(str(elsewhere / "study"))
    with pytest.raises(InputError) as error:
        own_code.find("queue:make_net", "net.name")
    assert str(error.value).endswith(f"which hides {elsewhere / 'work' / 'queue.py'}; rename your file")


def test_a_module_that_ends_python(elsewhere):
    (elsewhere / "work" / "own_script.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(InputError, match=r"importing own_script failed: SystemExit: 3 \(own_script.py, line 2"):
        own_code.find("own_script:make_net", "net.name")
