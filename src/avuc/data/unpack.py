"""Take the known members, and nothing else, out of a tar archive."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from avuc.core.atomic import atomic_path
from avuc.core.errors import InputError
from avuc.data.files import KnownFile, check

__all__ = ["unpack"]

CHUNK = 1 << 20
MAX_HEADER = 1 << 16
HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
SLACK = 1 << 26  # bytes of members that are not wanted (a readme, metadata) before the archive is called wrong


class _Entry(tarfile.TarInfo):
    """Refuses long names and other extended headers of more than 64 KiB, which `tarfile` reads into memory whole."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in HEADERS and self.size > MAX_HEADER:
            raise tarfile.ReadError(f"an extended header of {self.size:,} bytes")
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return member


def unpack(archive: Path, members: Mapping[str, KnownFile], folder: Path, *, verify: bool = True) -> None:
    """Write the archive's `members` (their paths inside it) into `folder` under their known names.

    Only regular files whose path is listed are written, to names that come from this program and not from the archive,
    so that no link, device, absolute path or `..` can lead elsewhere; none may be much larger than published. Each is
    checked before it gets its name.
    """
    written: set[str] = set()
    allowance = sum(known.size for known in members.values()) + SLACK
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r|*", tarinfo=_Entry) as tar:
            for entry in tar:
                allowance -= entry.size
                if allowance < 0:
                    raise InputError(f"{archive}: holds far more than was published; fetch it again")
                known = members.get(entry.name.removeprefix("./"))
                if known is None:
                    continue
                if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    raise InputError(f"{archive}: {entry.name} is not a regular file; fetch the archive again")
                if known.name in written:
                    raise InputError(f"{archive}: holds {entry.name} twice; fetch the archive again")
                if entry.size > 2 * known.size:
                    raise InputError(
                        f"{archive}: {entry.name} has {entry.size:,} bytes, expected {known.size:,}; fetch it again"
                    )
                source = tar.extractfile(entry)
                assert source is not None  # a regular file always opens
                with atomic_path(folder / known.name) as path:
                    _copy(source, path)
                    if verify:
                        check(path, known)
                written.add(known.name)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{archive}: not a whole tar archive ({error}); fetch it again") from error
    except OSError as error:
        raise InputError(f"{archive}: cannot be unpacked into {folder} ({error.strerror or error})") from error
    if missing := sorted({known.name for known in members.values()} - written):
        raise InputError(f"{archive}: does not hold {', '.join(missing)}; fetch it again")


def _copy(source: IO[bytes], path: Path) -> None:
    with path.open("wb") as target:
        while chunk := source.read(CHUNK):
            target.write(chunk)
