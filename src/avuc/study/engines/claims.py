"""Which process works on what, among processes that share a study's folder.

A claim is a lock on one byte of a file. The system releases it when the process ends, however it ends. So a killed
process leaves nothing to clean up, and two processes never do the same work at the same time.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl

    LOCKS = True
except ImportError:  # Windows: run one process at a time
    LOCKS = False


class Claims:
    """The locks of this process. Make one object for each file and process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    @contextlib.contextmanager
    def claim(self, *names: str) -> Iterator[list[str]]:
        """Claim the `names` that no other process holds, and yield them; released at the end of the block."""
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
