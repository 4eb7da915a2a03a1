"""Match the rows of a file of labels to those of the scores by columns of ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from avuc.core.errors import InputError
from avuc.evaluation.files.columns.columns import is_row_number
from avuc.evaluation.files.columns.numbers import whole_text
from avuc.evaluation.files.messages import file_error
from avuc.evaluation.files.names import Named

# columns that identify rows, besides row numbers and names that end in id
ID_NAMES = frozenset(["uuid", "key", "name", "file", "filename", "file_name", "path", "image", "image_path"])


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


class Matched(NamedTuple):
    """For each row of scores the row of its label, the id column that says so, and row numbers that do not."""

    rows: np.ndarray
    column: str
    unused: Sequence[str] = ()


def match_rows(
    path: Path, labels: Path, scores: LabelTable, table: LabelTable, shared: Sequence[tuple[str, str]]
) -> Matched | None:
    """Return how the rows match by the ids of shared columns; None if no shared column has ids.

    Row numbers, such as the index of pandas, may be those of one table only: they occur twice after `concat`, begin
    elsewhere, or count the rows of each table anew. They name no row then, and another column must, if there is one.
    """
    known: tuple[np.ndarray, str] | None = None
    counted: list[str] = []  # 0, 1, 2, … in both tables
    unclear: dict[str, bool] = {}  # row numbers that differ, and whether some occur twice
    for own, name in shared:
        ours, theirs = scores.cells(own), table.cells(name)
        if ours is not None and theirs is not None and set(ours) != set(theirs):
            # one program may have written 7, and the other 007 or 7.0
            ours, theirs = [whole_text(cell) for cell in ours], [whole_text(cell) for cell in theirs]
        counts = name.lower() != "id" and is_row_number(name)
        row_of = {cell: row for row, cell in enumerate(theirs or ())}
        if ours is None or theirs is None:
            same = not is_id(name)
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
            same = ours == theirs or not is_id(name)
        if not same and counts:
            unclear[name] = _repeats(ours, theirs)
        elif not same:
            raise _other_ids(path, labels, name)
    if known is not None:
        by_position = np.array_equal(known[0], np.arange(len(known[0])))
        return Matched(*known, [*unclear, *([] if by_position else counted)])
    if unclear and not (counted and all(unclear.values())):
        raise _other_ids(path, labels, next(iter(unclear)))
    return None


def _consecutive(cells: list[str]) -> bool:
    texts = [whole_text(cell) for cell in cells]
    return bool(texts) and texts[0].isdecimal() and texts == [str(int(texts[0]) + row) for row in range(len(texts))]


def _repeats(*columns: list[str] | None) -> bool:
    return any(column is not None and len(set(column)) < len(column) for column in columns)


def _other_ids(path: Path, labels: Path, name: str) -> InputError:
    problem = f"column {name!r} does not contain the same ids as in {path.name!r}, each once"
    return file_error(labels, problem, "save the ids of the same rows in both files, or in only one of them")


def same_ids(scores: LabelTable, table: LabelTable, ours: Sequence[str], theirs: Sequence[str]) -> Matched | None:
    """Return what `match_rows` does for columns of other names with the same ids, such as `image` and `filename`."""
    own_cells = [
        cells for name in ours if not is_row_number(name) or name.lower() == "id" if (cells := scores.cells(name))
    ]
    for name in theirs:
        label_ids = table.cells(name) or ()
        row_of = {cell: row for row, cell in enumerate(label_ids)}
        for cells in own_cells:
            # an id that occurs twice may have two labels
            if len(row_of) == len(label_ids) == len(cells) and row_of.keys() == set(cells):
                return Matched(np.array([row_of[cell] for cell in cells], np.int64), name)
    return None


def shared_columns(ours: Sequence[str], theirs: Sequence[str], others: set[str]) -> list[tuple[str, str]]:
    """Return the columns that two tables share, by their names in both; upper and lower case count only if needed.

    Args:
        ours: columns of the scores.
        theirs: columns of the labels.
        others: columns that are scores or labels.

    >>> shared_columns(["Id", "fold", "p"], ["id", "fold", "label"], {"p", "label"})
    [('Id', 'id'), ('fold', 'fold')]
    """
    by_case = {name: [other for other in theirs if other.lower() == name.lower()] for name in ours}
    alike = {name: name if name in found else found[0] for name, found in by_case.items() if found}
    return [(own, name) for own, name in alike.items() if not others & {own, name}]


def is_id(name: str) -> bool:
    plain = name.lower()
    return is_row_number(name) or plain in ID_NAMES or plain.endswith(("_id", " id", "-id", ".id"))
