"""Reading .npy and .npz without trusting them: no pickle, and no allocation before the header agrees with the file."""

from __future__ import annotations

import ast
import math
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from torch import Tensor

from avuc.core.errors import InputError
from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import (
    SCORE_NAMES,
    RawScores,
    ReadOptions,
    check_chosen,
    check_size,
    choose_name,
    find_label_name,
    label_file_name,
    memory_bytes,
    other_labels_note,
    other_scores_note,
)
from avuc.evaluation.files.sources import FileSource, StreamSource, numpy_decoder

MAX_HEADER = 10_000
MOST_SIDES = 32  # that every NumPy allows
# DEFLATE cannot pack tighter than 1032:1, so a larger claim is a lie; bzip2 and LZMA are bounded by the limit alone
DEFLATE_RATIO = 1032
BAD_ARCHIVE: tuple[type[Exception], ...] = (zipfile.BadZipFile, zlib.error, struct.error)
BAD_ARCHIVE += (ValueError, EOFError, RuntimeError, OverflowError, LookupError)
with suppress(ImportError):  # Python may have been built without it
    from lzma import LZMAError

    BAD_ARCHIVE = (*BAD_ARCHIVE, LZMAError)


def read_npy(path: Path, options: ReadOptions) -> RawScores:
    """Scores from one .npy; labels from the file beside it that has a labels word where this name has a scores word."""
    if options.scores_key is not None:
        raise file_error(path, "a .npy file has no keys", "leave out --scores-key")
    word, beside = neighbouring_labels(path)
    raw = RawScores(_whole(path, options), f"file {path.name!r}", word or "", ())
    if beside is not None and options.needs_labels:
        raw.labels, raw.labels_from = _whole(beside, options), f"file {beside.name!r}"
    return raw


def neighbouring_labels(path: Path) -> tuple[str | None, Path | None]:
    """The scores word in the name of a .npy, and the file beside it that holds the labels."""
    word, stem = label_file_name(path.stem, lambda stem: path.with_name(stem + ".npy").is_file())
    return word, None if stem is None else path.with_name(stem + ".npy")


def labels_npy(path: Path, options: ReadOptions) -> tuple[Any, str]:
    return _whole(path, options), f"file {path.name!r}"


def read_npz(path: Path, options: ReadOptions) -> RawScores:
    """Scores and labels from the members of an archive; other members are never unpacked."""
    with _archive(path) as (archive, members):
        key = choose_name(path, list(members), options.scores_key, SCORE_NAMES, "scores")
        if key is None:
            raise file_error(
                path,
                f"no scores: none of {listing(SCORE_NAMES)} among its keys ({listing(members)})",
                "name the right one with --scores-key",
            )
        raw = RawScores(_member(path, archive, members[key], options), f"key {key!r}", key, (key,))
        check_chosen(path, key, raw.scores.shape, members, options)
        raw.notes = other_scores_note(key, members, options)
        label, alike = find_label_name(path, list(members), options.labels_key)
        if label is not None:
            raw.labels = _member(path, archive, members[label], options)
            raw.labels_from = repr(label)
            raw.notes += other_labels_note(alike)
    return raw


def labels_npz(path: Path, options: ReadOptions) -> tuple[Any, str]:
    with _archive(path) as (archive, members):
        key, _ = find_label_name(path, list(members), options.labels_key)
        if key is None:
            raise file_error(path, f"no labels among its keys ({listing(members)})", "name them with --label")
        return _member(path, archive, members[key], options), f"{key!r} of {path.name!r}"


def write_npy(source: Path, destination: Path, raw: RawScores, scores: Tensor) -> None:
    with destination.open("wb") as out:
        np.save(out, scores.numpy(), allow_pickle=False)


def write_npz(source: Path, destination: Path, raw: RawScores, scores: Tensor) -> None:
    """The archive again with new scores under the same key; every other member is copied byte for byte."""
    with _archive(source) as (archive, _), zipfile.ZipFile(destination, "w") as out:
        check_size(source, "the archive", sum(info.file_size for info in archive.infolist()), raw.limit)
        for info in archive.infolist():
            entry = zipfile.ZipInfo(info.filename, date_time=info.date_time)
            entry.compress_type = info.compress_type
            with out.open(entry, "w", force_zip64=True) as target:
                if _key(info.filename) in raw.keys:
                    npy_format.write_array(target, scores.numpy(), allow_pickle=False)
                else:
                    with archive.open(info) as member:
                        shutil.copyfileobj(member, target)


@contextmanager
def _archive(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = [info for info in archive.infolist() if not info.is_dir()]
            names = [_key(info.filename) for info in arrays]
            if not all(names):
                raise file_error(path, "a member of the archive has no name", "save it again with numpy.savez")
            choose_name(path, names, None, (), "arrays")  # refuses doubled names
            yield archive, dict(zip(names, arrays, strict=True))
    except InputError:
        raise
    except BAD_ARCHIVE as error:
        # ValueError: a name that is no UTF-8; RuntimeError: an encrypted member, or a compression Python does not know
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise file_error(
            path, f"not a readable .npz archive ({reason[:120]})", "save it again with numpy.savez"
        ) from error


def _key(member: str) -> str:
    return member.removesuffix(".npy")


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, options: ReadOptions) -> Any:
    what = f"key {_key(info.filename)!r}"
    if not options.in_blocks:
        check_size(path, what, info.file_size, options.limit)
    if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > DEFLATE_RATIO * info.compress_size + 1024:
        raise file_error(
            path, f"{what} claims more bytes than its packed data can hold", "save it again with numpy.savez"
        )
    if options.in_blocks:
        with archive.open(info) as member:
            shape, fortran, dtype, header = _checked_header(path, what, member, info.file_size)
        # draws, and columns that come one after the other, would need jumps: such a member is read whole
        if len(shape) in (1, 2) and not (fortran and len(shape) == 2):
            kind, decode = numpy_decoder(dtype)
            return StreamSource(path, lambda: _data(path, info.filename, header), shape, kind, dtype.itemsize, decode)
        check_size(path, what, info.file_size, options.limit)
    with archive.open(info) as member:
        return _read(path, what, member, info.file_size, options.limit)


@contextmanager
def _data(path: Path, name: str, header: int) -> Iterator[IO[bytes]]:
    """A member of an archive from the first byte of its numbers on."""
    with _archive(path) as (archive, members), archive.open(members[_key(name)]) as member:
        member.read(header)
        yield member


def _whole(path: Path, options: ReadOptions) -> Any:
    size = path.stat().st_size
    with path.open("rb") as stream:
        if options.in_blocks:
            shape, fortran, dtype, header = _checked_header(path, "the array", stream, size)
            kind, decode = numpy_decoder(dtype)
            return FileSource(path, header, shape, kind, dtype.itemsize, decode, column_major=fortran)
        return _read(path, "the array", stream, size, options.limit)


def _read(path: Path, what: str, stream: IO[bytes], size: int, limit: int) -> np.ndarray:
    """One .npy stream of `size` bytes."""
    shape, fortran, dtype, _ = _checked_header(path, what, stream, size)
    claimed = math.prod(shape) * dtype.itemsize
    check_size(path, what, memory_bytes(math.prod(shape), dtype.itemsize), limit)
    array = np.empty(math.prod(shape), dtype)
    view = array.view(np.uint8).data
    done = 0
    while done < len(view):
        chunk = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not chunk:
            raise file_error(
                path, f"{what} ends after {done} of {claimed} bytes", "the file is cut short: save it again"
            )
        done += chunk
    # reads the zip member's end, where its checksum is compared
    stream.read(1)
    array = array.reshape(shape[::-1]).transpose() if fortran else array.reshape(shape)
    # torch knows neither foreign byte orders nor extended precision
    return array.astype(np.float64 if dtype.kind == "f" and dtype.itemsize > 8 else dtype.newbyteorder("="), copy=False)


def _checked_header(path: Path, what: str, stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, order, type and length of the header of a .npy stream of `size` bytes that holds plain numbers."""
    shape, fortran, dtype, header = _header(path, what, stream)
    if dtype.hasobject:
        raise file_error(
            path,
            f"{what} holds Python objects (a pickle), which could run code when opened",
            "save plain numbers, for example numpy.asarray(scores, dtype='float32')",
        )
    if dtype.kind not in "fiub":
        raise file_error(path, f"{what} has dtype {dtype}, not real numbers", "save float32 scores and int64 labels")
    claimed = math.prod(shape) * dtype.itemsize
    if header + claimed != size:
        raise file_error(
            path,
            f"{what} claims shape {shape} of {dtype}, {claimed} bytes, but {max(size - header, 0)} are there",
            "the file is cut short or damaged: save it again",
        )
    return shape, fortran, dtype, header


def _header(path: Path, what: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, order, type and length of the header: a Python literal, evaluated as a literal and nothing else."""
    try:
        magic, version = stream.read(6), stream.read(2)
        if magic != b"\x93NUMPY" or version[:1] not in (b"\x01", b"\x02", b"\x03"):
            raise ValueError(f"it begins with {magic!r}")
        width = 2 if version[:1] == b"\x01" else 4
        length = int.from_bytes(stream.read(width), "little")
        if length > MAX_HEADER:
            raise ValueError(f"a header of {length} bytes")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd literals are about to be refused anyway
            header = ast.literal_eval(stream.read(length).decode("latin-1"))
        shape, fortran, descr = header["shape"], header["fortran_order"], header["descr"]
        if not (isinstance(shape, tuple) and len(shape) <= MOST_SIDES and all(type(side) is int for side in shape)):
            raise ValueError(f"shape {str(shape)[:60]}")
        if not all(0 <= side < 2**63 for side in shape) or math.prod(max(side, 1) for side in shape) >= 2**60:
            raise ValueError(f"shape {str(shape)[:60]}")
        if isinstance(descr, list):
            raise ValueError("records, not plain numbers; numpy.lib.recfunctions.structured_to_unstructured converts")
        if not isinstance(descr, str) or not isinstance(fortran, bool):
            raise ValueError("no dtype")
        return shape, fortran, np.dtype(descr), 8 + width + length
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise file_error(
            path, f"{what} is not a .npy array ({reason[:160]})", "save it with numpy.save or savez"
        ) from None
