"""Reading .csv: one line per sample, one numeric column per class, one label column, a header line."""

from __future__ import annotations

import csv
import io
import warnings
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from torch import Tensor

from avuc.evaluation.files.columns import index_labels, pick_columns
from avuc.evaluation.files.dialect import MAX_LINE, check_header, find_mark, first_line, guard, is_number
from avuc.evaluation.files.names import FAR, Found, Wanted, check_size, refuse

__all__ = ["open_table", "read_csv", "write_csv"]

# the rows that tell what a column holds
HEAD_ROWS = 256
# bytes that a text of a few characters takes in memory
TEXT_BYTES = 100


def read_csv(path: Path, wanted: Wanted) -> Found:
    table = _Table.open(path, wanted)
    columns = pick_columns(path, table.names, wanted, table)
    label = table.column(columns.label)
    rows, width = len(label.codes), len(columns.scores)
    # the numbers, and for each row its label
    check_size(path, "the table", rows * (4 * width + 16), wanted.limit)
    places = [table.places[name] for name in columns.scores]
    scores = np.empty((0, width), np.float32)
    if rows:
        scores = guard(path, lambda: _numbers(path, places, table.delimiter, rows, np.float32))
        if max(scores.max(initial=0), -scores.min(initial=0)) > FAR:  # float32 may not tell these numbers apart
            check_size(path, "the table", rows * (12 * width + 16), wanted.limit)
            scores = guard(path, lambda: _numbers(path, places, table.delimiter, rows, np.float64))
    if len(scores) != rows:
        raise refuse(path, f"{rows:,} lines but {len(scores):,} rows of numbers", "save one line per sample")
    found = Found(scores, columns.scores_from, columns.name, columns.scores, class_names=columns.class_names)
    found.notes = list(columns.notes)
    if columns.label is not None:
        found.labels_from = f"column {columns.label!r}"
    if columns.label is not None and wanted.needs_labels:
        found.labels, found.labels_named = label.numbers(path, columns.class_names, f"column {columns.label!r}")
    return found


@contextmanager
def open_table(path: Path, wanted: Wanted) -> Iterator[_Table]:
    yield _Table.open(path, wanted)


def write_csv(source: Path, destination: Path, found: Found, scores: Tensor) -> None:
    """The table again, line by line, with new numbers in the score columns."""
    table = _Table.open(source, Wanted(max_gb=2**30))
    places = [table.places[name] for name in found.keys]
    with (
        source.open(encoding="utf-8-sig", newline="") as lines,
        destination.open("w", encoding="utf-8", newline="") as out,
    ):
        reader, writer = csv.reader(lines, delimiter=table.delimiter), csv.writer(out, delimiter=table.delimiter)
        writer.writerow(next(reader))
        rows = (row for row in reader if row)  # a blank line is not a sample
        for row, values in zip(rows, scores, strict=True):
            for place, value in zip(places, values.tolist(), strict=True):
                row[place] = f"{value:.9g}"
            writer.writerow(row)


@dataclass
class _Column:
    """One column as text: for each row the place of its text among the distinct ones."""

    codes: array[int]
    texts: list[str]

    def numbers(self, path: Path, classes: Sequence[str], where: str) -> tuple[np.ndarray, bool]:
        values, named = index_labels(path, self.texts, classes, where)
        return values[np.frombuffer(self.codes, np.int64)], named


@dataclass
class _Table:
    """The header of a table, and its cells as far as they are asked for."""

    path: Path
    names: list[str]
    delimiter: str
    limit: int
    read: dict[str | None, _Column] = field(default_factory=dict)  # the label column, which is asked for twice

    @classmethod
    def open(cls, path: Path, wanted: Wanted) -> _Table:
        line = guard(path, lambda: first_line(path))
        if not line.strip():
            raise refuse(path, "the first line is empty", "begin with a header line such as label,logits_0,logits_1")
        delimiter = find_mark(path, line)
        check_size(path, "the header", TEXT_BYTES * (line.count(delimiter) + 1), wanted.limit)
        header = guard(path, lambda: next(csv.reader(io.StringIO(line), delimiter=delimiter, strict=True)))
        names = [name.strip() for name in header]
        check_header(path, names)
        return cls(path, names, delimiter, wanted.limit)

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def head(self) -> list[list[str]]:
        """The first rows."""
        rows: list[list[str]] = []
        room = self.limit // (4 * TEXT_BYTES)  # cells

        def read() -> None:
            for row in self._lines():
                rows.append([cell.strip() for cell in row])
                if len(rows) >= HEAD_ROWS or len(rows) * len(self.names) > room:
                    return

        guard(self.path, read)
        return rows

    def column(self, name: str | None) -> _Column:
        """One column, and proof that every line has the header's number of cells: a comma too many in a text cell would
        otherwise shift the scores without a sound."""
        place = None if name is None else self.places[name]
        codes, known, room = array("q"), dict[str, int](), self.limit // 2

        def read() -> None:
            nonlocal room
            for row in self._lines():
                text = "" if place is None else row[place].strip()
                if text not in known:
                    known[text] = len(known)
                    room -= TEXT_BYTES + 4 * len(text)
                codes.append(known[text])
                if room < 0 or 8 * len(codes) > self.limit:
                    check_size(self.path, "the label column", self.limit + 1, self.limit)

        if name not in self.read:
            guard(self.path, read)
            self.read[name] = _Column(codes, list(known))
        return self.read[name]

    def _lines(self) -> Iterator[list[str]]:
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_bounded(file, self.delimiter, len(self.names)), delimiter=self.delimiter, strict=True)
            next(reader)
            for row in reader:
                if not row:
                    continue
                if len(row) != len(self.names):
                    raise ValueError(
                        f"line {reader.line_num} has {len(row)} cells where the header has {len(self.names)}"
                    )
                yield row

    def label_numbers(self, name: str, classes: Sequence[str], where: str) -> tuple[np.ndarray, bool]:
        return self.column(name).numbers(self.path, classes, where)

    def cells(self, name: str) -> list[str]:
        column = self.column(name)
        texts = [_whole(text) for text in column.texts]
        return [texts[code] for code in column.codes]

    # what a Sample tells

    def is_number(self, name: str) -> bool:
        place = self.places[name]
        cells = [row[place] for row in self.head if row[place]]
        return not cells or any(is_number(cell) for cell in cells)

    def is_list(self, name: str) -> bool:
        return False

    def text(self, name: str) -> str:
        return next((row[self.places[name]] for row in self.head if row[self.places[name]]), "")

    def rows(self, names: Sequence[str]) -> np.ndarray:
        places = [self.places[name] for name in names]
        return np.array([[_number(row[place]) for place in places] for row in self.head]).reshape(-1, len(names))

    def labels(self, name: str) -> frozenset[str]:
        return frozenset(_whole(text) for text in self.column(name).texts)


def _bounded(file: TextIO, delimiter: str, width: int) -> Iterator[str]:
    """Lines of a length that can be held, with no more cells than the header (a quoted cell may hold delimiters)."""
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        cells = line.count(delimiter) + 1
        if len(line) == MAX_LINE:
            raise ValueError(f"line {number} has more than {MAX_LINE:,} characters")
        if "\0" in line:
            raise ValueError(f"line {number} holds a zero byte")
        if cells > width and '"' not in line:
            raise ValueError(f"line {number} has {cells} cells where the header has {width}")
        yield line


def _numbers(path: Path, places: list[int], delimiter: str, rows: int, dtype: Any) -> np.ndarray:
    with path.open(encoding="utf-8-sig", newline="") as lines, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # blank lines, which are no rows
        return np.loadtxt(
            lines,
            dtype=dtype,
            delimiter=delimiter,
            quotechar='"',
            comments=None,
            skiprows=1,
            ndmin=2,
            usecols=places,
            max_rows=rows,
        )


def _number(text: str) -> float:
    return float(text) if is_number(text) else np.nan


def _whole(text: str) -> str:
    """`1.0` as `1`."""
    number = _number(text)
    return str(int(number)) if np.isfinite(number) and number == int(number) else text
