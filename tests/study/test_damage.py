"""Damaged files never give other numbers: what is lost is named and computed again, or one line says what is wrong."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.study import Store, run_study
from avuc.study.store.export import export_study
from avuc.study.store.integrity import damage_in
from avuc.study.worker import StudyWorker

DAMAGED = 65
COMMITTED = Path(__file__).parents[2] / "reproduction" / "results" / "cifar10" / "beta"


@pytest.fixture(scope="module")
def whole(undisturbed, tmp_path_factory):
    """A finished study whose file has no journal beside it, and the page of its report."""
    folder = tmp_path_factory.mktemp("whole") / "study"
    shutil.copytree(undisturbed, folder)
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    page = folder.with_name("page.html")
    assert main(["report", str(folder), "--out", str(page), "--no-exports"]) == 0
    return folder, page.read_bytes()


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "study")
    return tmp_path / "study"


def flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 3, 20))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_in_values(data: bytearray, chance: random.Random) -> None:
    """In the second half of a page, where its content is."""
    page = 8192 * chance.randrange(1, len(data) // 8192)
    data[page + chance.randrange(4096, 8192)] ^= 1 << chance.randrange(8)


def zero_a_page(data: bytearray, chance: random.Random) -> None:
    page = 8192 * chance.randrange(1, len(data) // 8192)
    data[page : page + 8192] = bytes(8192)


def zero_some(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    data[start : start + chance.randrange(1, 600)] = bytes(min(len(data) - start, 600))
    del data[len(data) // 8192 * 8192 :]


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def cut_pages(data: bytearray, chance: random.Random) -> None:
    del data[8192 * chance.randrange(len(data) // 8192) :]


KINDS = (flip, flip, flip_in_values, flip_in_values, zero_a_page, zero_some, cut, cut_pages)


def report(folder: Path, page: Path, capsys) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["report", str(folder), "--out", str(page), "--no-exports"])
    return code, capsys.readouterr().err


def study(recipe, folder: Path, capsys) -> tuple[int, str]:
    capsys.readouterr()
    try:
        run_study(recipe, folder, device="cpu", progress=False).close()
    except InputError as error:
        return 2, str(error)
    return 0, capsys.readouterr().err


@pytest.mark.parametrize("part", range(4))
def test_campaign(whole, recipe, tmp_path, same_study, capsys, part):
    """64 kinds of damage, seeded: never exit 0 with other content."""
    seen = {0: 0, DAMAGED: 0, 2: 0}
    for number in range(part * 16, part * 16 + 16):
        chance = random.Random(number)
        folder = tmp_path / f"study{number}"
        shutil.copytree(whole[0], folder)
        data = bytearray((folder / "study.sqlite").read_bytes())
        KINDS[number % len(KINDS)](data, chance)
        (folder / "study.sqlite").write_bytes(data)
        code, said = report(folder, tmp_path / "page.html", capsys)
        seen[code] += 1
        if code == 0:
            assert (tmp_path / "page.html").read_bytes() == whole[1], number
            assert not said
        else:
            assert "study.sqlite" in said, number
            assert len(said.splitlines()) == 1, said
        code_of_study, told = study(recipe, folder, capsys)
        if code_of_study == 0:
            assert code != 0 or not told, (number, told)
            assert ("damaged" in told) == (code == DAMAGED), (number, told)
            same_study(folder)
            store = Store(folder, create=False)
            assert not store.lost
            store.close()
        else:
            assert code == 2, (number, told)
            assert "study.sqlite" in told
            assert "\n" not in told
        shutil.rmtree(folder)
    assert seen[DAMAGED]
    assert seen[2]


def damaged(folder: Path, statement: str, *values) -> None:
    """Change a value behind the back of its digest, as a flipped bit would."""
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite", isolation_level=None)) as db:
        assert db.execute(statement, values).rowcount


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (
            "UPDATE rows SET value = value + 1e-9 WHERE method='SVI' AND shift='contrast' AND severity=5",
            "on contrast 5",
        ),
        ("UPDATE cells SET rows = rows + 1 WHERE method='SVI' AND shift='clean'", "SVI (seed 0) on clean"),
        ("DELETE FROM cells WHERE method='SVI' AND shift='clean'", "SVI (seed 0) on clean"),
        ("DELETE FROM rows WHERE method='SVI' AND shift='clean' AND metric='nll'", "SVI (seed 0) on clean"),
        ("UPDATE rows SET method='SVJ' WHERE method='SVI' AND shift='clean'", "SVI (seed 0) on clean"),
        ("UPDATE curves SET data='{}' WHERE method='TS' AND shift='clean' AND name='avu'", "TS (seed 0) on clean"),
        ("UPDATE calibrators SET data=replace(data, '1', '2') WHERE method='TS'", "TS (seed 0) on validation"),
        ("UPDATE entropies SET data=zeroblob(4) WHERE method='TS'", "TS (seed 0) on clean"),
        ("UPDATE shown SET data=replace(data, '1', '2') WHERE method='TS' AND shift='clean'", "TS (seed 0) on clean"),
        ("UPDATE models SET threshold=0.5 WHERE method='SVI-AvUC'", "the training of SVI-AvUC (seed 0)"),
        ("UPDATE history SET data='{}' WHERE method='SVI' AND epoch=2", "the training of SVI (seed 0)"),
        ("UPDATE gallery SET data=x'00' WHERE shift='contrast' AND severity=1", "the picture of contrast 1"),
        ("UPDATE runs SET versions='{}' WHERE id=1", "the record of run 1"),
        ("UPDATE checks SET digest=x'00' WHERE method='SVI' AND shift='clean'", "SVI (seed 0) on clean"),
    ],
)
def test_each_table(copy, recipe, tmp_path, same_study, capsys, statement, named):
    damaged(copy, statement)
    before = (copy / "study.sqlite").read_bytes()
    code, said = report(copy, tmp_path / "page.html", capsys)
    assert code == DAMAGED
    assert named in said
    assert (copy / "study.sqlite").read_bytes() == before  # the report repairs nothing
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "The study&#x27;s file is damaged. This page leaves out the lost results" in page
    assert named in page
    with pytest.raises(InputError, match="is damaged"):
        export_study(copy, tmp_path / "exported")
    code, said = study(recipe, copy, capsys)
    assert code == 0
    assert named in said
    assert "is computed again" in said
    same_study(copy)
    assert report(copy, tmp_path / "page.html", capsys)[0] == 0


def test_only_what_is_lost_is_computed_again(copy, recipe, monkeypatch):
    damaged(copy, "UPDATE rows SET value=0.5 WHERE method='SVI' AND shift='contrast' AND severity=5 AND metric='nll'")
    judged, real = [], StudyWorker.evaluate

    def judge(self, key, test_set, rows, learned):
        judged.extend((row.name, str(test_set)) for row in rows)
        return real(self, key, test_set, rows, learned)

    monkeypatch.setattr(StudyWorker, "evaluate", judge)
    run_study(recipe, copy, device="cpu", progress=False).close()
    assert judged == [("SVI", "contrast 5")]


def test_a_damaged_recipe_comes_back_from_a_run(copy, recipe, tmp_path, same_study, capsys):
    damaged(copy, "UPDATE meta SET value=replace(value, 'samples = 4', 'samples = 5') WHERE key='recipe'")
    store = Store(copy, create=False)
    assert store.recipe() == recipe
    store.close()
    assert report(copy, tmp_path / "page.html", capsys)[0] == 0
    assert study(recipe, copy, capsys)[0] == 0
    same_study(copy)


def test_a_recipe_without_a_sound_copy_is_refused(copy, recipe, capsys):
    damaged(copy, "UPDATE meta SET value=replace(value, 'samples = 4', 'samples = 5') WHERE key='recipe'")
    damaged(copy, "UPDATE runs SET recipe=replace(recipe, 'samples = 4', 'samples = 6')")
    for told in (study(recipe, copy, capsys), report(copy, copy / "page.html", capsys)):
        assert told[0] == 2
        assert "its recipe is damaged" in told[1]


# files that are something else


def other_program(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE notes(text)")


def newer(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE meta SET value='2' WHERE key='format'")


def without_digests(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TABLE checks")


def without_rows(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TABLE rows")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (other_program, "is a database, but not of an avuc study"),
        (newer, "format 2, expected 1; made by a newer version of avuc: update avuc"),
        (without_digests, "its table 'checks' is missing or altered"),
        (without_rows, "its table 'rows' is missing or altered"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(9000)), "file is not a database"),
    ],
)
def test_another_file(copy, recipe, capsys, make, message):
    if make is other_program:
        (copy / "study.sqlite").unlink()
    make(copy / "study.sqlite")
    before = (copy / "study.sqlite").read_bytes()
    for code, said in (report(copy, copy / "page.html", capsys), study(recipe, copy, capsys)):
        assert code == 2
        assert message in said
        assert len(said.splitlines()) == 1
    assert (copy / "study.sqlite").read_bytes() == before


def test_an_empty_file(copy, recipe, same_study, capsys):
    (copy / "study.sqlite").write_bytes(b"")
    code, said = report(copy, copy / "page.html", capsys)
    assert code == 2
    assert "is empty, it holds no study" in said
    assert study(recipe, copy, capsys)[0] == 0
    same_study(copy)


@pytest.mark.parametrize("ending", ["-wal", "-shm"])
@pytest.mark.parametrize("number", range(6))
def test_journals(recipe, process, same_study, capsys, tmp_path, ending, number):
    """A killed study leaves its journal; damage there costs what was written last, and nothing is wrong."""
    assert process.finish(fatal=("commit", 30)) == -9
    journal = process.folder / f"study.sqlite{ending}"
    data = bytearray(journal.read_bytes())
    if number == 0:
        data.clear()
    else:
        KINDS[(0, 1, 5, 6)[number % 4]](data, random.Random(number))
    journal.write_bytes(data)
    code, said = report(process.folder, tmp_path / "page.html", capsys)
    assert code in (0, 2, DAMAGED)
    code, said = study(recipe, process.folder, capsys)
    if code == 0:
        same_study(process.folder)
    else:
        assert "study.sqlite" in said


# files of version 0.1.0


def make_old(folder: Path) -> None:
    """What version 0.1.0 would have written."""
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite", isolation_level=None)) as db:
        db.execute("DROP TABLE checks")
        db.execute("DROP TABLE data")
        db.execute("DELETE FROM meta WHERE key='checks'")


def test_an_old_file_is_read_and_goes_on(copy, recipe, whole, tmp_path, same_study, capsys):
    make_old(copy)
    before = (copy / "study.sqlite").read_bytes()
    assert report(copy, tmp_path / "page.html", capsys) == (0, "")
    assert (tmp_path / "page.html").read_bytes() == whole[1]
    assert (copy / "study.sqlite").read_bytes() == before
    assert study(recipe, copy, capsys) == (0, "")
    same_study(copy)
    store = Store(copy, create=False)
    assert {row[0] for row in store.select("SELECT kind FROM checks")} >= {"cell", "model", "run", "picture", "meta"}
    assert damage_in(store.db) == []
    store.close()


def test_committed_files_of_version_0_1_0(tmp_path, capsys):
    shutil.copytree(COMMITTED, tmp_path / "study")
    before = (tmp_path / "study" / "study.sqlite").read_bytes()
    code, said = report(tmp_path / "study", tmp_path / "page.html", capsys)
    assert (code, said) == (0, "")
    assert (tmp_path / "study" / "study.sqlite").read_bytes() == before
    store = Store(tmp_path / "study", create=False)
    rows = store.rows()
    store.close()
    grown = Store(tmp_path / "study")
    assert repr(grown.rows()) == repr(rows)
    assert damage_in(grown.db) == []
    grown.close()


def test_two_processes_add_digests_to_an_old_file(process, copy, recipe, same_study):
    make_old(copy)
    damaged(copy, "DELETE FROM cells WHERE shift='contrast'")
    for table in ("rows", "curves", "shown"):
        damaged(copy, f"DELETE FROM {table} WHERE shift='contrast'")
    process.folder = copy
    both = [process.start(), process.start()]
    for one in both:
        one.join(120)
    assert [one.exitcode for one in both] == [0, 0]
    same_study(copy)
    store = Store(copy, create=False)
    assert not store.lost
    store.close()
