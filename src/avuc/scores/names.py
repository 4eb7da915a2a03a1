"""Which array of a file holds the scores and which the labels; one set of names for every format."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from avuc.errors import InputError

__all__ = [
    "LABEL_NAMES",
    "SCORE_NAMES",
    "Found",
    "Wanted",
    "also_there",
    "check_size",
    "choose",
    "listing",
    "refuse",
    "swap_word",
]

SCORE_NAMES = ("logits", "probs", "predictions", "scores")
LABEL_NAMES = ("labels", "y", "targets", "ground_truth")
MAX_GB = 8.0


@dataclass(frozen=True)
class Wanted:
    """What the caller asks of a file: the keys where they are not the usual ones, and how much memory it may take."""

    scores_key: str | None = None
    labels_key: str | None = None
    max_gb: float | None = None
    in_blocks: bool = False  # arrays stay in the file, as `avuc.scores.sources.Source`

    @property
    def limit(self) -> int:
        """Bytes that one file may unpack to: `max_gb`, else the variable AVUC_MAX_GB, else 8 GB."""
        given = self.max_gb
        if given is None:
            text = os.environ.get("AVUC_MAX_GB", "")
            try:
                given = float(text) if text else MAX_GB
            except ValueError:
                given = math.nan
            if not given > 0:
                raise InputError(f"AVUC_MAX_GB={text!r} is not a positive number; set it to gigabytes, for example 16")
        return int(min(given, 2**30) * 1e9)


@dataclass
class Found:
    """What a reader took from a file, before anything was checked."""

    scores: Any  # NumPy array or tensor
    scores_from: str
    name: str  # what the scores are called there: decides logits or probabilities
    keys: tuple[str, ...]  # the entries that hold them, to write them back
    labels: Any = None
    labels_from: str | None = None
    class_names: tuple[str, ...] | None = None
    notes: list[str] = field(default_factory=list)
    labels_named: bool = False  # the labels were names of classes, and were looked up


def refuse(path: Path, problem: str, remedy: str) -> InputError:
    """The one shape of every complaint: file, problem, remedy."""
    return InputError(f"{path}: {problem}; {remedy}")


def listing(names: Iterable[str], most: int = 8) -> str:
    """`'a', 'b', … (12 in all)`."""
    known = list(names)
    shown = ", ".join(repr(name if len(name) < 60 else name[:57] + "...") for name in known[:most])
    return (shown or "nothing") + (f", … ({len(known)} in all)" if len(known) > most else "")


def choose(path: Path, names: Sequence[str], key: str | None, usual: Sequence[str], what: str) -> str | None:
    """The name asked for, or the first of the usual names that is there.

    >>> choose(Path("a.npz"), ["targets", "probs"], None, SCORE_NAMES, "scores")
    'probs'
    """
    doubled = sorted({name for name in names if list(names).count(name) > 1}) if len(set(names)) < len(names) else []
    if doubled:
        raise refuse(path, f"more than one entry is named {listing(doubled)}", "save each array under its own name")
    if key is not None:
        if key not in names:
            raise refuse(path, f"no {what} under {key!r} (it holds {listing(names)})", "name one of these")
        return key
    return next((name for name in usual if name in names), None)


def also_there(key: str, names: Iterable[str], wanted: Wanted) -> list[str]:
    """A note when a file holds other arrays that could have been meant."""
    others = [name for name in names if name in SCORE_NAMES and name != key]
    return [f"also there: {listing(others)}; choose with --scores-key"] if others and not wanted.scores_key else []


def check_size(path: Path, what: str, size: int, limit: int) -> None:
    """Refuse before anything is allocated."""
    if size > limit:
        raise refuse(
            path,
            f"{what} claims {size / 1e9:.3g} GB, above the limit of {limit / 1e9:.3g} GB",
            "if the file is to be trusted, raise the limit with --max-gb or AVUC_MAX_GB",
        )


def swap_word(stem: str, exists: Callable[[str], bool]) -> tuple[str | None, str | None]:
    """The scores word in a file's name, and the first name with a labels word in its place that exists.

    >>> swap_word("test_logits", {"test_labels"}.__contains__)
    ('logits', 'test_labels')
    """
    for word in SCORE_NAMES:
        found = re.search(rf"(?<![a-zA-Z]){word}(?![a-zA-Z])", stem)
        if found:
            names = [stem[: found.start()] + label + stem[found.end() :] for label in LABEL_NAMES]
            return word, next((name for name in names if exists(name)), None)
    return None, None
