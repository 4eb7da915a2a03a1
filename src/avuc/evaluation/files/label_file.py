"""Labels from a second table: looked up by name among the classes, and matched to the scores by a column of ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from avuc.evaluation.files import csv, parquet
from avuc.evaluation.files.columns import is_row_number
from avuc.evaluation.files.names import Found, Wanted, check_doubled, find_labels, listing, refuse
from avuc.evaluation.files.refusals import unclear_labels

__all__ = ["add_labels"]

Reader = Callable[[Path, Wanted], tuple[Any, str]]
OPENERS: dict[str, Callable[[Path, Wanted], Any]] = {".csv": csv.open_table, ".parquet": parquet.open_table}
# columns that tell rows apart, besides row numbers and names that end in id
ID_NAMES = frozenset(["uuid", "key", "name", "file", "filename", "file_name", "path", "image", "image_path"])


class Table(Protocol):
    """What is used of a table."""

    @property
    def names(self) -> list[str]: ...
    def label_numbers(self, name: str, classes: Sequence[str], where: str) -> tuple[np.ndarray, bool]: ...
    def cells(self, name: str) -> list[str] | None:
        """The column as text, whole numbers without a decimal point; None where it has empty cells or lists."""
        ...


def add_labels(
    path: Path, found: Found, labels: Path, wanted: Wanted, read: Callable[[Path, Wanted], tuple[Any, str]] | None
) -> None:
    """Put the labels of another file into `found`.

    Args:
        path: the file of the scores.
        found: its scores.
        labels: the file of the labels.
        wanted: what the caller asks of the labels' file.
        read: reads the labels of a file that is not a table; None for a table.
    """
    if read is not None:
        found.labels, found.labels_from = read(labels, wanted)
        return
    with OPENERS[labels.suffix.lower()](labels, wanted) as table:
        check_doubled(labels, table.names)
        key, alike = find_labels(labels, table.names, wanted.labels_key, "label column")
        if key is None:
            raise refuse(labels, f"no label column (it has {listing(table.names)})", "name it with --label")
        if alike:
            raise unclear_labels(labels, [key, *alike])
        where = f"column {key!r} of {labels.name!r}"
        values, found.labels_named = table.label_numbers(key, found.class_names or (), where)
        found.labels, found.labels_from = values, where
        if path.suffix.lower() in OPENERS and len(table.names) > 1:
            with OPENERS[path.suffix.lower()](path, wanted) as scores:
                shared = set(table.names) - {key, *found.keys}
                order = _match(path, labels, scores, table, [name for name in scores.names if name in shared])
            if order is not None:
                found.labels = values[order[0]]
                found.notes.append(f"labels were matched to the scores by column {order[1]!r}")


def _match(path: Path, labels: Path, scores: Table, table: Table, shared: list[str]) -> tuple[np.ndarray, str] | None:
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
                raise refuse(labels, problem, "save the ids of the same rows in both files")
            known, same = known or (order, name), True
        else:
            same = ours == theirs or not _is_id(name)
        if not same:
            problem = f"column {name!r} does not hold the same ids, each once, as in {path.name!r}"
            raise refuse(labels, problem, "save the ids of the same rows in both files, or in one file alone")
    if known is None or np.array_equal(known[0], np.arange(len(known[0]))):
        return None
    return known


def _is_id(name: str) -> bool:
    plain = name.lower()
    return is_row_number(name) or plain in ID_NAMES or plain.endswith(("_id", " id", "-id", ".id"))
