"""Fetch a published file: with progress, resumable, checked, and never half of it under its own name."""

from __future__ import annotations

import http.client
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from avuc.core.errors import InputError
from avuc.core.progress import Progress
from avuc.data.files import KnownFile, check, digest_of

try:
    import fcntl
except ImportError:  # Windows: two downloads of one file at the same time are not guarded there
    fcntl = None  # type: ignore[assignment]

__all__ = ["fetch", "locked"]

log = logging.getLogger(__name__)
CHUNK = 1 << 18
MEGABYTE = 1 << 20
ATTEMPTS = 5  # connections that may break before one address is given up
TIMEOUT = 30.0  # seconds without a byte


class _Failed(Exception):
    """One address did not deliver; another may."""


def fetch(known: KnownFile, folder: Path) -> Path:
    """Download `known` into `folder` from the first of its addresses that delivers; return its path.

    Bytes are gathered in `.NAME.part`, which outlives an interruption: the next call asks the server for the rest. The
    file gets its own name only after its size and digest are right and it is on the disk. (`core.atomic` starts from
    nothing each time, so it cannot serve here.)
    """
    final = folder / known.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{known.name}.part"
        with locked(part) as stream:
            if final.exists():  # from an earlier run, or from the process that held the lock
                check(final, known)
                if part.exists() and part.stat().st_size == 0:
                    part.unlink()
                return final
            _gather(known, stream, part, folder)
            part.replace(final)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot store {known.name} ({error.strerror or error}); {_by_hand(known, folder)}"
        ) from error
    return final


def _gather(known: KnownFile, stream: BinaryIO, part: Path, folder: Path) -> None:
    """Fill `stream` with the checked bytes of `known`."""
    problems: list[str] = []
    for url in known.urls:
        resumed = _length(stream) > 0
        for fresh in (False, True) if resumed else (True,):
            if fresh:
                stream.truncate(0)
            try:
                _download(url, stream, known)
            except _Failed as problem:
                problems.append(str(problem))
                break
            stream.flush()
            os.fsync(stream.fileno())
            found = digest_of(part, known.digest.partition(":")[0])
            if found == known.digest:
                return
            # a resumed file may hold the start of another version: once more from the beginning
            if fresh:
                problems.append(f"{url}: what arrived is {found}, expected {known.digest}; it was deleted")
                stream.truncate(0)
    raise InputError(f"{'; '.join(problems)}; {_by_hand(known, folder)}")


def _download(url: str, stream: BinaryIO, known: KnownFile) -> None:
    """Append to `stream` until it has `known.size` bytes, reconnecting where the connection broke."""
    problem = ""
    for _ in range(ATTEMPTS):
        have = _length(stream)
        if have > known.size:
            stream.truncate(0)
            have = 0
        if have == known.size:
            return
        request = urllib.request.Request(url, headers={"User-Agent": "avuc", "Accept-Encoding": "identity"})
        if have:
            request.add_header("Range", f"bytes={have}-")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                if not _continues(response, have):
                    stream.truncate(0)
                    have = 0
                _expect(response, url, known.size - have)
                problem = _copy(response, stream, known, url)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 416:  # 416: the part is not a prefix of what the server has
                raise _Failed(f"{url}: HTTP {error.code} {error.reason}") from error
            stream.truncate(0)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            problem = f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}"
            if _length(stream) == have:  # not one byte came: there is no network, or no server
                break
    if _length(stream) != known.size:
        raise _Failed(f"{problem} (kept {_length(stream):,} of {known.size:,} bytes; the next run resumes)")


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    """Does this response start where the part ends? A server that knows no ranges sends the whole file with 200."""
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _expect(response: http.client.HTTPResponse, url: str, size: int) -> None:
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and int(length) != size:
        # a login page or another version: do not even begin
        raise _Failed(f"{url}: offers {int(length):,} bytes where {size:,} were expected")


def _copy(response: http.client.HTTPResponse, stream: BinaryIO, known: KnownFile, url: str) -> str:
    """Copy what comes; the problem in words when it ends early."""
    have = _length(stream)
    with Progress(f"{known.name} (MB)", known.size // MEGABYTE) as bar:
        bar.advance(have // MEGABYTE)
        while have < known.size:
            try:
                chunk = response.read(min(CHUNK, known.size - have))
            except (http.client.HTTPException, OSError) as error:
                return f"{url}: the connection broke ({error or type(error).__name__})"
            if not chunk:
                return f"{url}: the connection ended early"
            stream.write(chunk)
            bar.advance((have + len(chunk)) // MEGABYTE - have // MEGABYTE)
            have += len(chunk)
    return ""


def _length(stream: BinaryIO) -> int:
    return stream.seek(0, os.SEEK_END)


def _by_hand(known: KnownFile, folder: Path) -> str:
    return f"without a network, put {known} from {known.urls[0]} into {folder}"


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """A file to append to, held by this process alone; a killed holder's lock is gone with it."""
    with path.open("ab") as stream:
        if fcntl is not None:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("%s: another process is at it; waiting", path)
                fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream
