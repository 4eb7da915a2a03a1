"""Atomic writes: a file appears completely or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from avuc.core.errors import InputError


@contextmanager
def atomic_path(destination: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to `destination`. On success it is renamed to `destination`, on failure removed.

    The data are on the disk before the rename, so after a crash there is the old file or the new one, never a part.
    """
    final = Path(destination)
    try:
        handle, name = tempfile.mkstemp(dir=final.parent or Path(), prefix=f".{final.name}.", suffix=".part")
    except OSError as error:
        raise InputError(
            f"{final}: cannot write here ({error.strerror}); choose a folder that exists and is writable"
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        mode = final.stat().st_mode & 0o777 if final.exists() else 0o666 & ~_umask()
        temporary.chmod(mode)
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(destination: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(destination) as path:
        path.write_text(text, encoding="utf-8")


def _umask() -> int:
    # the only way to read the umask is to set it
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
