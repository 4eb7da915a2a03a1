"""Errors about saved predictions: one line with the file, the problem and the remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from avuc.core.errors import InputError

BINARY_REMEDY = "for a binary model save both columns: [1 − p, p] for probabilities p, [0, z] for log-odds or margins z"
# longer lists of columns are shown as a range
MOST_SHOWN = 12


def file_error(path: Path, problem: str, remedy: str) -> InputError:
    """The one shape of every complaint: file, problem, remedy."""
    return InputError(f"{path}: {problem}; {remedy}")


def listing(names: Iterable[str], most: int = 8) -> str:
    """`'a', 'b', … (12 in all)`."""
    known = list(names)
    shown = ", ".join(quoted(name) for name in known[:most])
    return (shown or "nothing") + (f", … ({len(known)} in all)" if len(known) > most else "")


def quoted(text: str) -> str:
    """A short text from a file, quoted, in one line, with escapes for what a terminal would obey."""
    return repr(text if len(text) < 60 else text[:57] + "...")


def number_hint(text: str) -> str | None:
    """What to do about a text that was meant as a number.

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
    """A refusal that shows the options to pass: with the columns `guess`, or where these are not known, with names to
    fill in. An example will be copied, so it lists nothing that may not be a class."""
    columns = list(guess or ())
    places = {name: place for place, name in enumerate(names)}
    start = places[columns[0]] if columns else 0
    run = list(names[start : start + len(columns)]) == columns
    if not columns:
        shown = "NAME,NAME,…"
    elif len(columns) > MOST_SHOWN and run:
        shown = f"{columns[0]}:{columns[-1]}"
    elif len(columns) > 4 * MOST_SHOWN:
        shown = f"{_quoted(columns[0])},{_quoted(columns[1])},…"
    else:
        shown = ",".join(_quoted(name) for name in columns)
    chosen = f" --label {'NAME' if label is None else shlex.quote(label)}" if needs_labels else ""
    quoted = shlex.quote(shown) if columns else shown
    return file_error(path, problem, f"say which, for example: --columns {quoted}{chosen}")


def ambiguous_labels(path: Path, names: Sequence[str]) -> InputError:
    """Refuse a table with more than one column that may hold the labels."""
    return file_error(
        path,
        f"more than one column may hold the labels ({listing(names)})",
        f"say which, for example: --label {shlex.quote(names[0])}",
    )


def _quoted(name: str) -> str:
    """A name as one cell of --columns."""
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n') else name
