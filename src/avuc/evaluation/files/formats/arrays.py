"""Read and write files of arrays: .npz, .npy and .safetensors.

No pickle is opened, and nothing is allocated before the header agrees with the size of the file (`avuc.core.npy`,
`avuc.core.tensor_file`).
"""

from __future__ import annotations

import math
import shlex
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy_format
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.npy import NpyHeader, read_data, read_header
from avuc.core.tasks import binary_rows
from avuc.core.tensor_file import read_tensors, tensor_offsets, write_tensors
from avuc.evaluation.files.formats.saved_predictions import add_draws, add_label_draws
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
from avuc.predictions import FORMAT
from avuc.predictions.multilabel import FORMAT as MULTILABEL_FORMAT
from avuc.uncertainty import entropy

# DEFLATE compresses at most 1032:1, so a larger claim is false; bzip2 and LZMA are only bounded by the memory limit
DEFLATE_RATIO = 1032
BAD_ARCHIVE: tuple[type[Exception], ...] = (zipfile.BadZipFile, zlib.error, struct.error)
# ValueError: a name that is not UTF-8; RuntimeError: an encrypted member or an unknown compression
BAD_ARCHIVE += (ValueError, EOFError, RuntimeError, OverflowError, LookupError)
with suppress(ImportError):  # Python may have been built without it
    from lzma import LZMAError

    BAD_ARCHIVE = (*BAD_ARCHIVE, LZMAError)

# a function that loads an array, from its name and whether it may be text
Load = Callable[[str, bool], Any]
# names of an array of class names or numbers
CLASS_NAMES = ("class_names", "classes")
BLOCK = 1 << 16


def read_npz(path: Path, options: ReadOptions) -> RawScores:
    """Read scores and labels from an archive; other members are never unpacked."""
    with _archive(path) as (archive, members):
        return _scores_by_name(path, list(members), options, partial(_member, path, archive, members, options))


def labels_npz(path: Path, options: ReadOptions) -> tuple[Any, str]:
    """Read only the labels, and say where they were."""
    with _archive(path) as (archive, members):
        return _labels_by_name(path, list(members), options, partial(_member, path, archive, members, options))


def write_npz(source: Path, destination: Path, raw: RawScores, scores: Tensor) -> None:
    """Write the archive again with new scores under the same key; other members are copied byte for byte."""
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


def read_npy(path: Path, options: ReadOptions) -> RawScores:
    """Read scores from a .npy file, and labels from the file next to it (`neighbouring_labels`)."""
    if options.scores_key is not None:
        raise file_error(path, "a .npy file has no keys", "leave out --scores-key")
    word, label_file = neighbouring_labels(path)
    raw = RawScores(_npy(path, options), f"file {path.name!r}", word or "", ())
    if label_file is not None and (options.needs_labels or options.padding):
        with options.label_errors():
            labels = _npy(label_file, options, True)
            if options.needs_labels or not is_text(labels):  # names mark no padding
                raw.labels, raw.labels_from = labels, f"file {label_file.name!r}"
    return raw


def neighbouring_labels(path: Path) -> tuple[str | None, Path | None]:
    """Return the score name in the name of a .npy file, and the label file next to it: a_logits.npy, a_labels.npy."""
    word, stem = label_file_name(path.stem, lambda stem: path.with_name(stem + ".npy").is_file())
    return word, None if stem is None else path.with_name(stem + ".npy")


def labels_npy(path: Path, options: ReadOptions) -> tuple[Any, str]:
    """Read the array as labels, and say where they were."""
    return _npy(path, options, True), f"file {path.name!r}"


def write_npy(source: Path, destination: Path, raw: RawScores, scores: Tensor) -> None:
    """Write the scores as the only array."""
    with destination.open("wb") as out:
        np.save(out, scores.numpy(), allow_pickle=False)


def read_safetensors(path: Path, options: ReadOptions) -> RawScores:
    """Read scores and labels; other tensors are mapped, not loaded."""
    tensors, metadata = read_tensors(path)
    raw = _scores_by_name(path, list(tensors), options, partial(_tensor, path, tensors, options))
    if metadata.get("format") == FORMAT and raw.keys == ("probs",):
        add_draws(path, raw, tensors, metadata, options)
    if metadata.get("format") == MULTILABEL_FORMAT and raw.keys == ("probs",):
        add_label_draws(path, raw, tensors, metadata)
    return raw


def labels_safetensors(path: Path, options: ReadOptions) -> tuple[Any, str]:
    """Read only the labels, and say where they were."""
    tensors, _ = read_tensors(path)
    return _labels_by_name(path, list(tensors), options, partial(_tensor, path, tensors, options))


def write_safetensors(source: Path, destination: Path, raw: RawScores, scores: Tensor) -> None:
    """Write the file again with new scores under the same key; other tensors and the metadata are kept."""
    tensors, metadata = read_tensors(source)
    if raw.expected_entropy is not None:
        # statistics of the draws do not hold for the new scores
        rows = binary_rows(scores, "probs") if metadata["format"] == MULTILABEL_FORMAT else scores
        tensors |= {"expected_entropy": entropy(rows)}
        metadata = {key: value for key, value in metadata.items() if key != "monte_carlo_error"} | {"samples": "1"}
    write_tensors(destination, tensors | {raw.keys[0]: scores}, metadata)


def _scores_by_name(path: Path, names: Sequence[str], options: ReadOptions, load: Load) -> RawScores:
    """Choose scores and labels among the names of a file's arrays, and load them."""
    key = choose_name(path, names, options.scores_key, SCORE_NAMES, "scores")
    if key is None:
        label, labels = find_label_name(path, names, options.labels_key)
        rest = [name for name in names if name not in (label, *labels, *CLASS_NAMES)]
        raise file_error(
            path,
            f"contains no array named {listing(SCORE_NAMES)} (its arrays: {listing(names)})",
            f"name the scores with --scores-key{' ' + shlex.quote(rest[0]) if len(rest) == 1 else ''}",
        )
    raw = RawScores(load(key, False), f"key {key!r}", key, (key,), notes=other_scores_note(key, names, options))
    check_chosen(path, key, raw.scores.shape, names, options)
    label, others = find_label_name(path, names, options.labels_key)
    if label is not None:
        raw.labels, raw.labels_from = load(label, True), repr(label)
        raw.notes += other_labels_note(others)
        raw.class_names = _class_names(names, load) if is_text(raw.labels) else None
    if not is_text(raw.labels):  # also of labels that another file has, or none
        raw.class_array = _class_array(names, load, tuple(raw.scores.shape), labelled=raw.labels is not None)
    return raw


def _class_names(names: Sequence[str], load: Load) -> tuple[str, ...] | None:
    """Return the class names that the file has beside text labels; None if it has none."""
    key = next((name for name in CLASS_NAMES if name in names), None)
    array: Any = None if key is None else load(key, True)
    return tuple(array.tolist()) if is_text(array) and array.ndim == 1 else None


def _class_array(names: Sequence[str], load: Load, shape: tuple[int, ...], labelled: bool) -> tuple[str, ...] | None:
    """Return the name or label of each score, such as `classes_` of scikit-learn; None if there is none, or 0 … C−1.

    Any dimension of the scores but the first may have the classes: `Reading.layout` decides. Texts that are numbers do
    not say which labels the scores have, so they only count without labels.
    """
    key, array = next((name for name in CLASS_NAMES if name in names), None), None
    if key is not None and len(shape) > 1:
        with suppress(InputError):  # an array of objects, which was never needed
            array = load(key, True)
    if array is None or len(array.shape) != 1 or array.shape[0] not in shape[1:]:
        return None
    if is_text(array):
        words = tuple(str(word).strip() for word in array.tolist())
        numbers_as_text = labelled and all(word.isdecimal() for word in words)
        return None if numbers_as_text or len(set(words)) < len(words) else words
    numbers = np.asarray(torch.cat(list(array.blocks(BLOCK))) if hasattr(array, "blocks") else array)
    if numbers.dtype.kind not in "iu" or len(set(numbers.tolist())) < len(numbers) or numbers.min(initial=0) < 0:
        return None
    return None if np.array_equal(numbers, np.arange(len(numbers))) else tuple(map(str, numbers.tolist()))


def is_text(array: Any) -> bool:
    """Return whether this is a NumPy array of texts."""
    return isinstance(array, np.ndarray) and array.dtype.kind == "U"


def _labels_by_name(path: Path, names: Sequence[str], options: ReadOptions, load: Load) -> tuple[Any, str]:
    key, _ = find_label_name(path, names, options.labels_key)
    if key is None:
        raise file_error(path, f"contains no labels (its arrays: {listing(names)})", "name the labels with --label")
    return load(key, True), f"{key!r} of {path.name!r}"


def npz_names(path: Path) -> list[str]:
    """Return the names of the arrays in a .npz file."""
    with _archive(path) as (_, members):
        return list(members)


@contextmanager
def _archive(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Open a .npz file; yields it and its members by key."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            names = [_key(info.filename) for info in members]
            if not all(names):
                raise file_error(path, "a member of the archive has no name", "save it again with numpy.savez")
            choose_name(path, names, None, (), "arrays")  # refuses duplicate names
            yield archive, dict(zip(names, members, strict=True))
    except InputError:
        raise
    except BAD_ARCHIVE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise file_error(
            path, f"not a readable .npz archive ({reason[:120]})", "save it again with numpy.savez"
        ) from error


def _key(member: str) -> str:
    return member.removesuffix(".npy")


def _member(
    path: Path,
    archive: zipfile.ZipFile,
    members: dict[str, zipfile.ZipInfo],
    options: ReadOptions,
    key: str,
    text: bool = False,
) -> Any:
    info = members[key]
    what = f"key {_key(info.filename)!r}"
    if not options.in_blocks:
        check_size(path, what, info.file_size, options.limit)
    if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > DEFLATE_RATIO * info.compress_size + 1024:
        problem = f"{what} claims more bytes than its compressed data can hold"
        raise file_error(path, problem, "save it again with numpy.savez")
    if options.in_blocks:
        with archive.open(info) as member:
            header = read_header(member, info.file_size, path, what, text=text)
        # a column-major array would need jumps in a compressed stream: such a member is read whole, as are texts
        if (len(header.shape) == 1 or not header.fortran_order) and header.dtype.kind != "U":
            dtype, decode = numpy_decoder(header.dtype)
            itemsize = header.dtype.itemsize
            whole = partial(_whole_member, path, info, options)
            return StreamSource(path, lambda: _data(path, info, header), header.shape, dtype, itemsize, decode, whole)
        check_size(path, what, info.file_size, options.limit)
    with archive.open(info) as member:
        return _array(path, what, member, info.file_size, options.limit, text)


def _whole_member(path: Path, info: zipfile.ZipInfo, options: ReadOptions) -> Any:
    """Read a member of an archive as a whole."""
    what = f"key {_key(info.filename)!r}"
    check_size(path, what, info.file_size, options.limit)
    with _archive(path) as (archive, members), archive.open(members[_key(info.filename)]) as member:
        return _array(path, what, member, info.file_size, options.limit)


@contextmanager
def _data(path: Path, info: zipfile.ZipInfo, header: NpyHeader) -> Iterator[IO[bytes]]:
    """Open a member of an archive at the first byte of its numbers."""
    with _archive(path) as (archive, members), archive.open(members[_key(info.filename)]) as member:
        member.read(header.length)
        yield member


def _npy(path: Path, options: ReadOptions, text: bool = False) -> Any:
    size = path.stat().st_size
    with path.open("rb") as stream:
        if options.in_blocks:
            shape, fortran_order, dtype, length = read_header(stream, size, path, text=text)
            if dtype.kind != "U":
                kind, decode = numpy_decoder(dtype)
                return FileSource(path, length, shape, kind, dtype.itemsize, decode, column_major=fortran_order)
            stream.seek(0)
        return _array(path, "the array", stream, size, options.limit, text)


def _array(path: Path, what: str, stream: IO[bytes], size: int, limit: int, text: bool = False) -> np.ndarray:
    """Read .npy data of `size` bytes into memory, if it fits the limit."""
    header = read_header(stream, size, path, what, text=text)
    check_size(path, what, memory_bytes(math.prod(header.shape), header.dtype.itemsize), limit)
    return read_data(stream, header, path, what)


def _tensor(path: Path, tensors: dict[str, Tensor], options: ReadOptions, key: str, text: bool = False) -> Any:
    tensor = tensors[key]
    if options.in_blocks:
        dtype, shape, offset = tensor_offsets(path)[key]
        return FileSource(path, offset, shape, dtype, dtype.itemsize, lambda raw: torch.frombuffer(raw, dtype=dtype))
    check_size(path, f"key {key!r}", memory_bytes(tensor.numel(), tensor.element_size()), options.limit)
    return tensor
