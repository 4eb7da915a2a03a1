"""The tables of `study.sqlite`, and which of their rows belong together."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

FORMAT = "1"
PAGE = 8192  # bytes; several curves fit into such a page, while one curve would need two pages of 4,096 bytes
CELL = "method TEXT NOT NULL, seed INTEGER NOT NULL, shift TEXT NOT NULL, severity INTEGER NOT NULL"
KEY = "method, seed, shift, severity"
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs(id INTEGER PRIMARY KEY, started TEXT NOT NULL, finished TEXT, seconds REAL,
    engine TEXT NOT NULL, device TEXT NOT NULL, recipe TEXT NOT NULL, versions TEXT NOT NULL, revision TEXT,
    hardware TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS models(method TEXT, seed INTEGER, epochs INTEGER, seconds REAL, threshold REAL, run INTEGER,
    PRIMARY KEY(method, seed)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history(method TEXT, seed INTEGER, member INTEGER, epoch INTEGER, data TEXT NOT NULL,
    PRIMARY KEY(method, seed, member, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calibrators(method TEXT, seed INTEGER, data TEXT NOT NULL,
    PRIMARY KEY(method, seed)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cells({CELL}, rows INTEGER, samples INTEGER, seconds REAL, run INTEGER,
    PRIMARY KEY({KEY})) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows({CELL}, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY({KEY}, metric)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS curves({CELL}, name TEXT NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY({KEY}, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entropies(method TEXT, seed INTEGER, data BLOB NOT NULL,
    PRIMARY KEY(method, seed)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shown({CELL}, data TEXT NOT NULL, PRIMARY KEY({KEY})) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gallery(shift TEXT, severity INTEGER, data BLOB NOT NULL,
    PRIMARY KEY(shift, severity)) WITHOUT ROWID;
"""
# tables added after version 0.1.0; files without them are read as before
ADDED = f"""
CREATE TABLE IF NOT EXISTS checks(kind TEXT NOT NULL, {CELL}, digest BLOB NOT NULL,
    PRIMARY KEY(kind, {KEY})) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS data(name TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Part:
    """A table, the kind of unit its rows belong to, and the columns (or constants) that identify the unit."""

    table: str
    kind: str
    key: tuple[str, str, str, str]  # method, seed, shift, severity of the unit
    rest: str
    order: str


# A unit is written, checked, lost and computed again as a whole.
PARTS = (
    Part("cells", "cell", ("method", "seed", "shift", "severity"), "rows, samples, seconds, run", KEY),
    Part("rows", "cell", ("method", "seed", "shift", "severity"), "metric, value", f"{KEY}, metric"),
    Part("curves", "cell", ("method", "seed", "shift", "severity"), "name, data", f"{KEY}, name"),
    Part("shown", "cell", ("method", "seed", "shift", "severity"), "data", KEY),
    Part("calibrators", "cell", ("method", "seed", "'validation'", "0"), "data", "method, seed"),
    Part("entropies", "cell", ("method", "seed", "'clean'", "0"), "data", "method, seed"),
    Part("models", "model", ("method", "seed", "''", "0"), "epochs, seconds, threshold, run", "method, seed"),
    Part("history", "model", ("method", "seed", "''", "0"), "member, epoch, data", "method, seed, member, epoch"),
    Part("gallery", "picture", ("''", "0", "shift", "severity"), "data", "shift, severity"),
    Part(
        "runs",
        "run",
        ("''", "id", "''", "0"),
        "started, finished, seconds, engine, device, recipe, versions, revision, hardware",
        "id",
    ),
    Part("meta", "meta", ("key", "0", "''", "0"), "value", "key"),
    Part("data", "data", ("name", "0", "''", "0"), "digest", "name"),
)


def schema_problem(db: sqlite3.Connection) -> str | None:
    """Return what is wrong with the tables of an open file; None for the file of a study, also of version 0.1.0."""
    tables = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    if "meta" not in tables:
        return "is a database, but not of an avuc study"
    with sqlite3.connect(":memory:") as model:
        model.executescript(SCHEMA)
        old = dict(model.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
        model.executescript(ADDED)
        new = dict(model.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    model.close()
    expected = new if "checks" in tables or "data" in tables else old
    wrong = [name for name, sql in expected.items() if tables.get(name) != sql]
    return f"its table {wrong[0]!r} is missing or altered" if wrong else None
