"""The one reader of .npy arrays."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avuc.core.errors import InputError
from avuc.core.npy import map_array, read_data, read_header

DTYPES = ["uint8", "int64", "float16", "float32", "float64", "bool", ">f4", ">i8"]
SHAPES = [(), (0,), (5,), (2, 3), (0, 4), (2, 3, 4, 1)]


def saved(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=True)
    return file.getvalue()


def read(content: bytes) -> Any:
    stream = io.BytesIO(content)
    return read_data(stream, read_header(stream, len(content), "a.npy"), "a.npy")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_and_maps_what_numpy_writes(tmp_path: Path, dtype: str, shape: tuple[int, ...], order: Any) -> None:
    count = int(np.prod(shape))
    array = np.asarray(np.arange(count).reshape(shape).astype(dtype), order=order)
    found = read(saved(array))
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype.newbyteorder("=")
    path = tmp_path / "a.npy"
    np.save(path, array)
    np.testing.assert_array_equal(map_array(path), np.load(path))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format(version: tuple[int, int]) -> None:
    np.testing.assert_array_equal(read(saved(np.arange(4), version)), np.arange(4))


def test_long_double_becomes_float64() -> None:
    found = read(saved(np.array([0.5, 2.0], np.longdouble)))
    assert found.dtype == np.float64
    assert found.tolist() == [0.5, 2.0]


def test_changes_to_a_mapped_array_stay_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(5))
    array = map_array(path)
    array[0] = 9
    assert np.load(path)[0] == 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "begins with b''"),
        (b"PK\x03\x04rest", "an .npz archive"),
        (b"\x93NUMPY\x07\x00", "not a .npy array"),
        (saved(np.array([{}], object)), "holds Python objects"),
        (saved(np.array(["text"])), "not real numbers"),
        (saved(np.array([1j])), "not real numbers"),
        (saved(np.zeros(2, [("a", "f4"), ("b", "f4")])), "records, not plain numbers"),
        (saved(np.arange(4))[:-1], "cut short or damaged"),
        (saved(np.arange(4)) + b"\0", "cut short or damaged"),
        (saved(np.arange(4)).replace(b"(4,)", b"(-4)"), "shape -4"),
        (saved(np.arange(4)).replace(b"'<i8'", b"eval "), "not a .npy array"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        read(content)
    with pytest.raises(InputError, match=rf"a\.npy: .*{problem}"):
        map_array(path)


def with_header(text: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text.encode() + data


def test_a_header_that_promises_more_allocates_nothing() -> None:
    content = with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000, 10)}", b"\0" * 80)
    tracemalloc.start()
    with pytest.raises(InputError, match="claims shape"):
        read(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("shape", ["(True, 2)", "(2.0,)", f"({2**62}, 4)", "(1,) * 40", str((1,) * 33)])
def test_impossible_shapes(shape: str) -> None:
    with pytest.raises(InputError, match=r"not a \.npy array"):
        read(with_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"))


def test_a_long_header_is_refused_before_it_is_read() -> None:
    with pytest.raises(InputError, match="a header of 4294967295 bytes"):
        read(b"\x93NUMPY\x02\x00\xff\xff\xff\xff")


def test_a_member_that_ends_early(tmp_path: Path) -> None:
    content = saved(np.arange(100))
    stream = io.BytesIO(content[:500])
    with pytest.raises(InputError, match=r"key 'x' ends after \d+ of 800 bytes"):
        read_data(stream, read_header(stream, len(content), "a.npz", "key 'x'"), "a.npz", "key 'x'")


def test_the_checksum_of_a_zip_member_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(100_000))
    damaged = bytearray(path.read_bytes())
    damaged[400_000] ^= 1
    path.write_bytes(damaged)
    with zipfile.ZipFile(path) as archive, archive.open("x.npy") as member:
        header = read_header(member, archive.getinfo("x.npy").file_size, path)
        with pytest.raises(zipfile.BadZipFile, match="Bad CRC"):
            read_data(member, header, path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_and_a_missing_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(InputError, match="not a regular file"):
        map_array(tmp_path / "pipe.npy")
    with pytest.raises(InputError, match="cannot be read"):
        map_array(tmp_path / "missing.npy")
