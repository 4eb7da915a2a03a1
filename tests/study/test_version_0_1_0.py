"""A study that version 0.1.0 began and that was killed half-way: it resumes, finishes and is reported.

fixtures/0.1.0 was made by the release commit f3a01ed: `avuc study recipe.toml --out study --device cpu --no-report`,
first with `--only Vanilla`, then without, killed after the first epoch of SVI. Vanilla is trained, Vanilla and TS are
evaluated on every set, SVI has a checkpoint of one epoch of twelve and no evaluation.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from avuc.cli import main
from avuc.study import Store, load_recipe
from avuc.study.recipe.parser import parse_recipe

FIXTURE = Path(__file__).parent / "fixtures" / "0.1.0"
UNCHANGED = ("cells", "rows", "curves", "calibrators", "entropies", "shown", "models", "history")


def content(folder: Path) -> dict[str, set]:
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite")) as db:
        return {table: set(db.execute(f"SELECT * FROM {table}")) for table in (*UNCHANGED, "meta", "runs", "gallery")}


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the fixture; the recipe names its data by a relative path."""
    shutil.copytree(FIXTURE, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work" / "study"


def test_it_resumes_finishes_and_reports(old, capsys):
    before = content(old)
    assert len(before["cells"]) == 8
    assert main(["study", "recipe.toml", "--out", "study", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "'of' is now 'reuse_model'; the old key still works" in said.err
    assert "training SVI" in said.err
    assert "training Vanilla" not in said.err
    after = content(old)
    for table in UNCHANGED:  # with the number of the run and the seconds it took: nothing was computed again
        assert before[table] <= after[table], table
    assert len(after["cells"]) == 3 * 4
    assert {row[0] for row in after["cells"] - before["cells"]} == {"SVI"}
    # the training went on after its first epoch, which the old version had computed
    epochs = [row for row in after["history"] if row[0] == "SVI"]
    assert len(epochs) == 12
    assert (old / "report.html").is_file()
    assert "12 evaluations in study/study.sqlite" in said.out


def test_the_finished_epoch_is_not_trained_again(old):
    log = (old / "models" / "svi-0" / "log.jsonl").read_text().splitlines()
    assert len(log) == 1
    assert main(["study", "recipe.toml", "--out", "study", "--device", "cpu", "--no-report"]) == 0
    resumed = (old / "models" / "svi-0" / "log.jsonl").read_text().splitlines()
    assert resumed[0] == log[0]  # with the seconds that it took then
    assert len(resumed) == 12


def test_a_half_finished_study_is_reported_as_it_is(old, capsys):
    before = (old / "study.sqlite").read_bytes()
    assert main(["report", "study", "--out", "page.html", "--no-exports"]) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "4 results of the recipe are still missing" in page
    assert "reuse_model" in page
    assert (old / "study.sqlite").read_bytes() == before
    capsys.readouterr()


def test_new_studies_are_written_as_0_1_0_wrote_them(old):
    """The recipe in the file has the old keys, in the old order, so that the version before reads it."""
    with contextlib.closing(Store(old, create=False)) as store:
        stored = store._meta("recipe")
        recipe = store.recipe()
    assert recipe == load_recipe("recipe.toml")
    lines = stored.splitlines()
    again = recipe.stored_text().splitlines()
    added = [line for line in again if line not in lines]
    assert [line for line in again if line in lines] == lines
    # keys with defaults that were added after 0.1.0
    later = {"augmentation", "keep", "reset_optimizer", "nesterov", "freeze_trunk"}
    assert {line.partition(" = ")[0] for line in added} <= later
    assert parse_recipe(stored) == recipe
