"""The header and the lines of a .csv: what separates the cells, is there a header line, how long may a line be."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO, TypeVar

from avuc.core.errors import InputError
from avuc.evaluation.files.columns.numbers import is_comma_number, is_finite_number, is_number
from avuc.evaluation.files.messages import file_error, listing

# longest line, in characters
MAX_LINE = 16 * 2**20
# what may separate the cells
DELIMITERS = (",", ";", "\t", "|")
REMEDY = "save one line per sample with one number per class"
NOT_UTF8 = "save it as UTF-8; spreadsheets call this CSV UTF-8"
T = TypeVar("T")


def find_delimiter(path: Path, header: str) -> str:
    """Return what separates the cells; names and cells may contain others, as in `tench, Tinca tinca;label`."""
    first = ("\t",) if path.suffix.lower() == ".tsv" else ()
    found = [delimiter for delimiter in dict.fromkeys((*first, *DELIMITERS)) if delimiter in header]
    if not found and _split_by_spaces(path, header):
        raise file_error(path, "the cells are separated by spaces", "separate them by commas, semicolons or tabs")
    if len(found) > 1:
        row = _second_line(path)
        found.sort(key=lambda delimiter: -_fitting_numbers(header, row, delimiter))
    return found[0] if found else ","


def _fitting_numbers(header: str, row: str, delimiter: str) -> int:
    """Return how many numbers the first row has with this delimiter; −1 if it has not as many cells as the header."""
    try:
        names, cells = (next(csv.reader([line], delimiter=delimiter, strict=True), []) for line in (header, row))
    except csv.Error:
        return -1
    return sum(is_number(cell) or is_comma_number(cell) for cell in cells) if len(names) == len(cells) else -1


def check_header(path: Path, names: list[str]) -> None:
    """Raise if the first line is a row of the table, or a note for Excel, instead of a header."""
    if names[0].lower() == "sep=":
        problem = "the first line says how Excel separates the cells (sep=), and is no header line"
        raise file_error(path, problem, "remove this line")
    if _are_cells(names):
        raise file_error(
            path,
            f"there is no header line: the first line is {listing(names, 3)}",
            "start with the names of the columns, for example label,logits_0,logits_1",
        )


def first_line(path: Path) -> str:
    """Return the header line."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        line = lines.readline(MAX_LINE)
    if "\0" in line or len(line) == MAX_LINE:
        raise ValueError("the first line is not text")
    return line


def header_cells(line: str, delimiter: str) -> list[str]:
    """Return the cells of the header line."""
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"line 1: {error}") from None


def _second_line(path: Path) -> str:
    def read() -> str:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            lines.readline(MAX_LINE)
            return lines.readline(MAX_LINE)

    return read_text_table(path, read)


def _split_by_spaces(path: Path, header: str) -> bool:
    """Return whether the second line has as many words as the header, most of them numbers."""

    words = _second_line(path).split()
    return len(words) == len(header.split()) > 1 and 2 * sum(map(is_number, words)) > len(words)


def _are_cells(names: list[str]) -> bool:
    """Return whether these are cells, not names of columns: columns may be named 0, 1, 2, but not 0.25."""
    numbers = [name for name in names if is_finite_number(name)]
    integers = sorted(int(name) for name in numbers if name.isascii() and name.isdecimal() and len(name) < 10)
    if len(integers) < len(numbers):
        return 2 * len(numbers) >= len(names)
    return len(numbers) == len(names) and (
        len(names) == 1 or integers not in (_count(0, integers), _count(1, integers))
    )


def _count(first: int, like: list[int]) -> list[int]:
    return list(range(first, first + len(like)))


def read_text_table(path: Path, read: Callable[[], T]) -> T:
    """Return `read()`; errors of decoding and parsing become one line about the file."""
    try:
        return read()
    except InputError:
        raise
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        if isinstance(error, UnicodeDecodeError):
            raise file_error(path, "not a readable .csv table (it is not UTF-8 text)", NOT_UTF8) from None
        reason = str(error).splitlines()[0]
        raise file_error(path, f"not a readable .csv table ({reason[:200]})", REMEDY) from None


def bounded_lines(file: TextIO, delimiter: str, width: int) -> Iterator[str]:
    """Yield the lines; raise if one is too long or has more cells than the header (a quoted cell may have commas)."""
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        cells = line.count(delimiter) + 1
        if len(line) == MAX_LINE:
            raise ValueError(f"line {number} has more than {MAX_LINE:,} characters")
        if "\0" in line:
            raise ValueError(f"line {number} contains a zero byte")
        if cells > width and '"' not in line:
            raise ValueError(f"line {number} has {cells} cells, but the header has {width}")
        yield line
