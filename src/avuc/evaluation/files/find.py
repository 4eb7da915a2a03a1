"""From the name of a file to its arrays: the formats, and labels from a second file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from avuc.core.errors import InputError, out_of_memory
from avuc.core.files import check_regular, open_regular
from avuc.evaluation.files import csv, npy, parquet, tensors
from avuc.evaluation.files.columns import is_row_number
from avuc.evaluation.files.messages import ambiguous_labels, file_error, listing
from avuc.evaluation.files.names import LABEL_NAMES, RawScores, ReadOptions, check_unique_names, find_label_name

TABLES = (".parquet", ".csv")


@dataclass(frozen=True)
class Format:
    read: Callable[[Path, ReadOptions], RawScores]
    labels: Callable[[Path, ReadOptions], tuple[Any, str]] | None  # of a table: avuc.evaluation.files.label_file
    write: Callable[[Path, Path, RawScores, Any], None]


FORMATS: dict[str, Format] = {
    ".npz": Format(npy.read_npz, npy.labels_npz, npy.write_npz),
    ".npy": Format(npy.read_npy, npy.labels_npy, npy.write_npy),
    ".safetensors": Format(tensors.scores_tensors, tensors.labels_tensors, tensors.write_scores_tensors),
    ".parquet": Format(parquet.read_parquet, None, parquet.write_parquet),
    ".csv": Format(csv.read_csv, None, csv.write_csv),
}
OPENERS: dict[str, Callable[[Path, ReadOptions], Any]] = {".csv": csv.open_table, ".parquet": parquet.open_table}
# columns that tell rows apart, besides row numbers and names that end in id
ID_NAMES = frozenset(["uuid", "key", "name", "file", "filename", "file_name", "path", "image", "image_path"])


@contextmanager
def file_errors(file: Path) -> Iterator[None]:
    """Say in one line that a file cannot be read, or that memory is short."""
    try:
        yield
    except OSError as error:
        where = Path(error.filename) if error.filename else file
        raise file_error(
            where, f"cannot be read ({error.strerror or error})", "check the file and its rights"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise file_error(file, "there is not enough memory to hold it", "split it, or save float32 instead") from error


class HasScoreNames(Protocol):
    """What is used of a file of the same model."""

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
    in_blocks: bool = False,
) -> RawScores:
    """The scores and the labels of a file, before anything is checked; `in_blocks`, they stay there."""
    options = ReadOptions(
        scores_key,
        labels_key if labels is None else None,
        max_gb,
        columns,
        prefer=() if like is None or scores_key is not None else like.raw.keys,
        needs_labels=needs_labels and labels is None,
        in_blocks=in_blocks,
    )
    form = _format(file)
    if columns is not None and file.suffix.lower() not in TABLES:
        raise file_error(file, "has no columns with names", "leave out --columns, or name the scores with --scores-key")
    raw = form.read(file, options)
    raw.limit = options.limit
    if labels is not None:
        beside, other = Path(labels), ReadOptions(None, labels_key, max_gb, in_blocks=in_blocks)
        add_labels(file, raw, beside, other, _format(beside).labels)
    return raw


def no_labels(path: Path) -> InputError:
    return file_error(
        path,
        f"no labels: none named {listing(LABEL_NAMES)}",
        "save them in the file, name them with --label, or give them with --labels FILE",
    )


def reads_also(path: str | Path) -> list[Path]:
    """The files beside it that are read with a file: the labels of a .npy."""
    file = Path(path)
    beside = npy.neighbouring_labels(file)[1] if file.suffix.lower() == ".npy" else None
    return [] if beside is None else [beside]


def _format(path: Path) -> Format:
    """The file's format by its suffix, once it is known to be a file that can be opened and is not empty."""
    status = check_regular(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise file_error(path, f"unknown format {suffix!r}", f"save it as {', '.join(FORMATS)}")
    if status.st_size == 0:
        raise file_error(path, "is empty", "save the predictions again")
    with open_regular(path):
        return FORMATS[suffix]


class LabelTable(Protocol):
    """What is used of a table."""

    @property
    def names(self) -> list[str]: ...
    def label_numbers(self, name: str, classes: Sequence[str], where: str) -> tuple[np.ndarray, bool]: ...
    def cells(self, name: str) -> list[str] | None:
        """The column as text, whole numbers without a decimal point; None where it has empty cells or lists."""
        ...


def add_labels(
    path: Path,
    raw: RawScores,
    labels: Path,
    options: ReadOptions,
    read: Callable[[Path, ReadOptions], tuple[Any, str]] | None,
) -> None:
    """Put the labels of another file into `raw`.

    Args:
        path: the file of the scores.
        raw: its scores.
        labels: the file of the labels.
        wanted: what the caller asks of the labels' file.
        read: reads the labels of a file that is not a table; None for a table.
    """
    if read is not None:
        raw.labels, raw.labels_from = read(labels, options)
        return
    with OPENERS[labels.suffix.lower()](labels, options) as table:
        check_unique_names(labels, table.names)
        key, alike = find_label_name(labels, table.names, options.labels_key, "label column")
        if key is None:
            raise file_error(labels, f"no label column (it has {listing(table.names)})", "name it with --label")
        if alike:
            raise ambiguous_labels(labels, [key, *alike])
        where = f"column {key!r} of {labels.name!r}"
        values, raw.labels_named = table.label_numbers(key, raw.class_names or (), where)
        raw.labels, raw.labels_from = values, where
        if path.suffix.lower() in OPENERS and len(table.names) > 1:
            with OPENERS[path.suffix.lower()](path, options) as scores:
                shared = set(table.names) - {key, *raw.keys}
                order = _match(path, labels, scores, table, [name for name in scores.names if name in shared])
            if order is not None:
                raw.labels = values[order[0]]
                raw.notes.append(f"labels were matched to the scores by column {order[1]!r}")


def _match(
    path: Path, labels: Path, scores: LabelTable, table: LabelTable, shared: list[str]
) -> tuple[np.ndarray, str] | None:
    """For each row of scores the row of its label, and the column that says so; None where the order is the same."""
    known: tuple[np.ndarray, str] | None = None
    for name in shared:
        ours, theirs = scores.cells(name), table.cells(name)
        places = {cell: place for place, cell in enumerate(theirs or ())}
        if ours is None or theirs is None:
            same = not _is_id(name)
        elif len(places) == len(theirs) == len(ours) and set(ours) == places.keys():
            order = np.array([places[cell] for cell in ours], np.int64)
            if known is not None and not np.array_equal(order, known[0]):
                problem = f"columns {known[1]!r} and {name!r} match its rows to {path.name!r} in different ways"
                raise file_error(labels, problem, "save the ids of the same rows in both files")
            known, same = known or (order, name), True
        else:
            same = ours == theirs or not _is_id(name)
        if not same:
            problem = f"column {name!r} does not hold the same ids, each once, as in {path.name!r}"
            raise file_error(labels, problem, "save the ids of the same rows in both files, or in one file alone")
    if known is None or np.array_equal(known[0], np.arange(len(known[0]))):
        return None
    return known


def _is_id(name: str) -> bool:
    plain = name.lower()
    return is_row_number(name) or plain in ID_NAMES or plain.endswith(("_id", " id", "-id", ".id"))
