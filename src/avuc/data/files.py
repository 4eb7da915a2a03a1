"""Published files and their digests, the cache folder, and `SHA256SUMS`."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from avuc.core.errors import InputError
from avuc.core.files import check_regular

SUMS = "SHA256SUMS"  # a list of digests that the user may keep next to the files, as `sha256sum *` writes it


@dataclass(frozen=True)
class KnownFile:
    """A published file.

    Attributes:
        name: file name.
        size: length in bytes.
        digest: `md5:…`, `sha1:…` or `sha256:…`.
        urls: where it can be downloaded, in the order in which they are tried.
    """

    name: str
    size: int
    digest: str
    urls: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, {self.digest})"


def cache_dir() -> Path:
    """Return the folder of downloads: the environment variable `AVUC_DATA`, or `avuc` in the user's cache folder."""
    if chosen := os.environ.get("AVUC_DATA"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "avuc"


def existing_path(root: str | Path) -> Path:
    """Return a path that the user named, with `~` replaced; raise an `InputError` if nothing is there."""
    path = Path(root).expanduser()
    try:
        path.stat()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file or folder; check the name") from error
    except (OSError, ValueError) as error:  # no permission, a loop of links, a name too long or with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); check the path and permissions") from error
    return path


def file_digest(path: Path, algorithm: str) -> str:
    """Return `algorithm:hex` of a file's bytes. Publishers list md5 and sha1: they reveal damage, not an attack."""
    check_regular(path)
    try:
        with path.open("rb") as stream:
            value = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error
    return f"{algorithm}:{value}"


def read_whole(path: Path) -> bytes:
    """Return the bytes of a regular file."""
    check_regular(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def check_digest(path: Path, known: KnownFile, *, others: Iterable[KnownFile] = ()) -> None:
    """Raise an `InputError` if `path` is not the published file.

    Args:
        path: the file to check.
        known: what was published.
        others: files published with it; the message says so if `path` is one of them under another name.
    """
    digest = file_digest(path, known.digest.partition(":")[0])
    if digest == known.digest:
        return
    for other in others:
        if digest == other.digest:
            raise InputError(f"{path}: this is {other.name} under another name; rename it")
    remedy = "fetch it again, or pass verify=False to read it as it is"
    size = path.stat().st_size
    if size != known.size:
        problem = "truncated" if size < known.size else "longer than published"
        raise InputError(f"{path}: {problem}: {size:,} bytes, expected {known.size:,}; {remedy}")
    raise InputError(f"{path}: damaged or changed: {digest}, expected {known.digest}; {remedy}")


def check_sha256sums(path: Path) -> bool:
    """Compare a file with `SHA256SUMS` in its folder; return whether that list exists and names the file."""
    sums = path.parent / SUMS
    if not sums.is_file():
        return False
    listed = _read_sums(sums, sums.stat().st_mtime_ns).get(path.name)
    if listed is None:
        return False
    digest = file_digest(path, "sha256")
    if digest != f"sha256:{listed}":
        raise InputError(
            f"{path}: damaged or changed: {digest}, but {SUMS} lists {listed}; "
            f"restore the file, correct {SUMS}, or pass verify=False"
        )
    return True


@functools.lru_cache(maxsize=64)
def _read_sums(path: Path, modified: int) -> dict[str, str]:
    """Return the digests by file name. `modified`, the time of the last change, makes the cache read a new list."""
    pairs = (line.partition(" ") for line in read_whole(path).decode("utf-8", "replace").splitlines())
    return {name.lstrip(" *"): value.lower() for value, _, name in pairs}


def folder_listing(folder: Path, limit: int = 6) -> str:
    """Return the first `limit` names in a folder, for error messages."""
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


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({error.strerror}); check the path and permissions")


# names of version 0.1.0
as_path: Callable[[str | Path], Path] = existing_path
check: Callable[..., None] = check_digest
check_listed: Callable[[Path], bool] = check_sha256sums
digest_of: Callable[[Path, str], str] = file_digest
listing: Callable[..., str] = folder_listing
