"""Data files from outside: nothing in them is run, none takes more memory than asked for, none is waited for."""

from __future__ import annotations

import gzip
import io
import multiprocessing
import os
import signal
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avuc.core.image_files import FORMATS, open_picture
from avuc.data import decode as decoding
from avuc.data.decode import AsIs, EvalView, decode
from avuc.data.folder import list_folder
from avuc.data.load import load_dataset
from avuc.data.mnist import read_idx
from avuc.data.stream import Stream
from avuc.shifts import frost_pictures

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


def npy(shape: tuple[int, ...], body: bytes = b"", descr: str = "|u1") -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": shape})
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for Ghostscript that leaves a trace when it is run."""
    plugin = pytest.importorskip("PIL.EpsImagePlugin")
    trace, folder = tmp_path / "trace", tmp_path / "bin"
    folder.mkdir()
    (folder / "gs").write_text(f"#!/bin/sh\necho ran >> '{trace}'\n")
    (folder / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(plugin, "gs_binary", None)
    return trace


def test_the_stand_in_would_notice(tmp_path: Path, ghostscript: Path) -> None:
    """Pillow, left to choose the reader, runs it."""
    (tmp_path / "a.png").write_bytes(POSTSCRIPT)
    with pytest.raises(Exception), Image.open(tmp_path / "a.png") as image:  # noqa: B017
        image.convert("RGB")
    assert ghostscript.exists()


def opened_by_gallery(path: Path) -> object:
    from avuc.cli.shifts import _picture

    return _picture(path)


def opened_by_folder(path: Path) -> object:
    return load_dataset("folder", path.parent)


OPENERS: dict[str, Callable[[Path], object]] = {
    "decode": decode,
    "folder": opened_by_folder,
    "frost": lambda path: frost_pictures._loaded.__wrapped__((path,)),
    "gallery": opened_by_gallery,
}


@pytest.mark.parametrize("name", OPENERS)
def test_postscript_is_not_run(tmp_path: Path, ghostscript: Path, name: str, refused: Callable[..., str]) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(POSTSCRIPT)
    assert "JPEG, PNG, BMP" in refused(OPENERS[name], folder / "a.png")
    assert not ghostscript.exists()


def test_no_picture_is_opened_without_a_list_of_formats() -> None:
    """Every call of Pillow's `open` in the package is the one that names the formats."""
    import avuc

    root = Path(avuc.__file__).parent
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(call in line for call in ("Image.open(", "image.open(", "pil.open(", "pillow.open("))
    ]
    assert found == ["core/image_files.py: with pillow.open(path, formats=known) as image:"]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_listed_formats_are_read(tmp_path: Path, photo: np.ndarray, kind: str) -> None:
    path = tmp_path / "a.picture"
    Image.fromarray(photo[:20, :30]).save(path, format=kind)
    assert open_picture(path).size == (30, 20)
    assert open_picture(path, "L").mode == "L"


@pytest.mark.parametrize("name", OPENERS)
def test_a_picture_that_unpacks_to_gigabytes(tmp_path: Path, name: str, refused: Callable[..., str]) -> None:
    """A PNG header that claims 60,000 × 60,000 and 12,000 × 12,000 pixels: above Pillow's error and its warning."""
    for side in (60_000, 12_000):
        small = io.BytesIO()
        Image.new("1", (8, 8)).save(small, format="PNG")
        data = bytearray(small.getvalue())
        data[16:24] = struct.pack(">II", side, side)
        data[29:33] = struct.pack(">I", __import__("zlib").crc32(bytes(data[12:29])))
        folder = tmp_path / str(side)
        folder.mkdir()
        (folder / "a.png").write_bytes(data)
        line = refused(OPENERS[name], folder / "a.png")
        assert "at most 89,478,485 are decoded" in line


def test_torchvision_gets_no_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]) -> None:
    called: list[str] = []

    class Reader:
        ImageReadMode = type("Mode", (), {"RGB": 0, "GRAY": 1})

        @staticmethod
        def read_file(path: str) -> None:
            called.append(path)
            raise RuntimeError

    monkeypatch.setattr(decoding, "_torchvision", lambda: Reader)
    (tmp_path / "a.png").write_bytes(POSTSCRIPT)
    refused(decode, tmp_path / "a.png", decoder="torchvision")
    assert called == []


# arrays


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1,) * 70, "shape (1, 1, "),
        ((0, 2**63), "shape (0, 9223372036854775808)"),
        ((0, 2**62, 2**62), "shape (0, "),
        ((2**62, 4), "shape (4611686018427387904, 4)"),
        ((2**40, 32, 32, 3), "claims shape (1099511627776, 32, 32, 3)"),
        ((-1, 4, 4, 3), "shape (-1, 4, 4, 3)"),
        ((3, 4, 4, 3), "144 bytes, but 5 are there"),
    ],
)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_headers_that_lie(
    tmp_path: Path, shape: tuple[int, ...], says: str, suffix: str, refused: Callable[..., str]
) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "npy":
        path.write_bytes(npy(shape, b"12345"))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy", npy(shape, b"12345"))
    assert says in refused(load_dataset, "npz", path)


def bomb(path: Path, images: int = 4000) -> int:
    """An .npz of a few kilobytes that unpacks to megabytes; returns how many."""
    body = npy((images, 32, 32, 3), bytes(images * 3072))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", body)
    return len(body)


def test_an_archive_larger_than_allowed_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    size = bomb(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").stat().st_size < size / 500
    opened: list[str] = []
    real = zipfile.ZipFile.open
    monkeypatch.setattr(
        zipfile.ZipFile,
        "open",
        lambda self, name, *rest, **kw: (opened.append(str(name)), real(self, name, *rest, **kw))[1],
    )
    assert "more than max_gb=0.001; store fewer images" in refused(
        load_dataset, "npz", tmp_path / "a.npz", max_gb=0.001
    )
    assert opened == []
    assert len(load_dataset("npz", tmp_path / "a.npz")) == 4000


def test_memory_stays_bounded(tmp_path: Path, fresh_python: Any) -> None:
    """In a process that may use .5 GB more than it starts with, bombs of 1.5 GB and 1 GB end in one line."""
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("images.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy((500_000, 32, 32, 3)))
        for _ in range(1536):
            member.write(bytes(1_000_000))
    with gzip.open(tmp_path / "t10k-images-idx3-ubyte.gz", "wb", compresslevel=1) as stream:
        stream.write(bytes((0, 0, 8, 3)) + struct.pack(">III", 1_000_000, 32, 32))
        for _ in range(1024):
            stream.write(bytes(1_000_000))
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from avuc.data.load import load_dataset; from avuc.data.mnist import read_idx\n"
        "from avuc.core.errors import InputError\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 500_000_000,) * 2)\n"
        "for read in (lambda: load_dataset('npz', sys.argv[1] + '/a.npz', max_gb=1),\n"
        "             lambda: read_idx(Path(sys.argv[1] + '/t10k-images-idx3-ubyte.gz'), 3, max_gb=0.5)):\n"
        "    try: read()\n"
        "    except InputError as error: print(error)\n"
    )
    done = fresh_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "images unpack to 1.5 GB, more than max_gb=1" in lines[0]
    assert "promises 1.0 GB, more than max_gb=0.5" in lines[1]


def test_an_archive_that_claims_more_than_it_can_hold(tmp_path: Path, refused: Callable[..., str]) -> None:
    bomb(tmp_path / "a.npz", 400)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    place = data.rindex(b"PK\x01\x02") + 24  # the directory's uncompressed size
    data[place : place + 4] = struct.pack("<I", 2**31)
    (tmp_path / "a.npz").write_bytes(data)
    assert "more bytes than its packed data can hold" in refused(load_dataset, "npz", tmp_path / "a.npz")


def test_idx_files_that_promise_too_much(tmp_path: Path, refused: Callable[..., str]) -> None:
    head = bytes((0, 0, 8, 3))
    for name, write in (("a", Path.write_bytes), ("a.gz", lambda path, data: path.write_bytes(gzip.compress(data)))):
        write(tmp_path / name, head + struct.pack(">III", 9000, 1000, 1000))
        assert "more than max_gb=8" in refused(read_idx, tmp_path / name, 3)
        write(tmp_path / name, head + struct.pack(">III", 2000, 1000, 1000))
        assert "more than the file can hold" in refused(read_idx, tmp_path / name, 3)
        write(tmp_path / name, head + struct.pack(">III", 2, 3, 4) + bytes(24))
        assert read_idx(tmp_path / name, 3).shape == (2, 3, 4)
        assert "more than max_gb=1e-08" in refused(read_idx, tmp_path / name, 3, max_gb=1e-8)


@pytest.mark.parametrize("small", ["svhn_mat"], indirect=True)
def test_a_matlab_file_larger_than_allowed(small: Any, refused: Callable[..., str]) -> None:
    assert "more than max_gb=1e-06" in refused(small.load, max_gb=1e-6)


# what is no file


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_are_not_waited_for(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a.npz", "a.npy", "a/0.png", "t10k-images-idx3-ubyte.gz"):
        os.mkfifo(tmp_path / name)
    assert "not a regular file" in refused(load_dataset, "npz", tmp_path / "a.npz")
    assert "not a regular file" in refused(load_dataset, "npy", tmp_path / "a.npy")
    assert "not a regular file" in refused(load_dataset, "folder", tmp_path)
    assert "not a regular file" in refused(read_idx, tmp_path / "t10k-images-idx3-ubyte.gz", 3)
    assert "not a regular file" in refused(decode, tmp_path / "a" / "0.png")


def test_links_in_a_circle(tmp_path: Path, photo: np.ndarray, refused: Callable[..., str]) -> None:
    (tmp_path / "loop.npz").symlink_to(tmp_path / "loop.npz")
    assert "loop.npz: cannot be read (" in refused(load_dataset, "npz", tmp_path / "loop.npz")
    folder = tmp_path / "pictures" / "cats"
    folder.mkdir(parents=True)
    Image.fromarray(photo[:8, :8]).save(folder / "a.png")
    (folder / "again").symlink_to(folder)
    assert len(load_dataset("folder", tmp_path / "pictures")) == 1
    (tmp_path / "pictures" / "dogs").symlink_to("dogs")
    assert "dogs: cannot be read (" in refused(load_dataset, "folder", tmp_path / "pictures")


def test_names_that_are_not_utf_8(tmp_path: Path, photo: np.ndarray, refused: Callable[..., str]) -> None:
    folder = tmp_path / "cats"
    folder.mkdir()
    odd = os.fsencode(folder) + b"/\xff\xfe.png"
    Image.fromarray(photo[:8, :8]).save(folder / "a.png")
    Path(os.fsdecode(odd)).write_bytes((folder / "a.png").read_bytes())
    assert len(load_dataset("folder", tmp_path)) == 2
    Path(os.fsdecode(odd)).write_bytes(b"nothing")
    refused(load_dataset, "folder", tmp_path)
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    assert "must be text in UTF-8; rename" in refused(load_dataset, "folder", tmp_path)


def test_unreadable_folders_are_not_passed_over(
    tmp_path: Path, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    """os.walk leaves out what it cannot list, and the set would be smaller without a word."""
    for name in ("cats", "cats/black"):
        (tmp_path / name).mkdir()
        Image.fromarray(photo[:8, :8]).save(tmp_path / name / "a.png")
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("black"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert "black: cannot be read (Permission denied)" in refused(load_dataset, "folder", tmp_path)


def test_odd_paths(refused: Callable[..., str]) -> None:
    assert "cannot be read (" in refused(load_dataset, "npz", "a" * 300)
    assert "cannot be read (" in refused(load_dataset, "npz", "a\0b")


# pictures of one size, and workers that die


def test_one_large_picture_among_small_ones(tmp_path: Path, refused: Callable[..., str]) -> None:
    for k in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{k}.png")
    Image.new("RGB", (900, 800)).save(tmp_path / "9.png")
    assert "9.png: 900×800 pixels, but" in refused(load_dataset, "folder", tmp_path)
    Image.new("RGB", (900, 800)).save(tmp_path / "0.png")
    assert "takes 0.0 GB, more than max_gb=0.001" in refused(load_dataset, "folder", tmp_path, max_gb=0.001)


def test_a_killed_worker_is_one_line(tmp_path: Path, refused: Callable[..., str]) -> None:
    for k in range(24):
        Image.new("RGB", (64, 64)).save(tmp_path / f"{k:02}.png")
    stream = Stream(list_folder(tmp_path), 2, view=_Slow(), workers=1)

    def batches() -> None:
        epoch = stream.epoch()
        next(epoch)
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGKILL)
        for _ in epoch:
            pass

    line = refused(batches)
    assert "was killed" in line
    assert "use fewer workers than 1 (workers=0 needs the least)" in line


class _Slow(AsIs):
    """Slow enough that a kill meets a worker at work."""

    def __call__(self, image: Any, rng: np.random.Generator) -> np.ndarray:
        time.sleep(0.05)
        return EvalView(8)(image, rng)


def test_other_errors_of_a_stream_stay_what_they_are(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")

    class Broken(AsIs):
        def __call__(self, image: Any, rng: np.random.Generator) -> np.ndarray:
            raise RuntimeError("a mistake in a view")

    with pytest.raises(RuntimeError, match="a mistake in a view"):
        list(Stream(list_folder(tmp_path), 1, view=Broken(), workers=0).epoch())
