"""Archives: only the known members come out, whatever else they hold."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from avuc.data.files import KnownFile
from avuc.data.unpack import unpack


def write_tar(path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for entry, data in entries:
            tar.addfile(entry, io.BytesIO(data) if data else None)


def regular(name: str, data: bytes, size: int | None = None) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = len(data) if size is None else size
    return entry, data


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


DATA = b"0123456789"
KNOWN = {"set/a": KnownFile("a", 10, f"md5:{hashlib.md5(DATA).hexdigest()}")}


def test_only_known_members_are_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"safe")
    hostile = [
        regular("../victim", b"gone"),
        regular(str(victim), b"gone"),
        regular("set/../../victim", b"gone"),
        special("set/link", tarfile.SYMTYPE, str(tmp_path)),
        regular("set/link/victim", b"gone"),
        special("set/hard", tarfile.LNKTYPE, "../victim"),
        special("set/device", tarfile.CHRTYPE),
        regular("set/b", b"not asked for"),
    ]
    write_tar(tmp_path / "set.tar", [*hostile, regular("./set/a", DATA)])
    unpack(tmp_path / "set.tar", KNOWN, tmp_path / "out" / "set")
    assert victim.read_bytes() == b"safe"
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == [
        "out",
        "out/set",
        "out/set/a",
        "set.tar",
        "victim",
    ]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([special("set/a", tarfile.SYMTYPE, "/etc/passwd")], "not a regular file"),
        ([special("set/a", tarfile.LNKTYPE, "/etc/passwd")], "not a regular file"),
        ([special("set/a", tarfile.FIFOTYPE)], "not a regular file"),
        ([regular("set/a", DATA), regular("set/a", DATA)], "twice"),
        ([regular("set/a", b"x" * 30)], "30 bytes, expected 10"),
        ([regular("set/a", b"x" * 10)], "damaged or changed"),
        ([regular("set/a", b"x" * 9)], "truncated"),
        ([regular("set/b", DATA)], "does not hold a"),
        ([regular("set/junk", b"x", 10**12)], "far more than was published"),
        ([], "does not hold a"),
    ],
)
def test_a_wrong_member(
    entries: list[tuple[tarfile.TarInfo, bytes]], message: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    if entries and entries[0][0].size > 10**9:  # a header alone: the archive need not hold what it promises
        (tmp_path / "set.tar").write_bytes(entries[0][0].tobuf() + bytes(1024))
    else:
        write_tar(tmp_path / "set.tar", entries)
    assert message in refused(unpack, tmp_path / "set.tar", KNOWN, tmp_path / "out")
    assert not (tmp_path / "out" / "a").exists() or message == "twice"


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_header_of_megabytes_is_not_read(tmp_path: Path, form: int, refused: Callable[..., str]) -> None:
    """A name may be long, but not so long that reading it fills the memory."""
    for length, message in ((1_000_000, "an extended header of 1,000,0"), (5_000, "does not hold a")):
        with tarfile.open(tmp_path / "set.tar", "w", format=form) as tar:
            tar.addfile(tarfile.TarInfo("x" * length))
        assert message in refused(unpack, tmp_path / "set.tar", KNOWN, tmp_path)
