"""Double quotes in text tables: those around cells, and those that are part of a text, as in 12" pipe.

A quote at the start of a cell opens a cell that may contain line breaks (RFC 4180). In a table that was written without
quotes around cells, such a quote is a part of the text, and reading it as an opening quote would join rows silently.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, tee

QUOTE = '"'
Lines = Callable[[], Iterable[str]]
Cells = list[str]
# A csv writer set the quotes if this many rows need theirs for every quoted cell whose lines look like rows.
WRITTEN = 10
REMEDY = "double every quote inside a cell and put the cell into quotes, as csv writers do, or leave quotes out"


def split_plainly(line: str, delimiter: str) -> Cells:
    """Return the cells of a line in which quotes are a part of the text; a cell that is quoted as a whole is not.

    >>> split_plainly('12" pipe,"a",0.5', ",")
    ['12" pipe', 'a', '0.5']
    """
    return [_unquoted(cell) for cell in line.rstrip("\r\n").split(delimiter)]


def plain_rows(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, Cells]]:
    """Yield the number of each line that is not blank, and its cells; quotes are a part of the text."""
    for number, line in enumerate(lines, start=1):
        if line.strip("\r\n"):
            yield number, split_plainly(line, delimiter)


def quotes_are_text(lines: Lines, delimiter: str, width: int, are_rows: Callable[[Sequence[Cells]], bool]) -> bool:
    """Return whether double quotes of a table are a part of its texts, so that every line is a row.

    They are if a quoted cell is not closed, is followed by other text, or runs over lines each of which is a row by
    itself, and every line has as many cells as the header. If some line has not, that is an error: a `ValueError` with
    the number of the line. Cells over lines that look like rows do not count if the header is quoted, or if many other
    rows need their quotes.

    Args:
        lines: returns the lines of the table, with the header.
        delimiter: what separates the cells.
        width: number of cells of the header.
        are_rows: whether lines, as cells, are rows by their content; it is asked for lines that one quoted cell joins
            and that have as many cells as the header.

    >>> quotes_are_text(lambda: ['text,p', '"a,0.1', 'b",0.2'], ",", 2, lambda rows: True)
    True
    >>> quotes_are_text(lambda: ['text,p', '"a', 'b",0.2'], ",", 2, lambda rows: True)
    False
    """
    if not any(QUOTE in line for line in lines()):
        return False
    problem = _problem(lines(), delimiter, width, are_rows)
    if problem is None:
        return False
    if width > 1 and all(len(cells) == width for _, cells in plain_rows(lines(), delimiter)):
        return True
    if problem[1]:
        raise ValueError(f"line {problem[0]}: a double quote {problem[1]}; {REMEDY}")
    return False


def tables_rows(delimiter: str, is_value: Callable[[str], bool]) -> Callable[[Sequence[Cells]], bool]:
    """Return an `are_rows`: with tabs always, which texts do not contain; else if all lines have a value in one place.

    Args:
        delimiter: what separates the cells.
        is_value: whether a cell has a value that texts do not have by chance, such as a number.
    """

    def are_rows(rows: Sequence[Cells]) -> bool:
        return delimiter == "\t" or any(all(map(is_value, column)) for column in zip(*rows, strict=True))

    return are_rows


def _problem(
    lines: Iterable[str], delimiter: str, width: int, are_rows: Callable[[Sequence[Cells]], bool]
) -> tuple[int, str] | None:
    """Return the first line that speaks against quoted cells, and what its quote does; "" if only its cells differ.

    Lines of a text may look like rows by chance: they do not count in a table that a csv writer has evidently written.
    """
    read, known = tee(lines)
    reader, first = csv.reader(read, delimiter=delimiter, strict=True), 1
    over_rows, needed = list[tuple[int, str]](), 0  # cells over whole rows; rows that need their quotes
    quoted_header = False
    try:
        for row in reader:
            joined = list(islice(known, reader.line_num - first + 1))
            quoted_header |= first == 1 and QUOTE in joined[0]
            fits = joined[0].count(delimiter) == width - 1
            if fits and len(joined) > 1:
                here = [split_plainly(line, delimiter) for line in joined if line.strip("\r\n")]
                fits = all(len(cells) == width for cells in here)
                if fits and len(here) > 1 and width > 1 and are_rows(here):
                    over_rows.append((first, f"opens a cell that goes on to line {reader.line_num}, over whole rows"))
            if row and len(row) != width and QUOTE in "".join(joined):
                return over_rows[0] if over_rows else (first, "")
            needed += len(row) == width and not fits
            first = reader.line_num + 1
    except csv.Error:
        last = f" up to line {reader.line_num}" if reader.line_num > first else ""
        return first, f"opens a cell that does not end as it should{last}"
    written = quoted_header or needed >= WRITTEN * len(over_rows)
    return over_rows[0] if over_rows and not written else None


def _unquoted(cell: str) -> str:
    whole = len(cell) > 1 and cell[0] == cell[-1] == QUOTE
    return cell[1:-1].replace(QUOTE * 2, QUOTE) if whole else cell
