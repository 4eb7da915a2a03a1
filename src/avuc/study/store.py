"""The results of a study: one SQLite file, in write-ahead mode, that any number of processes may read and write.

    rows(method, seed, shift, severity, metric, value)          the results
    cells(method, seed, shift, severity, rows, samples, seconds, run)    what is finished; written with its rows
    curves(method, seed, shift, severity, name, data)           JSON: reliability, avu, entropy, confidence, …
    models(method, seed, epochs, seconds, threshold, run)   history(method, seed, member, epoch, data)    training
    calibrators(method, seed, data)                             as Calibrator.to_json wrote them
    shown(method, seed, shift, severity, data)   gallery(shift, severity, data)    single images, see shown.py
    runs(id, started, finished, seconds, engine, device, recipe, versions, revision, hardware)    each start of it
    checks(kind, method, seed, shift, severity, digest)         of everything above, see integrity.py
    data(name, digest)                                          of the images the results were computed from

A cell is written in one transaction: it is there with everything that belongs to it, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc.errors import InputError
from avuc.study.grid import Done, ModelKey, TestSet
from avuc.study.growth import refuse_other
from avuc.study.integrity import Unit, check, damage_in, has_checks, repair, structure_problem, told_of
from avuc.study.judge import Judgement
from avuc.study.recipe import Recipe, parse_recipe
from avuc.study.schema import ADDED, FORMAT, KEY, PAGE, SCHEMA, schema_problem

__all__ = ["Cell", "Store", "Trained"]

BUSY_SECONDS = 120
MOVE_AWAY = (
    "move it away and run avuc study again, which computes the results again from the trained models, "
    "or choose another folder"
)


@dataclass(frozen=True)
class Trained:
    """What is stored of a training."""

    key: ModelKey
    history: list[dict[str, Any]]
    epochs: int
    seconds: float
    threshold: float | None


@dataclass(frozen=True)
class Cell:
    """One row of the study on one set."""

    method: str
    seed: int
    test_set: TestSet
    judgement: Judgement
    seconds: float = 0.0
    calibrator: str | None = None  # on the validation set, where it was fitted
    keep_entropy: bool = field(default=False, repr=False)  # of the clean images, for detection
    shown: dict[str, Any] | None = field(default=None, repr=False)  # of single images, for the report
    picture: bytes | None = field(default=None, repr=False)  # PNG of one of the set's images

    @property
    def key(self) -> tuple[str, int, str, int]:
        return self.method, self.seed, self.test_set.shift, self.test_set.severity


class Store:
    """A study's file; opens or makes it. With `create=False` it must be there, and opening changes nothing of it.

    Opening looks for damage. `lost` names what is damaged: it is removed, so that the study computes it again; with
    `create=False` the file stays as it is, and a copy in memory is read that does without it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Store(Path(folder)).rows()
    []
    """

    def __init__(self, directory: str | Path, *, create: bool = True, check: bool = True) -> None:
        self.path = Path(directory) / "study.sqlite"
        if not create and not self.path.is_file():
            raise InputError(
                f"{directory}: no study here (study.sqlite is missing); avuc study RECIPE --out DIR makes one"
            )
        self.run: int | None = None
        self.lost: list[Unit] = []
        self._place: tuple[int, int] | None = None  # of the file on the disk
        with self.clear_errors():
            self.db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                self._open(create, check)
            except BaseException:
                self.db.close()
                raise
        self._place = self._where()

    def _open(self, create: bool, check: bool) -> None:
        if not self.db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            if not create:
                raise InputError(f"{self.path}: is empty, it holds no study; avuc study RECIPE --out DIR makes one")
            self._prepare()
            return
        if check:
            problem = structure_problem(self.db)
            if problem is not None:
                raise InputError(f"{self.path}: is damaged ({problem}); {MOVE_AWAY}")
            problem = schema_problem(self.db)
            if problem is not None:
                raise InputError(f"{self.path}: {problem}; {MOVE_AWAY}")
        found = self._meta("format")
        if found != FORMAT:
            newer = found is not None and found.isdigit() and int(found) > int(FORMAT)
            by = "a newer version of avuc: update avuc" if newer else "another version of avuc: choose another folder"
            raise InputError(f"{self.path}: format {found}, expected {FORMAT}; made by {by}")
        if create:
            self._prepare()
        if check:
            self._look(create)

    def _prepare(self) -> None:
        self.db.execute(f"PRAGMA page_size={PAGE}")  # of a new file
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        with self._writing():
            for statement in SCHEMA.split(";"):
                self.db.execute(statement)
            self.db.execute("INSERT OR IGNORE INTO meta VALUES('format', ?)", (FORMAT,))
            if not has_checks(self.db):  # a new file, or one of version 0.1.0: what is there is taken as it is
                for statement in ADDED.split(";"):
                    self.db.execute(statement)
                self.db.execute("INSERT INTO meta VALUES('checks', '1')")
                check(self.db)

    def _look(self, create: bool) -> None:
        """Find what is damaged and do without it."""
        self.db.execute("BEGIN")  # one state of the file, whoever writes at the same time
        lost = damage_in(self.db)
        self.db.execute("COMMIT")
        if not lost:
            return
        if create:
            with self._writing():
                self.lost = repair(self.db, self.path)  # looks again: another process may have been faster
            return
        copy = sqlite3.connect(":memory:", isolation_level=None)
        self.db.backup(copy)
        self.db.close()
        self.db = copy
        self.lost = repair(copy, self.path)

    def close(self) -> None:
        self.db.close()

    def damage(self) -> str:
        """What is lost, in one line."""
        return f"{self.path}: is damaged, and these are lost: {told_of(self.lost)}"

    def _where(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def still_there(self) -> None:
        """Refuse to go on where the file was removed or replaced: SQLite would write on into a file without a name."""
        if self._place is None or self._where() != self._place:
            raise InputError(
                f"{self.path}: was removed or replaced while it was open; results since then are lost: run the same "
                "command again"
            )

    # the recipe and the runs

    def adopt(self, recipe: Recipe) -> None:
        """Make the study that of `recipe`: a new one, the same again, or one that grows. Anything else is refused."""
        with self.clear_errors(), self._writing():
            # of all runs: a row that one recipe leaves out must be the same when a later one names it again
            runs = [row[0] for row in self.select("SELECT recipe FROM runs ORDER BY id DESC")]
            for old in dict.fromkeys(filter(None, [self._meta("recipe"), *runs])):
                refuse_other(parse_recipe(old, f"{self.path}"), recipe, self.path)
            self.db.execute("INSERT OR REPLACE INTO meta VALUES('recipe', ?)", (recipe.to_toml(),))
            check(self.db, [Unit.of("meta", "recipe")])

    def recipe(self) -> Recipe:
        text = self._meta("recipe")
        if text is None:
            raise InputError(f"{self.path}: holds no recipe yet")
        return parse_recipe(text, str(self.path))

    def begin(self, *, engine: str, device: str, recipe: Recipe, about: dict[str, Any]) -> None:
        """Note that a run starts; what is written from now on is its."""
        values = (
            _now(),
            engine,
            device,
            recipe.to_toml(),
            json.dumps(about["versions"]),
            about["revision"],
            json.dumps(about["hardware"]),
        )
        names = "started, engine, device, recipe, versions, revision, hardware"
        with self.clear_errors(), self._writing():
            cursor = self.db.execute(f"INSERT INTO runs({names}) VALUES(?,?,?,?,?,?,?)", values)
            check(self.db, [Unit.of("run", seed=cursor.lastrowid or 0)])
        self.run = cursor.lastrowid

    def finish(self, seconds: float) -> None:
        with self.clear_errors(), self._writing():
            self.db.execute("UPDATE runs SET finished=?, seconds=? WHERE id=?", (_now(), seconds, self.run))
            check(self.db, [Unit.of("run", seed=self.run or 0)])

    # writing

    def add_model(self, trained: Trained) -> None:
        key = trained.key.method, trained.key.seed
        with self.clear_errors(), self._writing():
            values = (*key, trained.epochs, trained.seconds, trained.threshold, self.run)
            self.db.execute("INSERT OR REPLACE INTO models VALUES(?,?,?,?,?,?)", values)
            self.db.execute("DELETE FROM history WHERE method=? AND seed=?", key)
            for record in trained.history:
                data = {k: v for k, v in record.items() if k not in ("member", "epoch")}
                line = (*key, record["member"], record["epoch"], _json(data))
                self.db.execute("INSERT INTO history VALUES(?,?,?,?,?)", line)
            check(self.db, [Unit.of("model", *key)])

    def add_cells(self, cells: Iterable[Cell]) -> None:
        """All of them or none. A cell that is there already stays as it is."""
        with self.clear_errors(), self._writing():
            for cell in cells:
                told = cell.judgement
                values = (*cell.key, told.rows, told.samples, cell.seconds, self.run)
                if not self.db.execute("INSERT OR IGNORE INTO cells VALUES(?,?,?,?,?,?,?,?)", values).rowcount:
                    continue
                rows = [(*cell.key, name, value) for name, value in told.metrics.items()]
                self.db.executemany("INSERT INTO rows VALUES(?,?,?,?,?,?)", rows)
                curves = [(*cell.key, name, _json(data)) for name, data in told.curves.items()]
                self.db.executemany("INSERT INTO curves VALUES(?,?,?,?,?,?)", curves)
                if cell.calibrator is not None:
                    fitted = (cell.method, cell.seed, cell.calibrator)
                    self.db.execute("INSERT OR REPLACE INTO calibrators VALUES(?,?,?)", fitted)
                if cell.keep_entropy:
                    data = told.entropy.astype("<f4").tobytes()
                    self.db.execute("INSERT OR REPLACE INTO entropies VALUES(?,?,?)", (cell.method, cell.seed, data))
                if cell.shown is not None:
                    line = (*cell.key, _json(cell.shown))
                    self.db.execute("INSERT OR REPLACE INTO shown VALUES(?,?,?,?,?)", line)
                check(self.db, [Unit.of("cell", *cell.key)])
                if cell.picture is not None:
                    drawn = (*cell.key[2:], cell.picture)
                    if self.db.execute("INSERT OR IGNORE INTO gallery VALUES(?,?,?)", drawn).rowcount:
                        check(self.db, [Unit.of("picture", "", 0, *cell.key[2:])])

    # reading

    def trained(self) -> set[ModelKey]:
        return {ModelKey(*row) for row in self.select("SELECT method, seed FROM models")}

    def done(self) -> Done:
        return set(self.select(f"SELECT {KEY} FROM cells"))

    def rows(self) -> list[tuple[str, int, str, int, str, float]]:
        """(method, seed, shift, severity, metric, value), sorted; NaN where a metric is not defined."""
        found = self.select(f"SELECT {KEY}, metric, value FROM rows ORDER BY {KEY}, metric")
        return [(*row[:5], float("nan") if row[5] is None else row[5]) for row in found]

    def curves(self, method: str, seed: int, shift: str, severity: int) -> dict[str, Any]:
        where = "WHERE method=? AND seed=? AND shift=? AND severity=?"
        found = self.select(f"SELECT name, data FROM curves {where}", (method, seed, shift, severity))
        return {name: json.loads(data) for name, data in found}

    def shown(self, method: str, seed: int, shift: str, severity: int) -> dict[str, Any] | None:
        where = "WHERE method=? AND seed=? AND shift=? AND severity=?"
        found = self.select(f"SELECT data FROM shown {where}", (method, seed, shift, severity))
        return json.loads(found[0][0]) if found else None

    def gallery(self) -> dict[tuple[str, int], bytes]:
        return {(shift, severity): data for shift, severity, data in self.select("SELECT * FROM gallery")}

    def history(self, method: str, seed: int) -> list[dict[str, Any]]:
        query = "SELECT member, epoch, data FROM history WHERE method=? AND seed=? ORDER BY epoch, member"
        found = self.select(query, (method, seed))
        return [{"member": member, "epoch": epoch, **json.loads(data)} for member, epoch, data in found]

    def calibrator(self, method: str, seed: int) -> str | None:
        found = self.select("SELECT data FROM calibrators WHERE method=? AND seed=?", (method, seed))
        return found[0][0] if found else None

    def threshold(self, method: str, seed: int) -> float | None:
        query = "SELECT value FROM rows WHERE method=? AND seed=? AND shift='validation' AND metric='threshold'"
        found = self.select(query, (method, seed))
        return found[0][0] if found else None

    def clean_entropy(self, method: str, seed: int) -> NDArray[np.float32] | None:
        found = self.select("SELECT data FROM entropies WHERE method=? AND seed=?", (method, seed))
        return np.frombuffer(found[0][0], "<f4") if found else None

    def runs(self) -> list[dict[str, Any]]:
        names = "id, started, finished, seconds, engine, device, recipe, versions, revision, hardware"
        found = [dict(zip(names.split(", "), row, strict=True)) for row in self.select(f"SELECT {names} FROM runs")]
        return [{**run, **{k: json.loads(run[k]) for k in ("versions", "hardware")}} for run in found]

    def _meta(self, key: str) -> str | None:
        found = self.select("SELECT value FROM meta WHERE key=?", (key,))
        return found[0][0] if found else None

    def select(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self.clear_errors():
            return self.db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction, begun at once so that two writers queue instead of failing half-way."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")
            if self._place is not None:
                self.still_there()
        except BaseException:
            if self.db.in_transaction:  # a full disk has rolled back already
                self.db.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def clear_errors(self) -> Iterator[None]:
        """SQLite's errors as one line that says what to do."""
        try:
            yield
        except sqlite3.Error as error:
            said = " ".join(str(error).split())
            if "full" in said or "disk I/O" in said:
                remedy = "everything finished before is kept: make room and run the same command again"
            elif "locked" in said or "busy" in said:
                remedy = "another program holds it: end that program and run the same command again"
            elif "unable to open" in said or "readonly" in said:
                remedy = "it cannot be opened for writing: check the folder's permissions, or choose another folder"
            else:
                remedy = f"it is damaged: {MOVE_AWAY}"
            raise InputError(f"{self.path}: {said}; {remedy}") from error


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
