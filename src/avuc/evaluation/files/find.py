"""Find the scores and labels of a file: the table of formats, and labels from a second file."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from avuc.core.errors import InputError, out_of_memory
from avuc.core.files import check_regular, open_regular
from avuc.evaluation.files.columns.columns import index_labels, is_row_number
from avuc.evaluation.files.columns.match_rows import is_id, match_rows, same_ids, shared_columns
from avuc.evaluation.files.formats.arrays import (
    is_text,
    labels_npy,
    labels_npz,
    labels_safetensors,
    neighbouring_labels,
    npz_names,
    read_npy,
    read_npz,
    read_safetensors,
    write_npy,
    write_npz,
    write_safetensors,
)
from avuc.evaluation.files.formats.csv import open_csv, read_csv, write_csv
from avuc.evaluation.files.formats.csv_header import find_delimiter, first_line
from avuc.evaluation.files.formats.parquet import open_parquet, read_parquet, write_parquet
from avuc.evaluation.files.messages import ambiguous_labels, file_error, listing
from avuc.evaluation.files.names import LABEL_NAMES, RawScores, ReadOptions, check_unique_names, find_label_name

TEXT_TABLES = (".csv", ".tsv")
TABLES = (".parquet", *TEXT_TABLES)


@dataclass(frozen=True)
class Format:
    """How to read and write one format."""

    read: Callable[[Path, ReadOptions], RawScores]
    labels: Callable[[Path, ReadOptions], tuple[Any, str]] | None  # None for a table: `add_labels` reads it
    write: Callable[[Path, Path, RawScores, Any], None]


FORMATS: dict[str, Format] = {
    ".npz": Format(read_npz, labels_npz, write_npz),
    ".npy": Format(read_npy, labels_npy, write_npy),
    ".safetensors": Format(read_safetensors, labels_safetensors, write_safetensors),
    ".parquet": Format(read_parquet, None, write_parquet),
    ".csv": Format(read_csv, None, write_csv),
    ".tsv": Format(read_csv, None, write_csv),
}
TABLE_OPENERS: dict[str, Callable[[Path, ReadOptions], Any]] = {
    ".csv": open_csv,
    ".tsv": open_csv,
    ".parquet": open_parquet,
}
COMPRESSED = {".gz": "gunzip -c", ".bz2": "bunzip2 -c", ".xz": "xz -dc", ".zst": "zstd -dc"}


@contextmanager
def file_errors(file: Path) -> Iterator[None]:
    """Turn errors of the operating system and a lack of memory into an `InputError`."""
    try:
        yield
    except OSError as error:
        where = Path(error.filename) if error.filename else file
        raise file_error(
            where, f"cannot be read ({error.strerror or error})", "check that the file exists and that you may read it"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise file_error(file, "there is not enough memory to read it", "split the file, or save float32") from error


class HasScoreNames(Protocol):
    """The part of another file of the same model that is used: the names of its score columns."""

    @property
    def raw(self) -> RawScores: ...


def find_scores(
    file: Path,
    *,
    labels: str | Path | None = None,
    scores_key: str | None = None,
    labels_key: str | None = None,
    max_gb: float | None = None,
    columns: str | Sequence[str] | None = None,
    like: HasScoreNames | None = None,
    needs_labels: bool = True,
    classes: Sequence[str] | None = None,
    in_blocks: bool = False,
    padding: bool | str = False,
) -> RawScores:
    """Return the unchecked scores and labels of a file; with `in_blocks`, as sources that read the file later.

    The other arguments are those of `avuc.evaluation.files.read_scores`.
    """
    options = ReadOptions(
        scores_key,
        labels_key if labels is None else None,
        max_gb,
        columns,
        prefer=() if like is None or scores_key is not None else like.raw.keys,
        needs_labels=needs_labels and labels is None,
        padding=padding,
        classes=classes,
        in_blocks=in_blocks,
    )
    form = _format(file)
    if columns is not None and file.suffix.lower() not in TABLES:
        raise file_error(file, "has no named columns", "leave out --columns, or name the scores with --scores-key")
    raw = form.read(file, options)
    raw.limit = options.limit
    if classes is not None:
        raw.class_names = tuple(classes)
    if labels is not None:
        label_file, label_options = Path(labels), ReadOptions(None, labels_key, max_gb, in_blocks=in_blocks)
        add_labels(file, raw, label_file, label_options, _format(label_file).labels)
    if is_text(raw.labels):
        words, codes = np.unique(raw.labels.reshape(-1), return_inverse=True)
        texts = [str(word).strip() for word in words]
        where = f"labels from {raw.labels_from}"
        values, raw.labels_named = index_labels(file, texts, raw.class_names or (), where)
        raw.labels = values[codes].reshape(raw.labels.shape)
    return raw


def no_labels(path: Path, scores: Sequence[str] = ()) -> InputError:
    """Return the error for a file without labels; it lists the columns or arrays that are not `scores`."""
    others: list[str] = []
    if path.suffix.lower() == ".npz":
        with suppress(OSError, InputError):
            others = [name for name in npz_names(path) if name not in scores]
    if path.suffix.lower() in TEXT_TABLES:
        with suppress(OSError, ValueError, InputError):
            header = first_line(path)
            cells = next(csv.reader([header], delimiter=find_delimiter(path, header)))
            others = [name for name in cells if name and name not in scores]
    which = f" ({listing(others)})" if others else ""
    return file_error(
        path,
        f"contains no labels (no name like {listing(LABEL_NAMES)})",
        f"save labels in the file, give their name with --label{which}, or give another file with --labels FILE",
    )


def also_read(path: str | Path) -> list[Path]:
    """Return the other files that are read together with this one: the label file of a .npy."""
    file = Path(path)
    label_file = neighbouring_labels(file)[1] if file.suffix.lower() == ".npy" else None
    return [] if label_file is None else [label_file]


def _format_remedy(path: Path, suffix: str) -> str:
    if suffix in COMPRESSED and (inner := path.with_suffix("").suffix.lower()) in FORMATS:
        return (
            f"unpack it, or pass it on: {COMPRESSED[suffix]} {shlex.quote(path.name)} | avuc … - --format {inner[1:]}"
        )
    known = f"save it as one of {', '.join(FORMATS)}"
    if suffix in (".pt", ".pth", ".pkl", ".pickle"):
        known += ", because files with pickles can run code: numpy.savez('test.npz', logits=…, labels=…)"
    return known


def _format(path: Path) -> Format:
    """Return the format by the suffix; raises if the file cannot be opened or is empty."""
    status = check_regular(path)
    suffix = path.suffix.lower()
    if suffix != ".safetensors" and _is_safetensors(path, status.st_size):
        name = shlex.quote(path.with_suffix(".safetensors").name)
        raise file_error(path, "is a .safetensors file, as Predictions.save writes it", f"rename it to {name}")
    if suffix not in FORMATS:
        raise file_error(path, f"unknown format {suffix!r}", _format_remedy(path, suffix))
    if status.st_size == 0:
        raise file_error(path, "is empty", "save the predictions again")
    with open_regular(path):
        return FORMATS[suffix]


def _is_safetensors(path: Path, size: int) -> bool:
    """Return whether a file begins with the length of a header and the header."""
    with open_regular(path) as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < size


def add_labels(
    path: Path,
    raw: RawScores,
    labels: Path,
    options: ReadOptions,
    read: Callable[[Path, ReadOptions], tuple[Any, str]] | None,
) -> None:
    """Add the labels of another file to `raw`; two tables with a common column of ids are matched by id.

    Args:
        path: the score file.
        raw: its scores.
        labels: the label file.
        options: how to read the label file.
        read: reader of labels for files that are not tables; None for a table.
    """
    if read is not None:
        raw.labels, raw.labels_from = read(labels, options)
        return
    with TABLE_OPENERS[labels.suffix.lower()](labels, options) as table:
        check_unique_names(labels, table.names)
        key, others = find_label_name(labels, table.names, options.labels_key, "label column")
        if key is None:
            raise file_error(
                labels, f"contains no label column (it has {listing(table.names)})", "name it with --label"
            )
        if others:
            raise ambiguous_labels(labels, [key, *others])
        where = f"column {key!r} of {labels.name!r}"
        values, raw.labels_named = table.label_numbers(key, raw.class_names or (), where)
        raw.labels, raw.labels_from = values, where
        counts = [name for name in table.names if is_row_number(name) and name.lower() != "id"]
        ids = [name for name in table.names if is_id(name) and name not in (key, *counts)]
        matched = None
        if path.suffix.lower() in TABLE_OPENERS and len(table.names) > 1:
            with TABLE_OPENERS[path.suffix.lower()](path, options) as scores:
                shared = shared_columns(scores.names, table.names, {key, *raw.keys})
                matched = match_rows(path, labels, scores, table, shared)
                if matched is None and ids:
                    own = [name for name in scores.names if is_id(name) and name not in raw.keys]
                    matched = same_ids(scores, table, own, ids)
            if matched is not None and (matched.unused or not _in_order(matched.rows)):
                raw.labels = values[matched.rows]
                numbers = "".join(f" {name!r}" for name in matched.unused if name)  # an index may have no name
                unused = f"; the row numbers{numbers} say otherwise and were not used" if matched.unused else ""
                raw.notes.append(f"labels were matched to the scores by column {matched.column!r}{unused}")
        if ids and matched is None:
            raw.notes.append(f"labels were matched to the scores by position; column {ids[0]!r} was not used")


def _in_order(rows: np.ndarray) -> bool:
    return np.array_equal(rows, np.arange(len(rows)))
