"""Find the scores and labels of a file: the table of formats, and labels from a second file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from avuc.core.errors import InputError, out_of_memory
from avuc.core.files import check_regular, open_regular
from avuc.evaluation.files.arrays import (
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
from avuc.evaluation.files.columns import index_labels, is_row_number, whole_text
from avuc.evaluation.files.csv import open_csv, read_csv, write_csv
from avuc.evaluation.files.csv_header import find_delimiter, first_line
from avuc.evaluation.files.messages import ambiguous_labels, file_error, listing
from avuc.evaluation.files.names import LABEL_NAMES, Named, RawScores, ReadOptions, check_unique_names, find_label_name
from avuc.evaluation.files.parquet import open_parquet, read_parquet, write_parquet

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
# columns that identify rows, besides row numbers and names that end in id
ID_NAMES = frozenset(["uuid", "key", "name", "file", "filename", "file_name", "path", "image", "image_path"])


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


def _format(path: Path) -> Format:
    """Return the format by the suffix; raises if the file cannot be opened or is empty."""
    status = check_regular(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise file_error(path, f"unknown format {suffix!r}", f"save it as one of {', '.join(FORMATS)}")
    if status.st_size == 0:
        raise file_error(path, "is empty", "save the predictions again")
    with open_regular(path):
        return FORMATS[suffix]


class LabelTable(Protocol):
    """The methods of a .csv or .parquet table that are used here."""

    @property
    def names(self) -> list[str]: ...
    def label_numbers(self, name: str, classes: Sequence[str], where: str) -> tuple[np.ndarray, Named]:
        """Return the labels as numbers, and whether they were class names."""
        ...

    def cells(self, name: str) -> list[str] | None:
        """Return the column as text; None if it has empty cells or lists."""
        ...


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
        shared: set[str] = set()
        if path.suffix.lower() in TABLE_OPENERS and len(table.names) > 1:
            with TABLE_OPENERS[path.suffix.lower()](path, options) as scores:
                shared = (set(table.names) & set(scores.names)) - {key, *raw.keys}
                order = _match_rows(path, labels, scores, table, [name for name in scores.names if name in shared])
            if order is not None:
                raw.labels = values[order.rows]
                numbers = "".join(f" {name!r}" for name in order.unused if name)  # an index may have no name
                unused = f"; the row numbers{numbers} say otherwise and were not used" if order.unused else ""
                raw.notes.append(f"labels were matched to the scores by column {order.column!r}{unused}")
        counts = [name for name in table.names if is_row_number(name) and name.lower() != "id"]
        ids = [name for name in table.names if _is_id(name) and name not in (key, *counts)]
        if ids and not shared:
            raw.notes.append(f"labels were matched to the scores by position; column {ids[0]!r} was not used")


class _Order(NamedTuple):
    """For each row of scores the row of its label, the id column that says so, and row numbers that do not."""

    rows: np.ndarray
    column: str
    unused: list[str]


def _match_rows(path: Path, labels: Path, scores: LabelTable, table: LabelTable, shared: list[str]) -> _Order | None:
    """Return how the rows match by their ids; None if the order is the same.

    Row numbers, such as the index of pandas, may be those of one table only: they occur twice after `concat`, begin
    elsewhere, or count the rows of each table anew. They name no row then, and another column must, if there is one.
    """
    known: tuple[np.ndarray, str] | None = None
    counted: list[str] = []  # 0, 1, 2, … in both tables
    unclear: dict[str, bool] = {}  # row numbers that differ, and whether some occur twice
    for name in shared:
        ours, theirs = scores.cells(name), table.cells(name)
        if ours is not None and theirs is not None and set(ours) != set(theirs):
            # one program may have written 7, and the other 007 or 7.0
            ours, theirs = [whole_text(cell) for cell in ours], [whole_text(cell) for cell in theirs]
        counts = name.lower() != "id" and is_row_number(name)
        row_of = {cell: row for row, cell in enumerate(theirs or ())}
        if ours is None or theirs is None:
            same = not _is_id(name)
        elif len(row_of) == len(theirs) == len(ours) and set(ours) == row_of.keys():
            if counts and ours == theirs and _consecutive(ours):
                counted.append(name)
                continue
            order = np.array([row_of[cell] for cell in ours], np.int64)
            if known is not None and not np.array_equal(order, known[0]):
                problem = f"columns {known[1]!r} and {name!r} match its rows to {path.name!r} differently"
                raise file_error(labels, problem, "save the ids of the same rows in both files")
            known, same = known or (order, name), True
        else:
            same = ours == theirs or not _is_id(name)
        if not same and counts:
            unclear[name] = _repeats(ours, theirs)
        elif not same:
            raise _other_ids(path, labels, name)
    if known is None:
        if unclear and not (counted and all(unclear.values())):
            raise _other_ids(path, labels, next(iter(unclear)))
        return None
    by_position = np.array_equal(known[0], np.arange(len(known[0])))
    unused = [*unclear, *([] if by_position else counted)]
    return None if by_position and not unused else _Order(*known, unused)


def _consecutive(cells: list[str]) -> bool:
    texts = [whole_text(cell) for cell in cells]
    return bool(texts) and texts[0].isdecimal() and texts == [str(int(texts[0]) + row) for row in range(len(texts))]


def _repeats(*columns: list[str] | None) -> bool:
    return any(column is not None and len(set(column)) < len(column) for column in columns)


def _other_ids(path: Path, labels: Path, name: str) -> InputError:
    problem = f"column {name!r} does not contain the same ids as in {path.name!r}, each once"
    return file_error(labels, problem, "save the ids of the same rows in both files, or in only one of them")


def _is_id(name: str) -> bool:
    plain = name.lower()
    return is_row_number(name) or plain in ID_NAMES or plain.endswith(("_id", " id", "-id", ".id"))
