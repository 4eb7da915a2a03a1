"""Match the rows of a file of labels to those of the scores by columns of ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from avuc.core.errors import InputError
from avuc.evaluation.files.columns import is_row_number, whole_text
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


def match_rows(
    path: Path, labels: Path, scores: LabelTable, table: LabelTable, shared: list[tuple[str, str]]
) -> tuple[np.ndarray, str] | None:
    """Return for each row of scores the row of its label, and the id column; None if no shared column has ids.

    Row numbers that occur twice, such as the index of pandas after `concat`, name no row: then another column must.
    """
    known: tuple[np.ndarray, str] | None = None
    unclear: list[str] = []
    for own, name in shared:
        ours, theirs = scores.cells(own), table.cells(name)
        if ours is not None and theirs is not None and set(ours) != set(theirs):
            # one program may have written 7, and the other 007 or 7.0
            ours, theirs = [whole_text(cell) for cell in ours], [whole_text(cell) for cell in theirs]
        row_of = {cell: row for row, cell in enumerate(theirs or ())}
        if ours is None or theirs is None:
            same = not is_id(name)
        elif len(row_of) == len(theirs) == len(ours) and set(ours) == row_of.keys():
            order = np.array([row_of[cell] for cell in ours], np.int64)
            if known is not None and not np.array_equal(order, known[0]):
                problem = f"columns {known[1]!r} and {name!r} match its rows to {path.name!r} differently"
                raise file_error(labels, problem, "save the ids of the same rows in both files")
            known, same = known or (order, name), True
        else:
            same = ours == theirs or not is_id(name)
        if not same and name.lower() != "id" and is_row_number(name) and _repeats(ours, theirs):
            unclear.append(name)
        elif not same:
            raise _other_ids(path, labels, name)
    if unclear and known is None:
        raise _other_ids(path, labels, unclear[0])
    return known


def _repeats(*columns: list[str] | None) -> bool:
    return any(column is not None and len(set(column)) < len(column) for column in columns)


def _other_ids(path: Path, labels: Path, name: str) -> InputError:
    problem = f"column {name!r} does not contain the same ids as in {path.name!r}, each once"
    return file_error(labels, problem, "save the ids of the same rows in both files, or in only one of them")


def same_ids(
    scores: LabelTable, table: LabelTable, ours: Sequence[str], theirs: Sequence[str]
) -> tuple[np.ndarray, str] | None:
    """Return what `_match_rows` does for columns of other names with the same ids, such as `image` and `filename`."""
    own_cells = [
        cells for name in ours if not is_row_number(name) or name.lower() == "id" if (cells := scores.cells(name))
    ]
    for name in theirs:
        row_of = {cell: row for row, cell in enumerate(table.cells(name) or ())}
        for cells in own_cells:
            if len(row_of) == len(cells) and row_of.keys() == set(cells):
                return np.array([row_of[cell] for cell in cells], np.int64), name
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
