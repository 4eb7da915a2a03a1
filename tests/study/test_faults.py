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

import pytest

from avuc.errors import InputError
from avuc.study import Store, run_study
from avuc.study.work import Work


def kept(before, after):
    """What was finished is still there, from the run that finished it."""
    return all(after.get(key) == told for key, told in before.items())


def test_sigkill_at_random_points(process, same_study):
    chance = random.Random(0)
    killed = attempts = 0
    while killed < 5:
        attempts += 1
        assert attempts < 20
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
                raise sqlite3.OperationalError("database or disk is full")

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
        patched.setattr(Work, "judge", lambda *_: (_ for _ in ()).throw(InputError("all are trained")))
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
        self.db = Full(self.db, 40)

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
    from avuc import tensorfile

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
