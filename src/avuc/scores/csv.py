"""Reading .csv: one line per sample, one numeric column per class, one label column, a header line."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from avuc.scores.columns import LABEL_COLUMNS, index_labels, pick_columns
from avuc.scores.names import Found, Wanted, check_size, choose, listing, refuse

__all__ = ["labels_csv", "read_csv", "write_csv"]

MAX_HEADER = 16 * 2**20
T = TypeVar("T")


def read_csv(path: Path, wanted: Wanted) -> Found:
    names, delimiter = _open(path, wanted)
    columns = pick_columns(path, names, wanted)
    texts = _guard(
        path,
        lambda: _column(path, len(names), None if columns.label is None else names.index(columns.label), delimiter),
    )
    places = [names.index(name) for name in columns.scores]
    scores = _guard(path, lambda: _numbers(path, places, delimiter)) if texts else np.empty((0, len(places)))
    found = Found(
        scores, columns.scores_from, columns.name, columns.scores, None, None, columns.class_names, [*columns.notes]
    )
    if columns.label is not None:
        found.labels_from = f"column {columns.label!r}"
        found.labels, found.labels_named = index_labels(path, texts, columns.class_names, found.labels_from)
    return found


def labels_csv(path: Path, wanted: Wanted) -> tuple[Any, str]:
    names, delimiter = _open(path, wanted)
    key = choose(path, names, wanted.labels_key, LABEL_COLUMNS, "label column")
    if key is None:
        raise refuse(path, f"no label column (it has {listing(names)})", "name it with --labels-key")
    where = f"column {key!r} of {path.name!r}"
    texts = _guard(path, lambda: _column(path, len(names), names.index(key), delimiter))
    return index_labels(path, texts, (), where)[0], where


def write_csv(source: Path, destination: Path, found: Found, scores: Tensor) -> None:
    """The table again, line by line, with new numbers in the score columns."""
    names, delimiter = _open(source, Wanted(max_gb=2**30))
    places = [names.index(name) for name in found.keys]
    with (
        source.open(encoding="utf-8-sig", newline="") as lines,
        destination.open("w", encoding="utf-8", newline="") as out,
    ):
        reader, writer = csv.reader(lines, delimiter=delimiter), csv.writer(out, delimiter=delimiter)
        writer.writerow(next(reader))
        rows = (row for row in reader if row)  # a blank line is not a sample
        for row, values in zip(rows, scores.tolist(), strict=True):
            for place, value in zip(places, values, strict=True):
                row[place] = f"{value:.9g}"
            writer.writerow(row)


def _open(path: Path, wanted: Wanted) -> tuple[list[str], str]:
    """The header's names and the delimiter."""
    # a number takes at least two characters here and four bytes in memory
    check_size(path, "the table", 2 * path.stat().st_size, wanted.limit)
    line = _guard(path, lambda: _first_line(path))
    if not line.strip():
        raise refuse(path, "the first line is empty", "begin with a header line such as label,logits_0,logits_1")
    delimiter = next((mark for mark in (",", ";", "\t") if mark in line), ",")
    names = [name.strip() for name in _guard(path, lambda: next(csv.reader(io.StringIO(line), delimiter=delimiter)))]
    if len(names) > 1 and all(_is_number(name) for name in names) and len(set(names)) < len(names):
        raise refuse(path, "there is no header line", "name the columns, for example label,logits_0,logits_1")
    return names, delimiter


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        line = lines.readline(MAX_HEADER)
    if "\0" in line or len(line) == MAX_HEADER:
        raise ValueError("its first line is not text with commas")
    return line


def _column(path: Path, width: int, place: int | None, delimiter: str) -> list[str]:
    """One column as text, and proof that every line has the header's number of cells: a comma too many in a text cell
    would otherwise shift the scores without a sound."""
    texts = []
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        next(reader)
        for row in reader:
            if not row:
                continue
            if len(row) != width:
                raise ValueError(f"line {reader.line_num} has {len(row)} cells where the header has {width}")
            texts.append("" if place is None else row[place].strip())
    return texts


def _numbers(path: Path, places: list[int], delimiter: str) -> np.ndarray:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        return np.loadtxt(
            lines,
            dtype=np.float32,
            delimiter=delimiter,
            quotechar='"',
            comments=None,
            skiprows=1,
            ndmin=2,
            usecols=places,
        )


def _guard(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]
        raise refuse(
            path, f"not a readable .csv table ({reason[:200]})", "save one line per sample with one number per class"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
