"""Where data files are looked for, and how a file is known to be the published one."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from avuc.core.errors import InputError
from avuc.core.files import check_regular

__all__ = ["SUMS", "KnownFile", "as_path", "cache_dir", "check", "check_listed", "digest_of", "listing", "read_whole"]

SUMS = "SHA256SUMS"  # what `sha256sum *` writes: a user's own list of digests, checked where it is found


@dataclass(frozen=True)
class KnownFile:
    """A published file: its name, its size in bytes, its digest (`md5:…`, `sha1:…`, `sha256:…`) and its addresses."""

    name: str
    size: int
    digest: str
    urls: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, {self.digest})"


def cache_dir() -> Path:
    """Where downloads go: `AVUC_DATA`, or `avuc` in the user's cache folder."""
    if chosen := os.environ.get("AVUC_DATA"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "avuc"


def as_path(root: str | Path) -> Path:
    """A folder or file the user named; it must exist."""
    path = Path(root).expanduser()
    try:
        path.stat()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file or folder") from error
    except (OSError, ValueError) as error:  # no permission, links in a circle, a name too long or with a zero byte
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return path


def digest_of(path: Path, algorithm: str) -> str:
    """`algorithm:hex` of a file's bytes; md5 and sha1 are what the publishers list, they guard against damage only."""
    check_regular(path)
    try:
        with path.open("rb") as stream:
            value = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return f"{algorithm}:{value}"


def read_whole(path: Path) -> bytes:
    """A regular file's bytes."""
    check_regular(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def check(path: Path, known: KnownFile, *, others: Iterable[KnownFile] = ()) -> None:
    """Is `path` the published file? `others` are its siblings, so that a renamed one can be named."""
    found = digest_of(path, known.digest.partition(":")[0])
    if found == known.digest:
        return
    for other in others:
        if found == other.digest:
            raise InputError(f"{path}: this is {other.name} under another name; rename it")
    remedy = "fetch it again, or pass verify=False to read it as it is"
    size = path.stat().st_size
    if size != known.size:
        what = "truncated" if size < known.size else "longer than published"
        raise InputError(f"{path}: {what}: {size:,} bytes, expected {known.size:,}; {remedy}")
    raise InputError(f"{path}: damaged or changed: {found}, expected {known.digest}; {remedy}")


def check_listed(path: Path) -> bool:
    """Check a file against the `SHA256SUMS` beside it, if there is one that lists it; True when it was checked."""
    sums = path.parent / SUMS
    if not sums.is_file():
        return False
    listed = _sums(sums, sums.stat().st_mtime_ns).get(path.name)
    if listed is None:
        return False
    found = digest_of(path, "sha256")
    if found != f"sha256:{listed}":
        raise InputError(
            f"{path}: damaged or changed: {found}, but {SUMS} lists {listed}; "
            f"restore the file, correct {SUMS}, or pass verify=False"
        )
    return True


@functools.lru_cache(maxsize=64)
def _sums(path: Path, modified: int) -> dict[str, str]:
    """Digest by name; read once for a folder of many pictures, and again when the list was `modified`."""
    pairs = (line.partition(" ") for line in read_whole(path).decode("utf-8", "replace").splitlines())
    return {name.lstrip(" *"): value.lower() for value, _, name in pairs}


def listing(folder: Path, limit: int = 6) -> str:
    """The first names in a folder, for messages."""
    if not folder.is_dir():
        return "no such folder"
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        return f"a folder that cannot be read: {error.strerror}"
    if not names:
        return "an empty folder"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
