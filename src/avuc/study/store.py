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

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.study.file import StudyFile
from avuc.study.grid import Done, ModelKey, TestSet
from avuc.study.integrity import Unit, check
from avuc.study.judge import Judgement
from avuc.study.recipe import Recipe, parse_recipe
from avuc.study.resumable import refuse_other
from avuc.study.schema import KEY

__all__ = ["Cell", "Store", "Trained"]


@dataclass(frozen=True)
class Trained:
    """What is stored of a training."""

    key: ModelKey
    history: list[dict[str, Any]]
    epochs: int
    seconds: float
    threshold: float | None
    prints: Mapping[str, str] = field(default_factory=dict)  # digests of the data, by name


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
    prints: Mapping[str, str] = field(default_factory=dict)  # digests of the data, by name

    @property
    def key(self) -> tuple[str, int, str, int]:
        return self.method, self.seed, self.test_set.shift, self.test_set.severity


class Store(StudyFile):
    """A study's file; opens or makes it. With `create=False` it must be there, and opening changes nothing of it.

    Opening looks for damage. `lost` names what is damaged: it is removed, so that the study computes it again; with
    `create=False` the file stays as it is, and a copy in memory is read that does without it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Store(Path(folder)).rows()
    []
    """

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
            self._same_data(trained.prints)
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
                self._same_data(cell.prints)
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

    def _same_data(self, prints: Mapping[str, str]) -> None:
        """Refuse results from other data than those that are there; of new data, note what they are."""
        for name, digest in prints.items():
            found = self.select("SELECT digest FROM data WHERE name=?", (name,))
            if not found:
                self.db.execute("INSERT INTO data VALUES(?,?)", (name, digest))
                check(self.db, [Unit.of("data", name)])
            elif found[0][0] != digest:
                raise InputError(
                    f"{self.path}: the data {name!r} have changed since results in it were computed; put the old files "
                    "back, or choose another --out"
                )

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


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
