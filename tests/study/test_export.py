"""The small copy of a study."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import platform
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.report.study.results import read_results
from avuc.study import Store, load_recipe, run_study
from avuc.study.recipe.load import parse_recipe
from avuc.study.recipe.portable import portable_tables
from avuc.study.recipe.toml import document
from avuc.study.store.export import export_study
from avuc.study.store.integrity import check


@pytest.fixture(scope="module")
def exported(undisturbed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "results"
    export_study(undisturbed, folder)
    return folder


def digest(folder):
    return hashlib.sha256((folder / "study.sqlite").read_bytes()).hexdigest()


def test_it_is_small_and_whole(undisturbed, exported, recipe):
    assert sorted(path.name for path in exported.iterdir()) == ["recipe.toml", "study.sqlite"]
    assert parse_recipe((exported / "recipe.toml").read_text(encoding="utf-8")) == parse_recipe(
        document(portable_tables(recipe.tables()))
    )
    source, copy = Store(undisturbed, create=False), Store(exported, create=False)
    assert copy.db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    for query in ("rows", "cells", "models", "history", "calibrators", "entropies", "gallery"):
        everything = f"SELECT * FROM {query}"
        assert copy.select(everything) == source.select(everything), query
    runs = "SELECT id, started, finished, seconds, engine, device, versions, revision, hardware FROM runs"
    assert copy.select(runs) == source.select(runs)
    details = copy.shown("Vanilla", 0, "contrast", 5)
    whole = source.shown("Vanilla", 0, "contrast", 5)
    assert details == {**whole, "mistakes": []}
    near, exact = (one.curves("SVI", 0, "contrast", 5) for one in (copy, source))
    assert near["entropy"]["right"] == exact["entropy"]["right"]
    for ours, theirs in zip(near["avu"]["avu"], exact["avu"]["avu"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    source.close()
    copy.close()


def test_reports_read_it_and_leave_it_alone(exported, tmp_path, capsys):
    before = digest(exported)
    assert main(["report", str(exported), "--out", str(tmp_path / "page.html"), "--no-exports"]) == 0
    assert "SVI-AvUTS" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert digest(exported) == before
    assert sorted(path.name for path in exported.iterdir()) == ["recipe.toml", "study.sqlite"]


def test_single_images_of_first_seeds_only(recipe_file, tmp_path):
    changes = ["study.seeds=[3, 1]", "train.epochs=1", 'study.shifts=["contrast"]', "study.severities=[5]"]
    recipe = load_recipe(recipe_file, changes)
    run_study(recipe, tmp_path / "study", device="cpu", progress=False, only=["Vanilla"]).close()
    export_study(tmp_path / "study", tmp_path / "copy")
    copy = Store(tmp_path / "copy", create=False)
    assert {row[0] for row in copy.select("SELECT DISTINCT seed FROM shown")} == {1}
    assert {row[0] for row in copy.select("SELECT DISTINCT seed FROM cells")} == {1, 3}
    assert read_results(copy).examples
    copy.close()


def test_single_images_of_a_seed_are_kept_until_a_smaller_one_has_them(undisturbed, tmp_path):
    """A new, smaller seed was evaluated on clean images only: the rest of what the report shows is of the old one."""
    folder = tmp_path / "grown"
    shutil.copytree(undisturbed, folder)
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite", isolation_level=None)) as db:
        for table in ("cells", "rows", "curves", "shown"):
            db.execute(f"DELETE FROM {table} WHERE seed != 0")
            db.execute(f"UPDATE {table} SET seed = 5")
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "seed"]
            columns = ", ".join(names)
            db.execute(
                f"INSERT INTO {table}(seed, {columns}) SELECT 0, {columns} FROM {table} "
                "WHERE shift IN ('validation', 'clean')"
            )
        check(db)
    export_study(folder, tmp_path / "results")
    shown = []
    for each in (folder, tmp_path / "results"):
        store = Store(each, create=False)
        shown.append(set(read_results(store).examples))
        store.close()
    assert shown[0] == shown[1]


def test_a_copy_goes_on(recipe_file, exported, tmp_path, capsys):
    """It is a study: a new row is added to it like to any other."""
    shutil.copytree(exported, tmp_path / "copy")
    grown = load_recipe(recipe_file, ['study.ood=["photographs"]', "study.severities=[1, 3, 5]"])
    store = run_study(grown, tmp_path / "copy", device="cpu", progress=True, only=["Vanilla"])
    assert "training Vanilla (seed 0): 1 of 1\n" in capsys.readouterr().err  # of those that were asked for
    assert ("Vanilla", 0, "contrast", 3) in store.done()
    assert "auroc" in {row[4] for row in store.rows() if row[:4] == ("Vanilla", 0, "contrast", 3)}
    store.close()


def test_command(undisturbed, tmp_path, capsys):
    assert main(["study", "--export", str(undisturbed), "--out", str(tmp_path / "copy")]) == 0
    assert "MB in" in capsys.readouterr().out
    assert main(["study", "--export", str(undisturbed), "--out", str(undisturbed)]) == 2
    assert "is the study itself" in capsys.readouterr().err
    assert main(["study", "--export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "copy")]) == 2
    assert "no study here" in capsys.readouterr().err
    assert main(["study", "demo", "--export", str(undisturbed)]) == 2
    assert "give no recipe with it" in capsys.readouterr().err


def test_a_file_that_is_no_study(tmp_path):
    (tmp_path / "study.sqlite").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(InputError, match="not a database"):
        Store(tmp_path, create=False)


def test_no_path_of_this_machine_is_published(recipe_file, digits_file, tmp_path, capsys):
    """Not in the file (its free pages included), not beside it, not in its report, nor in that of the study itself."""
    other = tmp_path / "somebody" / "others.npy"
    other.parent.mkdir()
    with np.load(digits_file) as arrays:
        np.save(other, arrays["x_test"][:20])
    changes = [f'study.ood=["{other}", {{name="more", path="{other}", first=5}}]', "train.epochs=1", "study.shifts=[]"]
    run_study(
        load_recipe(recipe_file, changes), tmp_path / "study", device="cpu", progress=False, only=["Vanilla"]
    ).close()
    assert main(["study", "--export", str(tmp_path / "study"), "--out", str(tmp_path / "copy")]) == 0
    for name, folder in (("copy", tmp_path / "copy"), ("study", tmp_path / "study")):
        page = tmp_path / "pages" / f"{name}.html"
        page.parent.mkdir(exist_ok=True)
        assert main(["report", str(folder), "--out", str(page)]) == 0
    secrets = [str(tmp_path), str(digits_file.parent), str(Path.home()) + "/"]
    secrets += [name for name in (getpass.getuser(), platform.node()) if len(name) > 5]  # shorter ones are words, too
    files = [path for folder in ("copy", "pages") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert len(files) > 30
    for path in files:
        content = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in content], path
    assert b'path = "<data>/others.npy"' in (tmp_path / "copy" / "recipe.toml").read_bytes()


def test_a_copy_of_a_study_of_version_0_1_0(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "old")
    with sqlite3.connect(tmp_path / "old" / "study.sqlite") as db:
        db.execute("DROP TABLE checks")
        db.execute("DROP TABLE data")
        db.execute("DELETE FROM meta WHERE key='checks'")
    db.close()
    export_study(tmp_path / "old", tmp_path / "copy")
    copy = Store(tmp_path / "copy", create=False)
    assert not copy.lost
    assert len(copy.done()) == 49
    copy.close()
