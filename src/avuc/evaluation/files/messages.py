"""Errors about saved predictions: one line with the file, the problem and the remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from avuc.core.errors import InputError

BINARY_REMEDY = "for a binary model save both columns: [1 − p, p] for probabilities p, [0, z] for log-odds or margins z"
TOKENS_REMEDY = "save one number per class in every row; tokens of sentences: one row per token, and --group"
# longer lists of consecutive columns are shown as a range
MOST_LISTED = 12


def file_error(path: Path, problem: str, remedy: str) -> InputError:
    """Return the error for a file: one line with the file, the problem and the remedy."""
    return InputError(f"{path}: {problem}; {remedy}")


def listing(names: Iterable[str], most: int = 8) -> str:
    """Return the quoted names, at most `most` of them: `'a', 'b', … (12 in all)`."""
    names = list(names)
    text = ", ".join(quoted(name) for name in names[:most])
    return (text or "nothing") + (f", … ({len(names)} in all)" if len(names) > most else "")


def quoted(text: str) -> str:
    """Return a text from a file, shortened, in quotes and with escapes instead of control characters."""
    return repr(text if len(text) < 60 else text[:57] + "...")


def number_hint(text: str) -> str | None:
    """Return what to do about a text that was meant to be a number; None if it does not look like one.

    >>> number_hint("0,25")
    'write numbers with a decimal point, not a decimal comma, and without thousands separators'
    """
    text = text.strip()
    if re.fullmatch(r"[+-]?[\d.,]*\d,\d[\d.,]*([eE][+-]?\d+)?", text, re.ASCII):
        return "write numbers with a decimal point, not a decimal comma, and without thousands separators"
    if re.fullmatch(r"[+-]?[\d.,]+ ?%", text, re.ASCII):
        return "leave out the % signs and pass --kind percent"
    return None


def ambiguous_columns(
    path: Path, problem: str, guess: Sequence[str] | None, label: str | None, names: Sequence[str], needs_labels: bool
) -> InputError:
    """Return an error that shows the options to pass.

    Users copy the example, so it lists only columns that are surely classes, else placeholders.

    Args:
        path: the file.
        problem: what is ambiguous.
        guess: the score columns, if their names leave no doubt; None: the example shows placeholders.
        label: the label column, if it is known.
        names: all columns.
        needs_labels: whether the example shows --label.
    """
    columns = list(guess or ())
    start = list(names).index(columns[0]) if columns else 0
    consecutive = list(names[start : start + len(columns)]) == columns
    if not columns:
        example = "NAME,NAME,…"
    elif len(columns) > MOST_LISTED and consecutive:
        example = f"{columns[0]}:{columns[-1]}"
    else:
        example = list_option(columns)
    label_option = f" --label {'NAME' if label is None else shlex.quote(label)}" if needs_labels else ""
    columns_option = shlex.quote(example) if columns else example
    what = "the score columns" if columns else "the score columns, or the one with the score of class 1"
    return file_error(path, problem, f"name {what}, for example: --columns {columns_option}{label_option}")


def two_models(path: Path, chosen: Sequence[str], starts: Sequence[str]) -> InputError:
    """Return the error for a table with the scores of several models, whose columns have these first parts."""
    return file_error(
        path,
        f"columns {listing(chosen, 3)} may be the scores of {len(starts)} models: their names start with "
        f"{listing(starts, 4)}",
        f"choose one with --scores-key {shlex.quote(starts[0])}",
    )


def ambiguous_labels(path: Path, names: Sequence[str]) -> InputError:
    """Return the error for a table in which several columns may contain the labels."""
    return file_error(
        path,
        f"several columns may contain the labels ({listing(names)})",
        f"name the right one, for example: --label {shlex.quote(names[0])}",
    )


def list_option(names: Sequence[str]) -> str:
    """Return names as --columns takes them, with commas between them; the first two of a long list.

    >>> list_option(["cat", "a, b"])
    'cat,"a, b"'
    """
    few = names if len(names) <= 4 * MOST_LISTED else names[:2]
    return ",".join([*map(_csv_cell, few), *["…"] * (len(few) < len(names))])


def _csv_cell(name: str) -> str:
    """Return a name as --columns needs it: in quotes if it contains a comma, a quote or a line break."""
    return '"' + name.replace('"', '""') + '"' if any(character in name for character in ',"\n') else name
