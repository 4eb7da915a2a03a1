"""Read .npy arrays from outside: no pickle, and nothing is allocated before the header agrees with the file's size."""

from __future__ import annotations

import ast
import math
import warnings
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from avuc.core.errors import InputError
from avuc.core.files import open_regular

Array = np.ndarray[Any, np.dtype[Any]]

MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
MAX_HEADER = 10_000
MAX_DIMENSIONS = 32  # every version of NumPy supports this many


class NpyHeader(NamedTuple):
    """What the header of a .npy file says."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    length: int  # bytes before the first number


def read_header(
    stream: IO[bytes], size: int, path: str | Path, what: str = "the array", *, text: bool = False
) -> NpyHeader:
    """Read and check the header of a .npy stream; afterwards the stream is at the first number.

    Args:
        stream: a binary stream at the first byte of the .npy data: a file, or a member of an .npz archive.
        size: length of the .npy data in bytes.
        path: the file, for error messages.
        what: the array in the file, for error messages.
        text: whether an array of texts is accepted too.

    Raises:
        InputError: if this is no .npy array of real numbers, or if its header does not agree with `size`.
    """
    header = _parsed_header(stream, path, what)
    if header.dtype.hasobject:
        raise InputError(
            f"{path}: {what} holds Python objects (a pickle), which could run code when opened; save plain numbers, "
            "for example numpy.asarray(scores, dtype='float32')"
        )
    if header.dtype.kind not in ("fiubU" if text else "fiub") or not header.dtype.itemsize:
        raise InputError(
            f"{path}: {what} has dtype {header.dtype}, not real numbers; save float32 scores and int64 labels"
        )
    claimed = math.prod(header.shape) * header.dtype.itemsize
    if header.length + claimed != size:
        raise InputError(
            f"{path}: {what} claims shape {header.shape} of {header.dtype}, {claimed} bytes, but "
            f"{max(size - header.length, 0)} are there; the file is cut short or damaged: save it again"
        )
    return header


def read_data(stream: IO[bytes], header: NpyHeader, path: str | Path, what: str = "the array") -> Array:
    """Read the numbers after the header into memory, in this machine's byte order; long double becomes float64.

    `read_header` bounds the memory by the size of the file. For a compressed stream that can be far more than the bytes
    on disk: check `header` against a limit first.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(6).reshape(2, 3))
    >>> size = file.tell()
    >>> _ = file.seek(0)
    >>> read_data(file, read_header(file, size, "a.npy"), "a.npy")
    array([[0, 1, 2],
           [3, 4, 5]])
    """
    shape, fortran_order, dtype, _ = header
    array: Array = np.empty(math.prod(shape), dtype)
    buffer = array.view(np.uint8).data
    done = 0
    while done < len(buffer):
        count = stream.readinto(buffer[done:])  # type: ignore[attr-defined]
        if not count:
            raise InputError(
                f"{path}: {what} ends after {done} of {len(buffer)} bytes; the file is cut short: save it again"
            )
        done += count
    stream.read(1)  # at the end of a zip member, Python compares its checksum
    array = array.reshape(shape[::-1]).transpose() if fortran_order else array.reshape(shape)
    # torch supports neither other byte orders nor long double
    return array.astype(np.float64 if dtype.kind == "f" and dtype.itemsize > 8 else dtype.newbyteorder("="), copy=False)


def map_array(path: str | Path) -> Array:
    """Map a .npy file into memory: pages are read when they are used, and changes stay in memory.

    Args:
        path: a regular file. Its header is checked as in `read_header`.
    """
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            shape, fortran_order, dtype, length = read_header(file, size, path)
            if 0 in shape:  # nothing to map
                return np.empty(shape, dtype)
            order: Any = "F" if fortran_order else "C"
            return np.memmap(file, dtype, "c", length, shape, order)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and permissions") from error


def _parsed_header(stream: IO[bytes], path: str | Path, what: str) -> NpyHeader:
    """Parse the header, which is the text of a Python dict, as a literal: no code in it can run."""
    try:
        magic, version = stream.read(6), stream.read(2)
        if magic.startswith(ZIP_MAGIC):
            raise ValueError("it is an .npz archive: give the file its right suffix")
        if magic != MAGIC or version[:1] not in (b"\x01", b"\x02", b"\x03"):
            raise ValueError(f"it begins with {magic!r}")
        width = 2 if version[:1] == b"\x01" else 4
        length = int.from_bytes(stream.read(width), "little")
        if length > MAX_HEADER:
            raise ValueError(f"a header of {length} bytes")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about odd literals, which are refused below
            header = ast.literal_eval(stream.read(length).decode("latin-1"))
        shape, fortran_order, descr = header["shape"], header["fortran_order"], header["descr"]
        if not (isinstance(shape, tuple) and len(shape) <= MAX_DIMENSIONS and all(type(side) is int for side in shape)):
            raise ValueError(f"shape {str(shape)[:60]}")
        if not all(0 <= side < 2**63 for side in shape) or math.prod(max(side, 1) for side in shape) >= 2**60:
            raise ValueError(f"shape {str(shape)[:60]}")
        if isinstance(descr, list):
            raise ValueError("records, not plain numbers; numpy.lib.recfunctions.structured_to_unstructured converts")
        if not isinstance(descr, str) or not isinstance(fortran_order, bool):
            raise ValueError("no dtype")
        return NpyHeader(shape, fortran_order, np.dtype(descr), 8 + width + length)
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{path}: {what} is not a .npy array ({reason[:160]}); save it with numpy.save or savez"
        ) from None
