"""Sentences of another domain from a file: .csv or .tsv with a column of sentences and one of labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError
from avuc.core.files import read_text
from avuc.core.quotes import plain_rows, quotes_are_text, tables_rows

DELIMITERS = {".csv": ",", ".tsv": "\t"}
MOST_BYTES = 1 << 30
TEXT_NAMES = ("text", "sentence")
LABEL_NAMES = ("label", "labels")


def is_text_file(name: str) -> bool:
    """Return whether a name in a recipe is a file of sentences.

    >>> is_text_file("data/reviews.tsv"), is_text_file("typos")
    (True, False)
    """
    return Path(name).suffix.lower() in DELIMITERS


def read_sentences(
    path: str, num_classes: int, class_names: Sequence[str] = (), *, labelled: bool = True
) -> tuple[list[str], list[int]]:
    """Return the sentences and labels of a file.

    Args:
        path: the file. Its first line names the columns: "text" or "sentence", and "label".
        num_classes: labels are 0 … num_classes − 1, or names.
        class_names: the names, in the order of the numbers.
        labelled: whether the file needs labels; otherwise all of them are −1.
    """
    try:
        lines = io.StringIO(read_text(path, MOST_BYTES), newline="")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        relative = isinstance(error, FileNotFoundError) and not Path(path).is_absolute()
        remedy = f"; paths of files start in the working directory, {Path.cwd()}" if relative else ""
        raise InputError(f"{path}: the sentences cannot be read ({reason}){remedy}") from error
    delimiter = DELIMITERS[Path(path).suffix.lower()]
    numbers = {name: number for number, name in enumerate(class_names)}
    if not any(name.isdigit() for name in class_names):  # names like "1" and "2" would be confused with numbers
        numbers |= {str(number): number for number in range(num_classes)}
    columns, rows = _table(path, lines, delimiter, numbers.keys())
    text, label = _only(columns, TEXT_NAMES, path), _only(columns, LABEL_NAMES, path) if labelled else None
    if text is None or (labelled and label is None):
        listed = ", ".join(repr(name) for name in columns) or "no rows"
        raise InputError(f"{path}: the first line must name the columns 'text' and 'label'; found {listed}")
    texts, labels = [], []
    for row_number, row in enumerate(rows, start=2):
        if any(row.get(None) or ()):  # the label would be a piece of the sentence
            raise InputError(
                f"{path}: row {row_number}: more cells than the {len(columns)} columns; put sentences that contain "
                f"{delimiter!r} into double quotes"
            )
        label_text = row[label] if labelled and label is not None else ""
        if row[text] is None or (labelled and label_text not in numbers):
            known = ", ".join(class_names) or f"0 … {num_classes - 1}"
            raise InputError(
                f"{path}: row {row_number}: expected a sentence and a label ({known}), found {label_text!r}"
            )
        texts.append(row[text])
        labels.append(numbers[label_text] if labelled else -1)
    return texts, labels


def _table(path: str, lines: io.StringIO, delimiter: str, labels: Collection[str]) -> tuple[list[str], list[Any]]:
    """Return the columns, and each row by column; no columns if there are no rows."""

    def again() -> io.StringIO:
        lines.seek(0)
        return lines

    try:
        header = next(csv.reader(again(), delimiter=delimiter, strict=True), [])
        if quotes_are_text(again, delimiter, len(header), tables_rows(delimiter, labels.__contains__)):
            rows = [dict(zip(header, cells, strict=True)) for _, cells in plain_rows(again(), delimiter)][1:]
        else:
            rows = list(csv.DictReader(again(), delimiter=delimiter, strict=True))
    except (csv.Error, ValueError) as error:
        raise InputError(f"{path}: not a table ({error})") from error
    return (header if rows else []), rows


def _only(columns: Sequence[str], names: Sequence[str], path: str) -> str | None:
    """Return the column with one of these names; None if there is none, `InputError` if there are several."""
    fitting = [name for name in columns if name in names]
    if len(fitting) > 1:
        listed = " and ".join(repr(name) for name in fitting)
        raise InputError(f"{path}: the columns {listed} have the same meaning; keep one of them, or rename the others")
    return fitting[0] if fitting else None
