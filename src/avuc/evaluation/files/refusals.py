"""Refusals of tables whose columns are not clear, with the options that make them clear."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from avuc.core.errors import InputError
from avuc.evaluation.files.names import BINARY, SCORE_NAMES, Wanted, listing, number_hint, printable, refuse

if TYPE_CHECKING:
    from avuc.evaluation.files.columns import Sample

__all__ = ["no_scores", "one_score", "unclear", "unclear_labels"]

# longer lists of columns are shown as a range
MOST_SHOWN = 12


def unclear(
    path: Path, problem: str, guess: Sequence[str] | None, label: str | None, names: Sequence[str], wanted: Wanted
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
    chosen = f" --label {'NAME' if label is None else shlex.quote(label)}" if wanted.needs_labels else ""
    quoted = shlex.quote(shown) if columns else shown
    return refuse(path, problem, f"say which, for example: --columns {quoted}{chosen}")


def unclear_labels(path: Path, names: Sequence[str]) -> InputError:
    """Refuse a table with more than one column that may hold the labels."""
    return refuse(
        path,
        f"more than one column may hold the labels ({listing(names)})",
        f"say which, for example: --label {shlex.quote(names[0])}",
    )


def no_scores(path: Path, names: Sequence[str], texts: Sequence[str], sample: Sample | None) -> InputError:
    """Refuse a table without columns of numbers beside the label."""
    seen, remedy = "", f"name them {SCORE_NAMES[0]}_0, {SCORE_NAMES[0]}_1, … or list them with --columns"
    if texts and sample is not None:
        text = sample.text(texts[0])
        seen = f"; column {texts[0]!r} holds text, {printable(text)}"
        remedy = number_hint(text) or remedy
        lists = [name for name in texts if sample.is_list(name)]
        if lists:
            seen = f"; column {lists[0]!r} has {sample.text(lists[0])}"
            remedy = f"name the list column of the scores with --scores-key, for example {shlex.quote(lists[0])}"
    return refuse(path, f"no score columns (it has {listing(names)}{seen})", remedy)


def one_score(path: Path, name: str) -> InputError:
    """Refuse a table with one column of numbers beside the label."""
    return refuse(path, f"column {name!r} is the only one that may hold scores", BINARY)


def _quoted(name: str) -> str:
    """A name as one cell of --columns."""
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n') else name
