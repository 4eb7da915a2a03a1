"""The results of a study: one SQLite file, in write-ahead mode, that any number of processes may read and write.

    rows(method, seed, shift, severity, metric, value)          the results
    cells(method, seed, shift, severity, rows, samples, seconds, run)    finished evaluations; written with their rows
    curves(method, seed, shift, severity, name, data)           JSON: reliability, avu, entropy, conformal, …
    models(method, seed, epochs, seconds, threshold, run)   history(method, seed, member, epoch, data)    training
    calibrators(method, seed, data)                             as Calibrator.to_json wrote them
    shown(method, seed, shift, severity, data)   gallery(shift, severity, data)    single images, see examples.py
    runs(id, started, finished, seconds, engine, device, recipe, versions, revision, hardware)    each start of it
    checks(kind, method, seed, shift, severity, digest)         of everything above, see integrity.py
    data(name, digest)                                          digests of the data that the results come from

An evaluation is written in one transaction: it is there with everything that belongs to it, or not at all. Reading
needs no torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.study.grid import Done, ModelKey
from avuc.study.store.file import StudyFile
from avuc.study.store.integrity import Unit, check
from avuc.study.store.recipe import StoredRecipe
from avuc.study.store.records import Evaluation, Trained
from avuc.study.store.schema import KEY

if TYPE_CHECKING:
    from avuc.study.recipe.config import Recipe

MOST_ENTROPIES = 1 << 20  # entropies of clean test data that are stored for each method and seed


class Store(StudyFile):
    """A study's file.

    Opening checks the file for damage. `lost` names damaged results: they are removed, so that the study computes them
    again. With `create=False` the file stays as it is, and a copy in memory without them is read instead.

    Args:
        directory: the study's folder.
        create: make the file if there is none, and open it for writing. Otherwise the file must exist, and opening it
            changes nothing.
        check: look for damage.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Store(Path(folder)).rows()
    []
    """

    # the recipe and the runs

    def adopt(self, recipe: Recipe, prints: Mapping[str, str] | None = None) -> None:
        """Make this the study of `recipe`: a new study, the same one, or an extension of it. Refuse anything else.

        Args:
            recipe: the study.
            prints: digests of its data and code, as in `check_data`; a changed setting is reported first, because it
                may be why the data have changed.
        """
        from avuc.study.recipe.parser import parse_recipe
        from avuc.study.recipe.resumable import check_resumable

        with self.clear_errors(), self._writing():
            # the recipes of all runs, because a method that one run leaves out must not change before a later run
            runs = [row[0] for row in self.select("SELECT recipe FROM runs ORDER BY id DESC")]
            for old in dict.fromkeys(filter(None, [self._meta("recipe"), *runs])):
                check_resumable(parse_recipe(old, f"{self.path}"), recipe, self.path)
            self.check_data(prints or {})
            self.db.execute("INSERT OR REPLACE INTO meta VALUES('recipe', ?)", (recipe.stored_text(),))
            check(self.db, [Unit.of("meta", "recipe")])

    def recipe(self) -> Recipe:
        """Return the study's recipe, ready to run; needs torch."""
        from avuc.study.recipe.parser import parse_recipe

        return parse_recipe(self._recipe_text(), str(self.path))

    def stored_recipe(self) -> StoredRecipe:
        """Return the study's recipe as plain data; needs no torch."""
        return StoredRecipe.parse(self._recipe_text(), str(self.path))

    def _recipe_text(self) -> str:
        text = self._meta("recipe")
        if text is None:
            raise InputError(f"{self.path}: holds no recipe yet")
        return text

    def begin(self, *, engine: str, device: str, recipe: Recipe, about: dict[str, Any]) -> None:
        """Record that a run starts. Everything written from now on belongs to it."""
        values = (
            _now(),
            engine,
            device,
            recipe.stored_text(),
            json.dumps(about["versions"]),
            about["revision"],
            json.dumps(about["hardware"]),
        )
        names = "started, engine, device, recipe, versions, revision, hardware"
        with self.clear_errors(), self._writing():
            cursor = self.db.execute(f"INSERT INTO runs({names}) VALUES(?,?,?,?,?,?,?)", values)
            check(self.db, [Unit.of("run", seed=cursor.lastrowid or 0)])
        self.run: int | None = cursor.lastrowid

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

    def add_evaluations(self, evaluations: Iterable[Evaluation]) -> None:
        """Write all evaluations or none. An evaluation that is already in the file is not changed."""
        with self.clear_errors(), self._writing():
            for evaluation in evaluations:
                self._same_data(evaluation.prints)
                result = evaluation.result
                values = (*evaluation.key, result.rows, result.samples, evaluation.seconds, self.run)
                if not self.db.execute("INSERT OR IGNORE INTO cells VALUES(?,?,?,?,?,?,?,?)", values).rowcount:
                    continue
                rows = [(*evaluation.key, name, value) for name, value in result.metrics.items()]
                self.db.executemany("INSERT INTO rows VALUES(?,?,?,?,?,?)", rows)
                curves = [(*evaluation.key, name, _json(data)) for name, data in result.curves.items()]
                self.db.executemany("INSERT INTO curves VALUES(?,?,?,?,?,?)", curves)
                if evaluation.calibrator is not None:
                    fitted = (evaluation.method, evaluation.seed, evaluation.calibrator)
                    self.db.execute("INSERT OR REPLACE INTO calibrators VALUES(?,?,?)", fitted)
                if evaluation.keep_entropy:
                    # of many pixels, evenly spaced ones are kept
                    spaced = result.entropy[:: max(1, -(-len(result.entropy) // MOST_ENTROPIES))]
                    data = spaced.astype("<f4").tobytes()
                    self.db.execute(
                        "INSERT OR REPLACE INTO entropies VALUES(?,?,?)", (evaluation.method, evaluation.seed, data)
                    )
                if evaluation.shown is not None:
                    line = (*evaluation.key, _json(evaluation.shown))
                    self.db.execute("INSERT OR REPLACE INTO shown VALUES(?,?,?,?,?)", line)
                check(self.db, [Unit.of("cell", *evaluation.key)])
                if evaluation.picture is not None:
                    drawn = (*evaluation.key[2:], evaluation.picture)
                    if self.db.execute("INSERT OR IGNORE INTO gallery VALUES(?,?,?)", drawn).rowcount:
                        check(self.db, [Unit.of("picture", "", 0, *evaluation.key[2:])])

    add_cells = add_evaluations  # its name in version 0.1.0

    def _same_data(self, prints: Mapping[str, str]) -> None:
        """Refuse results from data that have changed since; store the digests of new data."""
        for name, digest in prints.items():
            stored = self.select("SELECT digest FROM data WHERE name=?", (name,))
            if not stored:
                self.db.execute("INSERT INTO data VALUES(?,?)", (name, digest))
                check(self.db, [Unit.of("data", name)])
            elif stored[0][0] != digest:
                raise self._changed(name)

    def check_data(self, prints: Mapping[str, str]) -> None:
        """Refuse data and code that have changed since results were computed; writes nothing."""
        for name, digest in prints.items():
            stored = self.select("SELECT digest FROM data WHERE name=?", (name,))
            if stored and stored[0][0] != digest:
                raise self._changed(name)

    def _changed(self, name: str) -> InputError:
        is_code = name.startswith("code of ")
        what = f"the {name} has" if is_code else f"the data {name!r} have"
        remedy = "put the old code back" if is_code else "put the old files back (and give random data a fixed seed)"
        return InputError(
            f"{self.path}: {what} changed since results in it were computed; {remedy}, or choose another --out"
        )

    # reading

    def trained(self) -> set[ModelKey]:
        return {ModelKey(*row) for row in self.select("SELECT method, seed FROM models")}

    def done(self) -> Done:
        return set(self.select(f"SELECT {KEY} FROM cells"))

    def rows(self) -> list[tuple[str, int, str, int, str, float]]:
        """(method, seed, shift, severity, metric, value), sorted; NaN where a metric is not defined."""
        records = self.select(f"SELECT {KEY}, metric, value FROM rows ORDER BY {KEY}, metric")
        return [(*row[:5], float("nan") if row[5] is None else row[5]) for row in records]

    def curves(self, method: str, seed: int, shift: str, severity: int) -> dict[str, Any]:
        where = "WHERE method=? AND seed=? AND shift=? AND severity=?"
        records = self.select(f"SELECT name, data FROM curves {where}", (method, seed, shift, severity))
        return {name: json.loads(data) for name, data in records}

    def shown(self, method: str, seed: int, shift: str, severity: int) -> dict[str, Any] | None:
        where = "WHERE method=? AND seed=? AND shift=? AND severity=?"
        records = self.select(f"SELECT data FROM shown {where}", (method, seed, shift, severity))
        return json.loads(records[0][0]) if records else None

    def gallery(self) -> dict[tuple[str, int], bytes]:
        return {(shift, severity): data for shift, severity, data in self.select("SELECT * FROM gallery")}

    def history(self, method: str, seed: int) -> list[dict[str, Any]]:
        query = "SELECT member, epoch, data FROM history WHERE method=? AND seed=? ORDER BY epoch, member"
        records = self.select(query, (method, seed))
        return [{"member": member, "epoch": epoch, **json.loads(data)} for member, epoch, data in records]

    def calibrator(self, method: str, seed: int) -> str | None:
        records = self.select("SELECT data FROM calibrators WHERE method=? AND seed=?", (method, seed))
        return records[0][0] if records else None

    def threshold(self, method: str, seed: int) -> float | None:
        query = "SELECT value FROM rows WHERE method=? AND seed=? AND shift='validation' AND metric='threshold'"
        records = self.select(query, (method, seed))
        return records[0][0] if records else None

    def conformal_fits(self, method: str, seed: int) -> dict[str, str] | None:
        """Conformal sets fitted on validation data, JSON by method; None in files of older versions."""
        query = "SELECT data FROM curves WHERE method=? AND seed=? AND shift='validation' AND name='conformal'"
        records = self.select(query, (method, seed))
        return json.loads(records[0][0])["fits"] if records else None

    def clean_entropy(self, method: str, seed: int) -> NDArray[np.float32] | None:
        records = self.select("SELECT data FROM entropies WHERE method=? AND seed=?", (method, seed))
        return np.frombuffer(records[0][0], "<f4") if records else None

    def runs(self) -> list[dict[str, Any]]:
        names = "id, started, finished, seconds, engine, device, recipe, versions, revision, hardware"
        records = [dict(zip(names.split(", "), row, strict=True)) for row in self.select(f"SELECT {names} FROM runs")]
        return [{**run, **{k: json.loads(run[k]) for k in ("versions", "hardware")}} for run in records]


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
