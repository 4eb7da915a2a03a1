"""Download a published file: with progress, resumable, checked, and never incomplete under its own name."""

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
from avuc.data.files import KnownFile, check_digest, file_digest

try:
    import fcntl
except ImportError:  # Windows: nothing prevents two processes from downloading a file at the same time
    fcntl = None  # type: ignore[assignment]


log: logging.Logger = logging.getLogger(__name__)
CHUNK = 1 << 18
MEGABYTE = 1 << 20
ATTEMPTS = 5  # connections per address
TIMEOUT = 30.0  # seconds without data


class _Failed(Exception):
    """One address failed; another may work."""


def fetch(known: KnownFile, folder: Path) -> Path:
    """Download a file from the first of its addresses that works; return its path.

    Data is collected in `.NAME.part`, which survives an interruption: the next call asks the server for the rest. The
    file gets its own name after size and digest were checked and it is on the disk. (`core.atomic` always starts from
    nothing, so it cannot be used here.)

    Args:
        known: the published file.
        folder: where it is stored; it is created if it does not exist.
    """
    final = folder / known.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{known.name}.part"
        with locked(part) as stream:
            if final.exists():  # from an earlier run, or from the process that held the lock
                check_digest(final, known)
                if part.exists() and part.stat().st_size == 0:
                    part.unlink()
                return final
            _download_checked(known, stream, part, folder)
            part.replace(final)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot store {known.name} ({error.strerror or error}); {_by_hand(known, folder)}"
        ) from error
    return final


def _download_checked(known: KnownFile, stream: BinaryIO, part: Path, folder: Path) -> None:
    """Download the file into `stream` and check it; try every address."""
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
            digest = file_digest(part, known.digest.partition(":")[0])
            if digest == known.digest:
                return
            # a resumed file may begin with another version, so it is downloaded once more from the start
            if fresh:
                problems.append(f"{url}: what arrived is {digest}, expected {known.digest}; it was deleted")
                stream.truncate(0)
    raise InputError(f"{'; '.join(problems)}; {_by_hand(known, folder)}")


def _download(url: str, stream: BinaryIO, known: KnownFile) -> None:
    """Append to `stream` until it has `known.size` bytes; reconnect if the connection breaks."""
    problem = ""
    for _ in range(ATTEMPTS):
        length = _length(stream)
        if length > known.size:
            stream.truncate(0)
            length = 0
        if length == known.size:
            return
        request = urllib.request.Request(url, headers={"User-Agent": "avuc", "Accept-Encoding": "identity"})
        if length:
            request.add_header("Range", f"bytes={length}-")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                if not _continues(response, length):
                    stream.truncate(0)
                    length = 0
                _expect(response, url, known.size - length)
                problem = _copy(response, stream, known, url)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 416:  # 416: the server has fewer bytes than the part
                raise _Failed(f"{url}: HTTP {error.code} {error.reason}") from error
            stream.truncate(0)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            problem = f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}"
            if _length(stream) == length:  # no data at all: there is no network, or no server
                break
    if _length(stream) != known.size:
        raise _Failed(f"{problem} (kept {_length(stream):,} of {known.size:,} bytes; the next run resumes)")


def _continues(response: http.client.HTTPResponse, length: int) -> bool:
    """Return whether the response starts after `length` bytes. Servers without ranges send all with status 200."""
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {length}-")


def _expect(response: http.client.HTTPResponse, url: str, size: int) -> None:
    """Raise an error if the server announces another number of bytes than `size`."""
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and int(length) != size:
        # a login page or another version
        raise _Failed(f"{url}: offers {int(length):,} bytes where {size:,} were expected")


def _copy(response: http.client.HTTPResponse, stream: BinaryIO, known: KnownFile, url: str) -> str:
    """Copy the response to `stream`; return the problem if it ends early, otherwise an empty string."""
    length = _length(stream)
    with Progress(f"{known.name} (MB)", known.size // MEGABYTE) as bar:
        bar.advance(length // MEGABYTE)
        while length < known.size:
            try:
                chunk = response.read(min(CHUNK, known.size - length))
            except (http.client.HTTPException, OSError) as error:
                return f"{url}: the connection broke ({error or type(error).__name__})"
            if not chunk:
                return f"{url}: the connection ended early"
            stream.write(chunk)
            bar.advance((length + len(chunk)) // MEGABYTE - length // MEGABYTE)
            length += len(chunk)
    return ""


def _length(stream: BinaryIO) -> int:
    return stream.seek(0, os.SEEK_END)


def _by_hand(known: KnownFile, folder: Path) -> str:
    return f"without a network, put {known} from {known.urls[0]} into {folder}"


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """Open a file for appending and lock it; other processes wait. The lock of a killed process is released."""
    with path.open("ab") as stream:
        if fcntl is not None:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("%s: another process is downloading it; waiting", path)
                fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream
