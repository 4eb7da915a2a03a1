"""Killed anywhere, a study goes on and ends as if nothing had happened; nothing finished is done twice."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.study import Store, load_recipe, run_study
from avuc.study.worker import StudyWorker


def kept(before, after):
    """What was finished is still there, from the run that finished it."""
    return all(after.get(key) == told for key, told in before.items())


@pytest.mark.parametrize(
    ("kills", "seed"), [(3, 0), pytest.param(5, 1, marks=pytest.mark.slow), pytest.param(25, 2, marks=pytest.mark.slow)]
)
def test_sigkill_at_random_points(process, same_study, kills, seed):
    chance = random.Random(seed)
    killed = attempts = 0
    while killed < kills:
        attempts += 1
        assert attempts < 6 * kills
        cells, models = process.cells(), process.models()
        running = process.start()
        # by progress, not by the clock: some kills while training, some while judging, wherever that is
        target = len(cells) + chance.randint(0, 8) if len(models) == 4 else 0
        deadline = time.monotonic() + chance.uniform(0.3, 1.2)
        while running.is_alive() and time.monotonic() < deadline + (10 if target else 0):
            if target and len(process.cells()) > target:
                break
            time.sleep(0.002)
        running.kill()
        running.join()
        killed += running.exitcode == -signal.SIGKILL
        assert kept(cells, process.cells())
        assert kept(models, process.models())
        assert running.exitcode in (0, -signal.SIGKILL)
        if running.exitcode == 0:  # too late: begin again
            shutil.rmtree(process.folder)
    cells, models = process.cells(), process.models()
    assert process.finish() == 0
    assert kept(cells, process.cells())
    assert kept(models, process.models())
    same_study(process.folder)


@pytest.mark.parametrize("fatal", [("commit", 4), ("commit", 12), ("rename", 9)])
def test_sigkill_in_a_write(process, same_study, fatal):
    assert process.finish(fatal=fatal) == -signal.SIGKILL
    cells, models = process.cells(), process.models()
    assert process.finish() == 0
    assert kept(cells, process.cells())
    assert kept(models, process.models())
    same_study(process.folder)


def test_two_processes_at_once(process, same_study):
    """The second joins in; one of them is killed; the other finishes alone."""
    first, second = process.start(), process.start()
    while first.is_alive() and len(process.cells()) < 6:
        time.sleep(0.002)
    first.kill()
    first.join()
    second.join(120)
    assert second.exitcode == 0
    same_study(process.folder)
    runs = {run for run, _ in process.cells().values()} | {run for run, _ in process.models().values()}
    assert runs <= {1, 2}


def test_sigkill_of_the_parent_of_two(process, same_study):
    """Its children notice, and leave what they hold."""
    running = process.start(device="cpu,cpu")
    while running.is_alive() and len(process.cells()) < 3:
        time.sleep(0.002)
    running.kill()
    running.join()
    assert running.exitcode == -signal.SIGKILL
    cells = process.cells()
    assert process.finish() == 0
    assert kept(cells, process.cells())
    same_study(process.folder)


def test_damaged_checkpoints(process, same_study, recipe, capfd):
    """Of a finished model there is one: a line that names it, and all epochs again."""
    assert process.finish(fatal=("commit", 9)) == -signal.SIGKILL
    assert len(process.models()) == 4
    for name in ("vanilla-0", "svi-0"):
        (path,) = (process.folder / "models" / name).glob("checkpoint-*")
        data = bytearray(path.read_bytes())
        data[-20:] = b"\xff" * 20
        path.write_bytes(data)
    capfd.readouterr()
    run_study(recipe, process.folder, device="cpu", progress=False).close()
    said = capfd.readouterr().err
    assert said.count("damaged checkpoint") == 2
    assert "Traceback" not in said
    same_study(process.folder)


class Full:
    """A connection whose disk has room for `left` statements more that write."""

    def __init__(self, db, left):
        self._db, self.left = db, left

    def _spend(self, statement):
        if statement.startswith("INSERT"):
            self.left -= 1
            if self.left < 0:
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error

    def execute(self, statement, *values):
        self._spend(statement)
        return self._db.execute(statement, *values)

    def executemany(self, statement, values):
        self._spend(statement)
        return self._db.executemany(statement, values)

    def __getattr__(self, name):
        return getattr(self._db, name)

    @property
    def text_factory(self):
        return self._db.text_factory

    @text_factory.setter
    def text_factory(self, kind):
        self._db.text_factory = kind


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (sqlite3.SQLITE_FULL, "make room and run the same command again"),
        (sqlite3.SQLITE_IOERR_WRITE, "make room and run the same command again"),
        (sqlite3.SQLITE_BUSY, "end that program and run the same command again"),
        (sqlite3.SQLITE_LOCKED_SHAREDCACHE, "end that program and run the same command again"),
        (sqlite3.SQLITE_CANTOPEN, "check the folder's permissions"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "check the folder's permissions"),
        (sqlite3.SQLITE_CORRUPT, "it is damaged: move it away"),
        (sqlite3.SQLITE_NOTADB, "it is damaged: move it away"),
        (None, "it is damaged: move it away"),
    ],
)
def test_the_remedy_follows_from_sqlites_code_not_from_its_words(tmp_path, code, remedy):
    error = sqlite3.OperationalError("full, locked, readonly: words decide nothing")
    if code is not None:
        error.sqlite_errorcode = code
    with contextlib.closing(Store(tmp_path)) as store, pytest.raises(InputError, match=remedy), store.clear_errors():
        raise error


def test_a_file_that_another_program_holds(tmp_path, monkeypatch):
    """The real error of SQLite, not one made here."""
    monkeypatch.setattr("avuc.study.store.file.BUSY_SECONDS", 0.01)
    with (
        contextlib.closing(Store(tmp_path)) as store,
        contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match="another program holds it"), store.clear_errors(), store._writing():
            pass


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 kB that can be made larger."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(*options):
        return subprocess.run(["mount", *options, str(place)], capture_output=True, check=False).returncode

    if sys.platform != "linux" or shutil.which("mount") is None or mount("-t", "tmpfs", "-o", "size=250k", "tmpfs"):
        pytest.skip("mounting a small file system needs root on Linux; the tests beside this one stand in for it")
    yield place, lambda size: mount("-o", f"remount,size={size}")
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_full_disk(recipe, small_disk, same_study, monkeypatch):
    """First the checkpoints do not fit, then the results do not, then everything does."""
    place, resize = small_disk

    def fails_with(message):
        with pytest.raises(InputError, match=message) as said:
            run_study(recipe, place / "study", device="cpu", progress=False)
        assert "\n" not in str(said.value)

    fails_with("No space left on device.* run the same command again")
    assert resize("40m") == 0
    with monkeypatch.context() as patched:
        patched.setattr(StudyWorker, "evaluate", lambda *_: (_ for _ in ()).throw(InputError("all are trained")))
        fails_with("all are trained")
    used = shutil.disk_usage(place).used // 1024
    assert resize(f"{used + 100}k") == 0
    fails_with("database or disk is full.* run the same command again")
    assert resize("40m") == 0
    run_study(recipe, place / "study", device="cpu", progress=False).close()
    same_study(place / "study")


def test_full_disk_in_the_store(recipe, process, same_study, monkeypatch):
    real = Store.begin

    def begin(self, **about):
        real(self, **about)
        self.db = Full(self.db, 70)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "begin", begin)
        with pytest.raises(
            InputError, match=r"study\.sqlite: database or disk is full; .* run the same command again"
        ) as said:
            run_study(recipe, process.folder, device="cpu", progress=False)
    assert "\n" not in str(said.value)
    cells = process.cells()
    assert cells
    run_study(recipe, process.folder, device="cpu", progress=False).close()
    assert kept(cells, process.cells())
    same_study(process.folder)


def test_full_disk_in_a_checkpoint(recipe, process, same_study, monkeypatch):
    """Writes to the folder fail as on a full disk, after some that did not."""
    from avuc.core import tensor_file as tensorfile

    real, left = tensorfile.atomic_path, [7]

    @contextlib.contextmanager
    def atomic_path(destination):
        left[0] -= 1
        with real(destination) as path:
            yield path
            if left[0] < 0:
                raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tensorfile, "atomic_path", atomic_path)
        with pytest.raises(InputError, match="No space left on device") as said:
            run_study(recipe, process.folder, device="cpu", progress=False)
    assert "\n" not in str(said.value)
    models = process.models()
    assert models
    run_study(recipe, process.folder, device="cpu", progress=False).close()
    assert kept(models, process.models())
    same_study(process.folder)


def test_not_a_database(recipe, tmp_path):
    (tmp_path / "study.sqlite").write_bytes(b"this is no database" * 100)
    with pytest.raises(InputError, match=r"study\.sqlite: file is not a database; .* choose another folder"):
        run_study(recipe, tmp_path, device="cpu", progress=False)


def test_out_that_is_a_file(recipe, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(InputError, match="choose another --out"):
        run_study(recipe, tmp_path / "out", device="cpu", progress=False)


def test_store_of_another_version(recipe, tmp_path):
    store = Store(tmp_path)
    store.db.execute("UPDATE meta SET value='0' WHERE key='format'")
    store.close()
    with pytest.raises(InputError, match="format 0, expected 1"):
        Store(tmp_path)
    with pytest.raises(InputError, match="no study here"):
        Store(tmp_path / "elsewhere", create=False)


def test_a_store_that_nobody_closes_is_closed(tmp_path):
    store = Store(tmp_path)
    db = store.db
    del store
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")


# the folder goes away


@pytest.mark.parametrize("when", ["training", "judging", "at the end"])
def test_a_folder_removed_while_the_study_runs_is_an_error(recipe, recipe_file, tmp_path, monkeypatch, capsys, when):
    """SQLite would go on writing into a file that has no name."""
    folder, real_train, real_judge, real_finish = (
        tmp_path / "study",
        StudyWorker.train,
        StudyWorker.evaluate,
        Store.finish,
    )
    seen = []

    def train(self, keys):
        done = real_train(self, keys)
        if when == "training":
            shutil.rmtree(folder, ignore_errors=True)
        return done

    def judge(self, *arguments):
        seen.append(1)
        if when == "judging" and len(seen) == 5:
            shutil.rmtree(folder)
        return real_judge(self, *arguments)

    def finish(self, seconds):
        real_finish(self, seconds)
        shutil.rmtree(folder)

    monkeypatch.setattr(StudyWorker, "train", train)
    monkeypatch.setattr(StudyWorker, "evaluate", judge)
    if when == "at the end":
        monkeypatch.setattr(Store, "finish", finish)
    arguments = ["study", str(recipe_file), "--out", str(folder), "--device", "cpu", "--no-report"]
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert "was removed or replaced while it was open" in said.err.splitlines()[-1]
    assert "49 evaluations" not in said.out


def test_a_folder_removed_between_study_and_report_is_an_error(undisturbed, tmp_path, monkeypatch, capsys):
    from avuc.report.study import reading

    shutil.copytree(undisturbed, tmp_path / "study")
    real = reading._notes

    def notes(*arguments):
        shutil.rmtree(tmp_path / "study")
        return real(*arguments)

    monkeypatch.setattr(reading, "_notes", notes)
    assert main(["report", str(tmp_path / "study"), "--out", str(tmp_path / "page.html"), "--no-exports"]) == 2
    assert "was removed or replaced while it was open" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
    assert main(["report", str(tmp_path / "study")]) == 2
    assert "no study here" in capsys.readouterr().err


def test_a_locked_file_is_one_line(recipe, process, undisturbed, tmp_path, monkeypatch):
    from avuc.study.store import file

    shutil.copytree(undisturbed, tmp_path / "study")
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.05)
    with contextlib.closing(sqlite3.connect(tmp_path / "study" / "study.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match=r"database is locked; another program holds it: end that program"):
            run_study(recipe, tmp_path / "study", device="cpu", progress=False)


# other data, other names


def test_data_that_changed_are_refused(recipe_file, digits_file, tmp_path, everything_in):
    """Under the same path; results of old and of new images would stand side by side."""
    shutil.copy(digits_file, tmp_path / "digits.npz")
    outside = tmp_path / "outside.npy"
    with np.load(digits_file) as arrays:
        parts = dict(arrays)
    np.save(outside, parts["x_test"][:40])
    changes = [f'data.root="{tmp_path / "digits.npz"}"', "train.epochs=1", 'study.shifts=["contrast"]']
    few = [*changes, "study.severities=[1]", "study.ood=[]"]
    more = [*changes, "study.severities=[1, 5]", "study.ood=[]"]
    folder = tmp_path / "study"
    run_study(load_recipe(recipe_file, few), folder, device="cpu", progress=False, only=["Vanilla"]).close()
    before = everything_in(folder)
    changed = parts | {"x_test": parts["x_test"][::-1].copy()}
    np.savez(tmp_path / "digits.npz", **changed)
    with pytest.raises(InputError, match="the data 'clean' have changed since results in it were computed"):
        run_study(load_recipe(recipe_file, more), folder, device="cpu", progress=False, only=["Vanilla"])
    np.savez(tmp_path / "digits.npz", **parts | {"x_train": parts["x_train"] // 2})
    with pytest.raises(InputError, match="the data 'training' have changed"):
        run_study(load_recipe(recipe_file, few), folder, device="cpu", progress=False, only=["SVI"])
    assert everything_in(folder) == before
    np.savez(tmp_path / "digits.npz", **parts)
    with_outside = [*changes, "study.severities=[1, 5]", f'study.ood=["{outside}"]']
    run_study(load_recipe(recipe_file, with_outside), folder, device="cpu", progress=False, only=["Vanilla"]).close()
    np.save(outside, parts["x_test"][40:80])
    with pytest.raises(InputError, match="the data 'ood:outside' have changed"):
        run_study(load_recipe(recipe_file, with_outside), folder, device="cpu", progress=False, only=["TS"])


def test_weights_that_changed_are_refused(recipe_file, undisturbed, tmp_path):
    from avuc.core.tensor_file import read_tensors, write_tensors

    (saved,) = (undisturbed / "models" / "vanilla-0").glob("checkpoint-*")
    tensors = read_tensors(saved)[0]
    weights = {name.removeprefix("model.0."): t.clone() for name, t in tensors.items() if name.startswith("model.0.")}
    write_tensors(tmp_path / "w.safetensors", weights, {})
    changes = [f'net.weights="{tmp_path / "w.safetensors"}"', "train.epochs=1", "study.shifts=[]", "study.ood=[]"]
    recipe = load_recipe(recipe_file, changes)
    run_study(recipe, tmp_path / "study", device="cpu", progress=False, only=["Vanilla"]).close()
    write_tensors(tmp_path / "w.safetensors", {name: t + 1 for name, t in weights.items()}, {})
    with pytest.raises(InputError, match=r"the data 'net\.weights' have changed"):
        run_study(recipe, tmp_path / "study", device="cpu", progress=False, only=["SVI"])


def test_names_that_look_alike_have_models_of_their_own(recipe_file, tmp_path):
    """Other scripts, other case, other signs: no row reads the model or the predictions of another."""
    text = recipe_file.read_text()
    head = text[: text.index("[[methods]]")]
    names = ["方法一", "方法二", "SVI-AvUC", "svi avuc", "x" * 300]
    for number, name in enumerate(names):
        head += (
            f'[[methods]]\nname = "{name}"\nmethod = "vanilla"\ntrain = {{ learning_rate = {1e-3 * (number + 1)} }}\n'
        )
    (tmp_path / "r.toml").write_text(head, encoding="utf-8")
    changes = ["train.epochs=1", 'study.shifts=["contrast"]', "study.severities=[5]", "study.predictions=true"]
    recipe = load_recipe(tmp_path / "r.toml", changes)
    store = run_study(recipe, tmp_path / "study", device="cpu", progress=False)
    found = {row[0]: row[5] for row in store.rows() if row[2:5] == ("clean", 0, "nll")}
    store.close()
    assert len(set(found.values())) == len(names)
    for kind in ("models", "predictions"):
        folders = {path.name.casefold() for path in (tmp_path / "study" / kind).iterdir()}
        assert len(folders) == len(names)
        assert all(len(name) < 100 for name in folders)
