"""Who works on what, among processes that share a study's folder.

A claim is a lock on one byte of a file: the system gives it up when its holder ends, however it ends. So a killed
process leaves nothing to clean up, and two processes never do the same work at the same time.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Claims"]

try:
    import fcntl

    LOCKS = True
except ImportError:  # Windows: one process at a time there
    LOCKS = False


class Claims:
    """Locks of this process; one object for each file and process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    @contextlib.contextmanager
    def claim(self, *names: str) -> Iterator[list[str]]:
        """Those of `names` that nobody else holds; given back at the end of the block."""
        got = [name for name in names if self._lock(name)]
        try:
            yield got
        finally:
            for name in got:
                if LOCKS:
                    fcntl.lockf(self._file, fcntl.LOCK_UN, 1, zlib.crc32(name.encode()))

    def _lock(self, name: str) -> bool:
        if not LOCKS:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, zlib.crc32(name.encode()))
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.close(self._file)
