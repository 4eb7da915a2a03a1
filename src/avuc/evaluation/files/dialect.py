"""How a .csv is written: what stands between its cells, whether it begins with a header, what is not a number."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from avuc.core.errors import InputError
from avuc.evaluation.files.names import listing, number_hint, refuse

__all__ = ["MAX_LINE", "check_header", "find_mark", "first_line", "guard", "is_number"]

# the longest line, in characters
MAX_LINE = 16 * 2**20
# what may stand between cells; the first of these in the header does
MARKS = (",", ";", "\t", "|")
T = TypeVar("T")


def find_mark(path: Path, header: str) -> str:
    """What stands between the cells."""
    mark = next((mark for mark in MARKS if mark in header), None)
    if mark is None and _split_by_spaces(path, header):
        raise refuse(path, "its cells are separated by spaces", "separate them by commas, semicolons or tabs")
    return mark or ","


def check_header(path: Path, names: list[str]) -> None:
    """Refuse a first line that is a row of the table."""
    if _are_cells(names):
        raise refuse(
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

    words = guard(path, second).split()
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


def guard(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except InputError:
        raise
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]
        cell = re.search(r"could not convert string '([^']*)'", reason)
        hint = None if cell is None else number_hint(cell[1])
        remedy = hint or "save one line per sample with one number per class"
        raise refuse(path, f"not a readable .csv table ({reason[:200]})", remedy) from None


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
