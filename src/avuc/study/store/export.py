"""A small copy of a study, to publish: everything the report reads, without models and predictions."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tomllib
from pathlib import Path
from typing import Any

from avuc.core.atomic import atomic_path, write_text
from avuc.core.errors import InputError
from avuc.study.recipe.portable import portable_tables
from avuc.study.recipe.toml import document
from avuc.study.store.integrity import check, has_checks
from avuc.study.store.store import Store

# of the numbers that curves are drawn from
DIGITS = 4


def export_study(source: str | Path, target: str | Path) -> Path:
    """Write a small copy of a study, and return the path of its file.

    The copy keeps all metrics, trainings, calibrators and runs, and curves with four digits. Of single images it keeps
    what the report shows, of each method's smallest seed, without pictures of mistakes: those fill most of a study's
    file, and their licence may not allow to publish them. Recipes name files without their folders. The copy is a
    study that can be resumed. It has no write-ahead journal, so reading it changes nothing.

    Args:
        source: the study's folder.
        target: folder of the copy: study.sqlite, and the recipe as recipe.toml.
    """
    folder = Path(target)
    if folder.resolve() == Path(source).resolve():
        raise InputError(f"{folder}: is the study itself; choose another --out")
    store = Store(source, create=False)
    try:
        if store.lost:
            raise InputError(f"{store.damage()}; avuc study computes them again, then export it")
        recipe = store.stored_recipe()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "study.sqlite"
        with atomic_path(path) as new:
            new.unlink(missing_ok=True)  # VACUUM INTO creates the file itself
            with store.clear_errors():
                store.db.execute("VACUUM INTO ?", (str(new),))
                with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as copy:
                    _reduce(copy)
        write_text(folder / "recipe.toml", recipe.to_toml())
    except OSError as error:
        raise InputError(f"{folder}: the copy cannot be written ({error.strerror})") from error
    finally:
        store.close()
    return path


def _reduce(copy: sqlite3.Connection) -> None:
    copy.execute("PRAGMA journal_mode=DELETE")
    copy.execute("BEGIN")
    where = "WHERE method=? AND seed=? AND shift=? AND severity=?"
    for *key, name, text in copy.execute("SELECT * FROM curves").fetchall():
        values = (_json(_rounded(json.loads(text))), *key, name)
        copy.execute(f"UPDATE curves SET data=? {where} AND name=?", values)
    # the report shows the smallest seed of each set, which may be another one if a new seed is not finished
    kept = set(copy.execute("SELECT method, min(seed), shift, severity FROM shown GROUP BY method, shift, severity"))
    for *key, text in copy.execute("SELECT * FROM shown").fetchall():
        if tuple(key) in kept:
            copy.execute(f"UPDATE shown SET data=? {where}", (_json({**json.loads(text), "mistakes": []}), *key))
        else:
            copy.execute(f"DELETE FROM shown {where}", key)
    for table, column, name, where in (("meta", "value", "key", "WHERE key = 'recipe'"), ("runs", "recipe", "id", "")):
        for key, text in copy.execute(f"SELECT {name}, {column} FROM {table} {where}").fetchall():
            copy.execute(f"UPDATE {table} SET {column}=? WHERE {name}=?", (_portable(text), key))
    if has_checks(copy):
        check(copy)
    copy.execute("COMMIT")
    copy.execute("VACUUM")  # also removes the old paths that the changes left in free pages of the file


def _portable(text: str) -> str:
    """Return a stored recipe without the folders of this machine."""
    try:
        return document(portable_tables(tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the study holds a recipe that is not valid TOML ({error}); it cannot be exported") from error


def _rounded(value: Any) -> Any:
    """
    >>> _rounded({"stated": [0.123456, None], "rows": [12345]})
    {'stated': [0.1235, None], 'rows': [12345]}
    """
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))
