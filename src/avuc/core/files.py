"""Open files from outside: regular files only, and no more bytes than expected."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from avuc.core.errors import InputError

# largest size of a recipe or a calibrator, in bytes
MOST_TEXT = 16 * 2**20


def check_regular(path: str | Path) -> os.stat_result:
    """Return the file's status; `InputError` if it is missing, or a folder, pipe, socket or device.

    Reading a pipe or a device could wait forever.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and permissions") from error
    return _regular(path, status)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading; a pipe is refused without waiting for its writer."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _regular(path, os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_text(path: str | Path, most: int = MOST_TEXT) -> str:
    """Return the UTF-8 text of a regular file of at most `most` bytes, without the mark that Windows may put first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.toml").write_text("seed = 1")
    ...     read_text(Path(folder, "a.toml"))
    'seed = 1'
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InputError(f"{path}: is larger than {most / 2**20:g} MiB; name the right file")
    return content.decode("utf-8-sig")


def same_file(first: str | Path, second: str | Path) -> bool:
    """Return whether two paths are one file: through links, or names that differ in case. It need not exist yet.

    >>> same_file("a/../b.json", "b.json")
    True
    """
    try:
        return os.path.samefile(first, second)
    except OSError:
        pass
    real, other = os.path.realpath(first), os.path.realpath(second)
    if real == other:
        return True
    return real.casefold() == other.casefold() and _ignores_case(os.path.dirname(real))


def _ignores_case(folder: str) -> bool:
    """Return whether the folder's file system ignores the case of names."""
    other = folder.swapcase()
    try:
        return other != folder and os.path.samefile(folder, other)
    except OSError:
        return False


def _regular(path: str | Path, status: os.stat_result) -> os.stat_result:
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path}: cannot be read, it is a folder; name a file")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: cannot be read, it is not a regular file; save its content to a file first")
    return status
