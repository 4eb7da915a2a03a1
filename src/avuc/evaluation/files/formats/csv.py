"""Read and write .csv: a header line, one line per sample, one numeric column per class, one label column."""

from __future__ import annotations

import csv
import re
import warnings
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from avuc.core.quotes import plain_rows, quotes_are_text, tables_rows
from avuc.evaluation.files.columns.choose import choose_columns
from avuc.evaluation.files.columns.columns import index_labels
from avuc.evaluation.files.columns.numbers import as_number, is_comma_number, is_finite_number, is_number, whole_text
from avuc.evaluation.files.formats.csv_header import (
    MAX_LINE,
    REMEDY,
    bounded_lines,
    check_header,
    find_delimiter,
    first_line,
    header_cells,
    read_text_table,
)
from avuc.evaluation.files.messages import file_error, number_hint, quoted
from avuc.evaluation.files.names import EXACT_RANGE, Named, RawScores, ReadOptions, check_size

# rows that are read to find out what a column contains
HEAD_ROWS = 256
# 1,234 may be a thousand or a decimal; 0,234 is a decimal
THOUSANDS = r"[+-]?[1-9]\d{0,2},\d{3}"
COMMA_TO_POINT = str.maketrans({",": ".", ".": "!"})
COMMA_CELLS = "other cells have a decimal comma: use it in all of them"
EMPTY_CELL = "fill the empty cells, or remove these rows"
TRUTHS = {"true": 1.0, "false": 0.0}
COMMA_NOTE = "numbers were read with a decimal comma: 0,25 is 0.25"
# memory of a short Python string
TEXT_BYTES = 100


def read_csv(path: Path, options: ReadOptions) -> RawScores:
    """Read scores and labels from the columns of a table."""
    table = _Table.open(path, options)
    columns = choose_columns(path, table.names, options, table)
    label = table.column(columns.label)
    rows, width = len(label.codes), len(columns.scores)
    # the numbers, and a label for each row
    check_size(path, "the table", rows * (4 * width + 16), options.limit)
    scores = np.empty((0, width), np.float32)
    if rows:
        scores = table.numbers(columns.scores, rows, np.float32)
        if max(scores.max(initial=0), -scores.min(initial=0)) > EXACT_RANGE:  # too large for float32
            check_size(path, "the table", rows * (12 * width + 16), options.limit)
            scores = table.numbers(columns.scores, rows, np.float64)
    if len(scores) != rows:
        raise file_error(path, f"{rows:,} lines but {len(scores):,} rows of numbers", "save one line per sample")
    raw = RawScores(scores, columns.scores_from, columns.name, columns.scores, class_names=columns.class_names)
    raw.notes = list(columns.notes)
    if table.uses_comma(columns.scores):
        raw.notes.append(COMMA_NOTE)
    if columns.label is not None:
        raw.labels_from = f"column {columns.label!r}"
    if columns.label is not None and (options.needs_labels or options.only_mark):
        with options.label_errors():
            raw.labels, raw.labels_named = label.numbers(path, columns.class_names, f"column {columns.label!r}")
    return raw


@contextmanager
def open_csv(path: Path, options: ReadOptions) -> Iterator[_Table]:
    """Open a table to read single columns."""
    yield _Table.open(path, options)


def write_csv(source: Path, destination: Path, raw: RawScores, scores: Tensor) -> None:
    """Write the table again, line by line, with new numbers in the score columns."""
    table = _Table.open(source, ReadOptions(max_gb=2**30))
    positions, comma = [table.position[name] for name in raw.keys], table.uses_comma(raw.keys)
    # quotes that are a part of a text stay as they are
    quoting: Any = {"quoting": csv.QUOTE_NONE, "quotechar": None} if table.plain else {}
    with (
        source.open(encoding="utf-8-sig", newline="") as lines,
        destination.open("w", encoding="utf-8", newline="") as out,
    ):
        reader = csv.reader(lines, delimiter=table.delimiter, **quoting)
        writer = csv.writer(out, delimiter=table.delimiter, **quoting)
        writer.writerow(next(reader))
        rows = (row for row in reader if row)  # a blank line is not a sample
        for row, values in zip(rows, scores, strict=True):
            for position, value in zip(positions, values.tolist(), strict=True):
                row[position] = f"{value:.9g}".replace(".", ",") if comma else f"{value:.9g}"
            writer.writerow(row)


@dataclass
class _Column:
    """One column: its distinct texts, and for each row the index of its text."""

    codes: array[int]
    texts: list[str]

    def numbers(self, path: Path, classes: Sequence[str], where: str) -> tuple[np.ndarray, Named]:
        """Return the column as class numbers, and whether the texts were class names."""
        values, named = index_labels(path, self.texts, classes, where)
        return values[np.frombuffer(self.codes, np.int64)], named


@dataclass
class _Table:
    """The header of a table; cells are read on demand. It is also the `TableSample` of the table."""

    path: Path
    names: list[str]
    delimiter: str
    limit: int
    read: dict[str | None, _Column] = field(default_factory=dict)  # columns read so far
    commas: dict[str, bool] = field(default_factory=dict)  # columns that were asked for a decimal comma

    @classmethod
    def open(cls, path: Path, options: ReadOptions) -> _Table:
        """Read the header."""
        line = read_text_table(path, lambda: first_line(path))
        if not line.strip():
            raise file_error(
                path, "the first line is empty", "start with a header line such as label,logits_0,logits_1"
            )
        delimiter = find_delimiter(path, line)
        check_size(path, "the header", TEXT_BYTES * (line.count(delimiter) + 1), options.limit)
        header = read_text_table(path, lambda: header_cells(line, delimiter))
        names = [name.strip() for name in header]
        check_header(path, names)
        return cls(path, names, delimiter, options.limit)

    @cached_property
    def position(self) -> dict[str, int]:
        """The index of each column."""
        return {name: index for index, name in enumerate(self.names)}

    @cached_property
    def plain(self) -> bool:
        """Whether double quotes are a part of the texts, so that every line is a row."""
        are_rows = tables_rows(self.delimiter, lambda cell: is_number(cell.strip()) or is_comma_number(cell.strip()))
        with self.path.open(encoding="utf-8-sig", newline="") as file:

            def lines() -> Iterator[str]:
                file.seek(0)
                return iter(partial(file.readline, MAX_LINE), "")  # `bounded_lines` checks them later

            shape = self.delimiter, len(self.names)
            return read_text_table(self.path, lambda: quotes_are_text(lines, *shape, are_rows))

    @cached_property
    def head(self) -> list[list[str]]:
        """The first rows."""
        rows: list[list[str]] = []
        room = self.limit // (4 * TEXT_BYTES)  # cells

        def read() -> None:
            for _, row in self._lines():
                rows.append([cell.strip() for cell in row])
                if len(rows) >= HEAD_ROWS or len(rows) * len(self.names) > room:
                    return

        read_text_table(self.path, read)
        return rows

    def column(self, name: str | None) -> _Column:
        """Return one column (None: only codes for the rows), and check that every line has as many cells as the header.

        Without the check, an additional comma in a text cell would shift the scores silently.
        """
        position = None if name is None else self.position[name]
        codes, known, room = array("q"), dict[str, int](), self.limit // 2

        def read() -> None:
            nonlocal room
            for _, row in self._lines():
                text = "" if position is None else row[position].strip()
                if text not in known:
                    known[text] = len(known)
                    room -= TEXT_BYTES + 4 * len(text)
                codes.append(known[text])
                if room < 0 or 8 * len(codes) > self.limit:
                    check_size(self.path, "the label column", self.limit + 1, self.limit)

        if name not in self.read:
            read_text_table(self.path, read)
            comma = name is not None and self._has_comma(name)
            self.read[name] = _Column(codes, [text.replace(",", ".") if comma else text for text in known])
        return self.read[name]

    def numbers(self, names: Sequence[str], rows: int, dtype: Any, *, missing: str = EMPTY_CELL) -> np.ndarray:
        """Return (rows, len(names)) numbers of these columns; `missing` is the remedy for an empty cell."""
        positions = [self.position[name] for name in names]
        try:
            return self._load_numbers(positions, rows, dtype, self.uses_comma(names))
        except ValueError as error:
            read_text_table(self.path, lambda: self._check_numbers(names, missing))
            reason = str(error).splitlines()[0][:200]
            raise file_error(self.path, f"not a readable .csv table ({reason})", REMEDY) from None

    def _check_numbers(self, names: Sequence[str], missing: str) -> None:
        """Raise for the first cell of these columns that is not a number."""
        comma = self.uses_comma(names)
        number = is_comma_number if comma else is_number
        for line, row in self._lines():
            for name in names:
                text = row[self.position[name]].strip()
                if not number(text):
                    problem = f"line {line}: column {name!r} contains {quoted(text)}, not a number"
                    remedy = missing if not text else COMMA_CELLS if comma else REMEDY
                    raise file_error(self.path, f"not a readable .csv table ({problem})", number_hint(text) or remedy)

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of each line after the header, and its cells."""
        rows = plain_rows(self._text_lines(), self.delimiter) if self.plain else self._quoted_rows()
        next(rows)
        for line, row in rows:
            if len(row) != len(self.names):
                raise ValueError(f"line {line} has {len(row)} cells, but the header has {len(self.names)}")
            yield line, row

    def _quoted_rows(self) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(self._text_lines(), delimiter=self.delimiter, strict=True)
        yield from ((reader.line_num, row) for row in reader if row)

    def _text_lines(self) -> Iterator[str]:
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            yield from bounded_lines(file, self.delimiter, len(self.names))

    def _load_numbers(self, positions: list[int], rows: int, dtype: Any, comma: bool) -> np.ndarray:
        with self.path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about blank lines
            lines: Iterator[str] = file
            if self.plain:
                lines = (self.delimiter.join([row[p] for p in positions]) for _, row in self._lines())
            return np.loadtxt(
                # a point in a number with a decimal comma separates thousands: it must not be read as 1.5
                (line.translate(COMMA_TO_POINT) for line in lines) if comma else lines,
                dtype=dtype,
                delimiter=self.delimiter,
                quotechar=None if self.plain else '"',
                comments=None,
                skiprows=0 if self.plain else 1,
                ndmin=2,
                usecols=None if self.plain else positions,
                max_rows=rows,
            )

    def truths(self, name: str, missing: str) -> np.ndarray | None:
        """Return 1 for true, 0 for false, and numbers; None if no cell of the first rows is true or false."""
        if not any(row[self.position[name]].lower() in TRUTHS for row in self.head):
            return None
        column = self.column(name)
        values = np.array([TRUTHS.get(text.lower(), as_number(text)) for text in column.texts], np.float64)
        if np.isnan(values).any():
            text = column.texts[int(np.isnan(values).argmax())]
            problem = f"column {name!r} contains {quoted(text)} beside true and false"
            raise file_error(self.path, problem, REMEDY if text else missing)
        return values[np.frombuffer(column.codes, np.int64)]

    def label_numbers(self, name: str, classes: Sequence[str], where: str) -> tuple[np.ndarray, Named]:
        return self.column(name).numbers(self.path, classes, where)

    def cells(self, name: str) -> list[str]:
        column = self.column(name)
        return [column.texts[code] for code in column.codes]

    # the methods of TableSample

    def is_number(self, name: str) -> bool:
        position = self.position[name]
        cells = [row[position] for row in self.head if row[position]]
        # a column of texts may have the word nan
        return any(map(is_finite_number, cells)) or all(map(is_number, cells)) or self._has_comma(name)

    def uses_comma(self, names: Sequence[str]) -> bool:
        """Return whether numbers of these columns have a decimal comma: 0,25."""
        return any(self._has_comma(name) for name in names)

    def _has_comma(self, name: str) -> bool:
        """Return whether the first rows of a column have a decimal comma; 1,234 alone may be a thousand."""
        if name not in self.commas:
            cells = [row[self.position[name]] for row in self.head]
            clear = any(is_comma_number(cell) and not re.fullmatch(THOUSANDS, cell) for cell in cells if "," in cell)
            clear = clear and self.delimiter != ","
            self.commas[name] = clear and all(is_comma_number(cell) for cell in cells if cell)
        return self.commas[name]

    def is_list(self, name: str) -> bool:
        return False

    def text(self, name: str) -> str:
        return next((row[self.position[name]] for row in self.head if row[self.position[name]]), "")

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column as they are, without spaces around them."""
        position = self.position[name]
        return read_text_table(self.path, lambda: [row[position].strip() for _, row in self._lines()])

    def rows(self, names: Sequence[str]) -> np.ndarray:
        positions = [self.position[name] for name in names]
        commas = [self._has_comma(name) for name in names]
        cells = ([as_number(row[p], comma) for p, comma in zip(positions, commas, strict=True)] for row in self.head)
        return np.array(list(cells)).reshape(-1, len(names))

    def labels(self, name: str) -> frozenset[str]:
        return frozenset(whole_text(text) for text in self.column(name).texts)
