"""Find damage in a study's file before any of its numbers is used.

SQLite notices a broken structure (`PRAGMA quick_check`) but not a flipped bit inside a value. So the table `checks`
holds a digest of every unit: a result with everything that belongs to it, a training with its epochs, a run, a picture,
the recipe. A unit whose digest does not match is lost, and is computed again; everything else stays. Files of version
0.1.0 have no digests; they get them when the study is resumed.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from avuc.core.errors import InputError
from avuc.study.store.schema import PARTS, Part

DIGEST_BYTES = 16
MOST_NAMED = 20
MARK = "checks"  # key in `meta` of files that have a table `checks`; it stays if that table is lost


class Unit(NamedTuple):
    """A unit of the file that one digest covers. Texts are bytes, because a damaged file may not be UTF-8."""

    kind: str  # cell, model, picture, run, meta or data
    method: bytes
    seed: Any
    shift: bytes
    severity: Any

    @classmethod
    def of(cls, kind: str, method: str = "", seed: int = 0, shift: str = "", severity: int = 0) -> Unit:
        return cls(kind, method.encode(), seed, shift.encode(), severity)

    def __str__(self) -> str:
        method, shift = (_text(part) for part in (self.method, self.shift))
        if self.kind == "cell":
            return f"{method} (seed {self.seed}) on {shift}{f' {self.severity}' if self.severity else ''}"
        if self.kind == "model":
            return f"the training of {method} (seed {self.seed})"
        if self.kind == "picture":
            return f"the picture of {shift}{f' {self.severity}' if self.severity else ''}"
        if self.kind == "run":
            return f"the record of run {self.seed}"
        return f"the entry {method!r} of {self.kind}"


_RECIPE = Unit.of("meta", "recipe")
_META = next(part for part in PARTS if part.table == "meta")


def has_checks(db: sqlite3.Connection) -> bool:
    """Return whether the file holds digests; files of version 0.1.0 do not."""
    table = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'checks'").fetchone()
    return table is not None or db.execute("SELECT 1 FROM meta WHERE key = ?", (MARK,)).fetchone() is not None


def structure_problem(db: sqlite3.Connection) -> str | None:
    """Return SQLite's complaint about the file's structure in one line; None if there is none."""
    messages = [str(row[0]) for row in db.execute("PRAGMA quick_check(1)").fetchall()]
    return None if messages == ["ok"] else " ".join(" ".join(messages).split())[:200]


def check(db: sqlite3.Connection, units: Iterable[Unit] | None = None) -> None:
    """Store the digests of `units`, or of all units for None. Call it in the transaction that wrote them."""
    if units is None:
        db.execute("DELETE FROM checks")
        current = digests(db)
    else:
        current = {unit: digest for unit in units if (digest := _digest_of(db, unit)) is not None}
    lines = [(unit.kind, unit.method, unit.seed, unit.shift, unit.severity, digest) for unit, digest in current.items()]
    values = "?, CAST(? AS TEXT), ?, CAST(? AS TEXT), ?, ?"
    db.executemany(f"INSERT OR REPLACE INTO checks VALUES({values})", lines)


def damage_in(db: sqlite3.Connection) -> list[Unit]:
    """Return the units that are missing or do not match their digest; an empty list for a file without digests."""
    if not has_checks(db):
        return []
    with _raw(db):
        stored = db.execute("SELECT kind, method, seed, shift, severity, digest FROM checks").fetchall()
    expected = {Unit(_text(line[0]), *line[1:5]): line[5] for line in stored}
    current = digests(db)
    return sorted(
        {unit for unit in expected.keys() | current.keys() if expected.get(unit) != current.get(unit)},
        key=lambda unit: tuple(map(repr, unit)),
    )


def digests(db: sqlite3.Connection) -> dict[Unit, bytes]:
    """Return the digest of every unit in the file."""
    hashes: dict[Unit, Any] = {}
    with _raw(db):
        for part in PARTS:
            for row in db.execute(f"SELECT {', '.join(part.key)}, {part.rest} FROM {part.table} ORDER BY {part.order}"):
                unit = Unit(part.kind, *row[:4])
                if unit not in hashes:
                    hashes[unit] = hashlib.blake2b(repr(unit).encode(), digest_size=DIGEST_BYTES)
                hashes[unit].update(_line(part, row[4:]))
    return {unit: each.digest() for unit, each in hashes.items()}


def drop(db: sqlite3.Connection, lost: Iterable[Unit]) -> None:
    """Remove units. Tables are rewritten as a whole: damaged keys are out of order, and a search may miss them."""
    names = ("kind", "method", "seed", "shift", "severity")
    db.execute(f"CREATE TEMP TABLE lost({', '.join(names)})")
    lines = [(unit.kind, unit.method, unit.seed, unit.shift, unit.severity) for unit in lost]
    db.executemany("INSERT INTO lost VALUES(?, CAST(? AS TEXT), ?, CAST(? AS TEXT), ?)", lines)
    kinds = {unit.kind for unit in lost}
    for table, columns in [("checks", names)] + [
        (part.table, (f"'{part.kind}'", *part.key)) for part in PARTS if part.kind in kinds
    ]:
        # an identifier is a column of the table, anything else is a constant
        there = [f"{table}.{column}" if column.isidentifier() else column for column in columns]
        same = " AND ".join(f"lost.{name} IS {column}" for name, column in zip(names, there, strict=True))
        db.execute(
            f"CREATE TEMP TABLE kept AS SELECT * FROM {table} WHERE NOT EXISTS (SELECT 1 FROM lost WHERE {same})"
        )
        db.execute(f"DELETE FROM {table}")
        db.execute(f"INSERT INTO {table} SELECT * FROM kept")
        db.execute("DROP TABLE kept")
    db.execute("DROP TABLE lost")


def repair(db: sqlite3.Connection, path: Path) -> list[Unit]:
    """Remove damaged units in the open transaction, and return them.

    A damaged recipe is restored from the copy of a run. With a lost picture, one result on its images is removed too:
    computing that result again brings the picture back.
    """
    lost = damage_in(db)
    with _raw(db):
        stored = db.execute("SELECT digest FROM checks WHERE kind = 'meta' AND method = 'recipe'").fetchone()
    texts = {seed: text for seed, text in _recipes(db) if Unit.of("run", seed=seed) not in lost}
    recipe = None
    if _RECIPE in lost:
        recipe = _sound_recipe(db, [texts[seed] for seed in sorted(texts, reverse=True)], stored[0] if stored else b"")
        if recipe is None:
            raise InputError(
                f"{path}: its recipe is damaged, and no run in it holds a sound copy; move it away and run avuc study "
                "again, which computes the results again from the trained models"
            )
    for picture in [unit for unit in lost if unit.kind == "picture"]:
        same = [u for u in digests(db) if u.kind == "cell" and u[3:] == picture[3:] and u not in lost]
        lost += same[:1]
    kept = [(key, value) for key, value in db.execute("SELECT key, value FROM meta WHERE key IN ('format', 'checks')")]
    drop(db, lost)
    db.executemany("INSERT OR REPLACE INTO meta VALUES(?, ?)", [*kept, ("checks", "1")])
    if recipe is not None:
        db.execute("INSERT OR REPLACE INTO meta VALUES('recipe', CAST(? AS TEXT))", (recipe,))
    check(db, [Unit.of("meta", key) for key in ("format", "checks", "recipe")])
    if damage_in(db):
        raise InputError(f"{path}: is damaged and could not be repaired; move it away and run avuc study again")
    return [unit for unit in lost if unit.kind != "meta"]


def _recipes(db: sqlite3.Connection) -> list[tuple[Any, bytes]]:
    with _raw(db):
        return db.execute("SELECT id, recipe FROM runs").fetchall()


def _sound_recipe(db: sqlite3.Connection, copies: list[bytes], digest: bytes) -> bytes | None:
    """Return a copy with the stored digest; or the stored text, if it is the recipe of the last run; else None."""
    for text in copies:
        digester = hashlib.blake2b(repr(_RECIPE).encode(), digest_size=DIGEST_BYTES)
        digester.update(_line(_META, (text,)))
        if digester.digest() == digest:
            return text
    with _raw(db):
        stored = db.execute("SELECT value FROM meta WHERE key = 'recipe'").fetchone()
    return copies[0] if stored and copies and stored[0] == copies[0] else None


def lost_units_text(lost: Iterable[Unit]) -> str:
    """Return the names of units in one line, results first."""
    order = ("cell", "model", "run", "picture", "meta", "data")
    named = [str(unit) for kind in order for unit in lost if unit.kind == kind]
    return "; ".join(named[:MOST_NAMED]) + (f"; and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else "")


def _digest_of(db: sqlite3.Connection, unit: Unit) -> bytes | None:
    digester = hashlib.blake2b(repr(unit).encode(), digest_size=DIGEST_BYTES)
    any_row = False
    with _raw(db):
        for part in (part for part in PARTS if part.kind == unit.kind):
            conditions, values = ["1"], []
            for column, value in zip(part.key, unit[1:], strict=True):
                text = isinstance(value, bytes)
                conditions.append(f"{column} IS {'CAST(? AS TEXT)' if text else '?'}")
                values.append(value)
            query = f"SELECT {part.rest} FROM {part.table} WHERE {' AND '.join(conditions)} ORDER BY {part.order}"
            for row in db.execute(query, values):
                any_row = True
                digester.update(_line(part, row))
    return digester.digest() if any_row else None


def _line(part: Part, values: tuple[Any, ...]) -> bytes:
    """Return a row as bytes; `repr` distinguishes 1, 1.0 and "1", and keeps every bit of a float."""
    return f"{part.table}{values!r}".encode()


@contextmanager
def _raw(db: sqlite3.Connection) -> Iterator[None]:
    """Read texts as bytes, because damaged ones may not be UTF-8."""
    before = db.text_factory
    db.text_factory = bytes
    try:
        yield
    finally:
        db.text_factory = before


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
