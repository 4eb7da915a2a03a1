"""A small copy of a study, to publish: everything the report reads, without models, predictions and journals."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

from avuc.atomic import atomic_path, write_text
from avuc.errors import InputError
from avuc.study.store import Store

__all__ = ["export_study"]

# of the surest mistakes on each set, with their pictures: these fill most of a study's file
MISTAKES = 4


def export_study(source: str | Path, target: str | Path) -> Path:
    """Write the study in the folder `source` to `target`/study.sqlite, with its recipe beside it as recipe.toml.

    All rows, curves, trainings, calibrators and runs are kept. Of single images, what the report shows: those of each
    row's first seed, with four pictures of mistakes a set. The copy has no write-ahead journal; reading it changes
    nothing.
    """
    folder = Path(target)
    if folder.resolve() == Path(source).resolve():
        raise InputError(f"{folder}: is the study itself; choose another --out")
    store = Store(source, create=False)
    try:
        recipe = store.recipe()
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
    for method, seed, shift, severity, text in copy.execute("SELECT * FROM shown").fetchall():
        key = (method, seed, shift, severity)
        where = "WHERE method=? AND seed=? AND shift=? AND severity=?"
        if firsts.get(method) != seed:
            copy.execute(f"DELETE FROM shown {where}", key)
            continue
        data = json.loads(text)
        data["mistakes"] = data["mistakes"][:MISTAKES]
        copy.execute(f"UPDATE shown SET data=? {where}", (json.dumps(data, separators=(",", ":")), *key))
    copy.execute("COMMIT")
    copy.execute("VACUUM")
