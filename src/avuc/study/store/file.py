"""`study.sqlite` as a file: opening, checking for damage, transactions, and clear messages for SQLite's errors."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError
from avuc.study.store.integrity import Unit, check, damage_in, has_checks, lost_units_text, repair, structure_problem
from avuc.study.store.schema import ADDED, FORMAT, PAGE, SCHEMA, schema_problem

BUSY_SECONDS = 120
MOVE_AWAY = (
    "move it away and run avuc study again, which computes the results again from the trained models, "
    "or choose another folder"
)
DAMAGED = f"it is damaged: {MOVE_AWAY}"
_MAKE_ROOM = "everything finished before is kept: make room and run the same command again"
_HELD = "another program holds it: end that program and run the same command again"
_PERMISSIONS = "it cannot be opened for writing: check the folder's permissions, or choose another folder"
REMEDIES = {
    sqlite3.SQLITE_FULL: _MAKE_ROOM,
    sqlite3.SQLITE_IOERR: _MAKE_ROOM,
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
    sqlite3.SQLITE_CANTOPEN: _PERMISSIONS,
    sqlite3.SQLITE_READONLY: _PERMISSIONS,
    sqlite3.SQLITE_PERM: _PERMISSIONS,
}


class StudyFile:
    """The file behind `Store`; same arguments."""

    def __init__(self, directory: str | Path, *, create: bool = True, check: bool = True) -> None:
        self.path: Path = Path(directory) / "study.sqlite"
        if not create and not self.path.is_file():
            raise InputError(
                f"{directory}: no study here (study.sqlite is missing); avuc study RECIPE --out DIR makes one"
            )
        self.run: int | None = None
        self.lost: list[Unit] = []
        self._inode: tuple[int, int] | None = None  # device and inode, once the file is open
        with self.clear_errors():
            self.db: sqlite3.Connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                self._open(create, check)
            except BaseException:
                self.db.close()
                raise
        self._inode = self._find_inode()

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
        version = self._meta("format")
        if version != FORMAT:
            newer = version is not None and version.isdigit() and int(version) > int(FORMAT)
            by = "a newer version of avuc: update avuc" if newer else "another version of avuc: choose another folder"
            raise InputError(f"{self.path}: format {version}, expected {FORMAT}; made by {by}")
        if create:
            self._prepare()
        if check:
            self._check_damage(create)

    def _prepare(self) -> None:
        self.db.execute(f"PRAGMA page_size={PAGE}")  # has an effect on new files only
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        with self._writing():
            for statement in SCHEMA.split(";"):
                self.db.execute(statement)
            self.db.execute("INSERT OR IGNORE INTO meta VALUES('format', ?)", (FORMAT,))
            if not has_checks(self.db):  # a new file, or one of version 0.1.0, whose content is assumed to be correct
                for statement in ADDED.split(";"):
                    self.db.execute(statement)
                self.db.execute("INSERT INTO meta VALUES('checks', '1')")
                check(self.db)

    def _check_damage(self, create: bool) -> None:
        """Check the file for damage, and continue without the damaged results."""
        self.db.execute("BEGIN")  # read one state of the file, even if another process writes
        lost = damage_in(self.db)
        self.db.execute("COMMIT")
        if not lost:
            return
        if create:
            with self._writing():
                self.lost = repair(self.db, self.path)  # checks again: another process may have repaired it
            return
        copy = sqlite3.connect(":memory:", isolation_level=None)
        self.db.backup(copy)
        self.db.close()
        self.db = copy
        self.lost = repair(copy, self.path)

    def close(self) -> None:
        self.db.close()

    def __del__(self) -> None:
        # Python 3.13 warns about a connection that was not closed; most callers of `avuc.study.run` close nothing
        if hasattr(self, "db"):
            with contextlib.suppress(sqlite3.ProgrammingError):  # the garbage collector may run in another thread
                self.close()

    def damage(self) -> str:
        """Return what is lost, in one line."""
        return f"{self.path}: is damaged, and these are lost: {lost_units_text(self.lost)}"

    def _find_inode(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def still_there(self) -> None:
        """Raise if the file was removed or replaced: SQLite would write into a file that has no name any more."""
        if self._inode is None or self._find_inode() != self._inode:
            raise InputError(
                f"{self.path}: was removed or replaced while it was open; results since then are lost: run the same "
                "command again"
            )

    def _meta(self, key: str) -> str | None:
        records = self.select("SELECT value FROM meta WHERE key=?", (key,))
        return records[0][0] if records else None

    def select(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self.clear_errors():
            return self.db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Open a transaction that takes the write lock at once, so that a second writer waits instead of failing."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")
            if self._inode is not None:
                self.still_there()
        except BaseException:
            if self.db.in_transaction:  # SQLite has rolled back already if the disk is full
                self.db.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def clear_errors(self) -> Iterator[None]:
        """Raise SQLite's errors as one line that says what to do."""
        try:
            yield
        except sqlite3.Error as error:
            message = " ".join(str(error).split())
            raise InputError(f"{self.path}: {message}; {_remedy(error)}") from error


def _remedy(error: sqlite3.Error) -> str:
    """Return what to do about an error, by SQLite's result code; an extended code has the primary one as low byte."""
    code = getattr(error, "sqlite_errorcode", None)
    return DAMAGED if code is None else REMEDIES.get(code & 0xFF, DAMAGED)
