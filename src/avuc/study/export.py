"""A small copy of a study, to publish: everything the report reads, without models, predictions and journals."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from avuc.core.atomic import atomic_path, write_text
from avuc.core.errors import InputError
from avuc.study.integrity import check, has_checks
from avuc.study.portable import portable
from avuc.study.recipe import parse_recipe
from avuc.study.store import Store

__all__ = ["export_study"]

# of the numbers that curves are drawn from
DIGITS = 4


def export_study(source: str | Path, target: str | Path) -> Path:
    """Write the study in the folder `source` to `target`/study.sqlite, with its recipe beside it as recipe.toml.

    All rows, trainings, calibrators and runs are kept, curves with four digits; of single images, what the report shows
    of each row's smallest seed, without pictures of mistakes, which fill most of a study's file and may not be ours to
    give away. Recipes name files without their folders. The copy is a study, which may go on; it has no write-ahead
    journal, so that reading it changes nothing.
    """
    folder = Path(target)
    if folder.resolve() == Path(source).resolve():
        raise InputError(f"{folder}: is the study itself; choose another --out")
    store = Store(source, create=False)
    try:
        if store.lost:
            raise InputError(f"{store.damage()}; avuc study computes them again, then export it")
        recipe = portable(store.recipe())
        firsts = dict(store.select("SELECT method, min(seed) FROM cells GROUP BY method"))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "study.sqlite"
        with atomic_path(path) as new:
            new.unlink(missing_ok=True)  # SQLite wants to make the file
            with store.clear_errors():
                store.db.execute("VACUUM INTO ?", (str(new),))
                with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as copy:
                    _thin(copy, firsts)
        write_text(folder / "recipe.toml", recipe.to_toml())
    except OSError as error:
        raise InputError(f"{folder}: the copy cannot be written ({error.strerror})") from error
    finally:
        store.close()
    return path


def _thin(copy: sqlite3.Connection, firsts: dict[str, int]) -> None:
    copy.execute("PRAGMA journal_mode=DELETE")
    copy.execute("BEGIN")
    where = "WHERE method=? AND seed=? AND shift=? AND severity=?"
    for *key, name, text in copy.execute("SELECT * FROM curves").fetchall():
        values = (_json(_rounded(json.loads(text))), *key, name)
        copy.execute(f"UPDATE curves SET data=? {where} AND name=?", values)
    for *key, text in copy.execute("SELECT * FROM shown").fetchall():
        if firsts.get(key[0]) == key[1]:
            copy.execute(f"UPDATE shown SET data=? {where}", (_json({**json.loads(text), "mistakes": []}), *key))
        else:
            copy.execute(f"DELETE FROM shown {where}", key)
    for table, column, name, where in (("meta", "value", "key", "WHERE key = 'recipe'"), ("runs", "recipe", "id", "")):
        for key, text in copy.execute(f"SELECT {name}, {column} FROM {table} {where}").fetchall():
            copy.execute(f"UPDATE {table} SET {column}=? WHERE {name}=?", (portable(parse_recipe(text)).to_toml(), key))
    if has_checks(copy):
        check(copy)
    copy.execute("COMMIT")
    copy.execute("VACUUM")  # also of what the changes left in the file, which has the old paths in it


def _rounded(value: Any) -> Any:
    """
    >>> _rounded({"stated": [0.123456, None], "rows": [12345]})
    {'stated': [0.1235, None], 'rows': [12345]}
    """
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))
