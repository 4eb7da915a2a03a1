"""Read and write .csv: a header line, one line per sample, one numeric column per class, one label column."""

from __future__ import annotations

import csv
import io
import re
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np
from torch import Tensor

from avuc.core.errors import InputError
from avuc.evaluation.files.choose_columns import choose_columns
from avuc.evaluation.files.columns import index_labels, is_number
from avuc.evaluation.files.messages import file_error, listing, number_hint
from avuc.evaluation.files.names import EXACT_RANGE, RawScores, ReadOptions, check_size

# the longest line, in characters
MAX_LINE = 16 * 2**20
# what may stand between cells; the first of these in the header does
DELIMITERS = (",", ";", "\t", "|")
T = TypeVar("T")
# the rows that tell what a column holds
HEAD_ROWS = 256
# bytes that a text of a few characters takes in memory
TEXT_BYTES = 100


def read_csv(path: Path, options: ReadOptions) -> RawScores:
    table = _Table.open(path, options)
    columns = choose_columns(path, table.names, options, table)
    label = table.column(columns.label)
    rows, width = len(label.codes), len(columns.scores)
    # the numbers, and for each row its label
    check_size(path, "the table", rows * (4 * width + 16), options.limit)
    places = [table.places[name] for name in columns.scores]
    scores = np.empty((0, width), np.float32)
    if rows:
        scores = read_text_table(path, lambda: _numbers(path, places, table.delimiter, rows, np.float32))
        if max(scores.max(initial=0), -scores.min(initial=0)) > EXACT_RANGE:  # float32 may not tell these numbers apart
            check_size(path, "the table", rows * (12 * width + 16), options.limit)
            scores = read_text_table(path, lambda: _numbers(path, places, table.delimiter, rows, np.float64))
    if len(scores) != rows:
        raise file_error(path, f"{rows:,} lines but {len(scores):,} rows of numbers", "save one line per sample")
    raw = RawScores(scores, columns.scores_from, columns.name, columns.scores, class_names=columns.class_names)
    raw.notes = list(columns.notes)
    if columns.label is not None:
        raw.labels_from = f"column {columns.label!r}"
    if columns.label is not None and options.needs_labels:
        raw.labels, raw.labels_named = label.numbers(path, columns.class_names, f"column {columns.label!r}")
    return raw


@contextmanager
def open_table(path: Path, options: ReadOptions) -> Iterator[_Table]:
    yield _Table.open(path, options)


def write_csv(source: Path, destination: Path, raw: RawScores, scores: Tensor) -> None:
    """The table again, line by line, with new numbers in the score columns."""
    table = _Table.open(source, ReadOptions(max_gb=2**30))
    places = [table.places[name] for name in raw.keys]
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
    def open(cls, path: Path, options: ReadOptions) -> _Table:
        line = read_text_table(path, lambda: first_line(path))
        if not line.strip():
            raise file_error(
                path, "the first line is empty", "begin with a header line such as label,logits_0,logits_1"
            )
        delimiter = find_delimiter(path, line)
        check_size(path, "the header", TEXT_BYTES * (line.count(delimiter) + 1), options.limit)
        header = read_text_table(path, lambda: next(csv.reader(io.StringIO(line), delimiter=delimiter, strict=True)))
        names = [name.strip() for name in header]
        check_header(path, names)
        return cls(path, names, delimiter, options.limit)

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

        read_text_table(self.path, read)
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
            read_text_table(self.path, read)
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


def find_delimiter(path: Path, header: str) -> str:
    """What stands between the cells."""
    mark = next((mark for mark in DELIMITERS if mark in header), None)
    if mark is None and _split_by_spaces(path, header):
        raise file_error(path, "its cells are separated by spaces", "separate them by commas, semicolons or tabs")
    return mark or ","


def check_header(path: Path, names: list[str]) -> None:
    """Refuse a first line that is a row of the table."""
    if _are_cells(names):
        raise file_error(
            path,
            f"there is no header line: the first line is {listing(names, 3)}",
            "begin with the names of the columns, for example label,logits_0,logits_1",
        )


def first_line(path: Path) -> str:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        line = lines.readline(MAX_LINE)
    if "\0" in line or len(line) == MAX_LINE:
        raise ValueError("its first line is not text with commas")
    return line


def _split_by_spaces(path: Path, header: str) -> bool:
    """Whether the second line has as many words as the header, and most of them are numbers."""

    def second() -> str:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            lines.readline(MAX_LINE)
            return lines.readline(MAX_LINE)

    words = read_text_table(path, second).split()
    return len(words) == len(header.split()) > 1 and 2 * sum(map(is_number, words)) > len(words)


def _are_cells(names: list[str]) -> bool:
    """Whether the first line holds a row of the table in place of names: columns may be named 0, 1, 2, but not 0.25."""
    numbers = [name for name in names if is_number(name)]
    whole = sorted(int(name) for name in numbers if name.isascii() and name.isdecimal() and len(name) < 10)
    if len(whole) < len(numbers):
        return 2 * len(numbers) >= len(names)
    return len(numbers) == len(names) and (len(names) == 1 or whole not in (_count(0, whole), _count(1, whole)))


def _count(first: int, like: list[int]) -> list[int]:
    return list(range(first, first + len(like)))


def read_text_table(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except InputError:
        raise
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]
        cell = re.search(r"could not convert string '([^']*)'", reason)
        hint = None if cell is None else number_hint(cell[1])
        remedy = hint or "save one line per sample with one number per class"
        raise file_error(path, f"not a readable .csv table ({reason[:200]})", remedy) from None
