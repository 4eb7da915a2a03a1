"""Unpack the known files, and nothing else, from a tar archive."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from avuc.core.atomic import atomic_path
from avuc.core.errors import InputError
from avuc.data.files import KnownFile, check_digest

CHUNK = 1 << 20
MAX_HEADER = 1 << 16
EXTENDED_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
MAX_OTHER_BYTES = 1 << 26  # limit for members that are not needed (a readme, metadata)


class _Entry(tarfile.TarInfo):
    """Refuses extended headers of more than 64 KiB, such as long names: `tarfile` reads them into memory as a whole."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in EXTENDED_HEADERS and self.size > MAX_HEADER:
            raise tarfile.ReadError(f"an extended header of {self.size:,} bytes")
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return member


def unpack(archive: Path, members: Mapping[str, KnownFile], folder: Path, *, verify: bool = True) -> None:
    """Write known members of an archive into a folder.

    Only regular files whose path is listed are written, and their names come from `members`, not from the archive: no
    link, device, absolute path or `..` can lead elsewhere. No file may be much larger than published. Each file gets
    its name after it was checked.

    Args:
        archive: the tar archive, compressed or not.
        members: published files by their path in the archive.
        folder: where they are written; it is created if it does not exist.
        verify: compare each file with its published digest.
    """
    written: set[str] = set()
    bytes_left = sum(known.size for known in members.values()) + MAX_OTHER_BYTES
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r|*", tarinfo=_Entry) as tar:
            for entry in tar:
                bytes_left -= entry.size
                if bytes_left < 0:
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
                    with path.open("wb") as target:
                        shutil.copyfileobj(source, target, CHUNK)
                    if verify:
                        check_digest(path, known)
                written.add(known.name)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{archive}: not a whole tar archive ({error}); fetch it again") from error
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{archive}: cannot be unpacked into {folder} ({reason}); free space or choose another folder"
        ) from error
    if missing := sorted({known.name for known in members.values()} - written):
        raise InputError(f"{archive}: does not hold {', '.join(missing)}; fetch it again")
