"""Which entry of a file holds the scores and which the labels: one set of names for every format."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError
from avuc.evaluation.files.messages import file_error, listing

SCORE_NAMES = ("logits", "probs", "predictions", "scores")
LABEL_NAMES = ("labels", "y", "targets", "ground_truth")
# also taken for labels, in any case, and with spaces or hyphens for underscores
MORE_LABEL_NAMES = ("label", "target", "y_true", "class", "true_label", "true_class", "truth", "gt", "true")
MAX_GB = 8.0
# float32 holds numbers up to this size to 4 decimals; rows of logits beyond are shifted before they become float32
EXACT_RANGE = 512.0


@dataclass(frozen=True)
class ReadOptions:
    """What the caller asks of a file: the keys where they are not the usual ones, and how much memory it may take."""

    scores_key: str | None = None
    labels_key: str | None = None
    max_gb: float | None = None
    columns: str | Sequence[str] | None = None  # of a table: the scores, in the order of the classes
    prefer: Sequence[str] = ()  # the same, where all of them are there
    needs_labels: bool = True  # False where they come from another file or are not asked for
    in_blocks: bool = False  # arrays stay in the file, as `avuc.evaluation.files.sources.Source`

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
class RawScores:
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
    limit: int = int(MAX_GB * 1e9)  # bytes that a rewrite may unpack
    draws: int = 1  # how many draws the scores are the mean of
    expected_entropy: Any = None  # (N) the mean of these draws' entropies


def choose_name(path: Path, names: Sequence[str], key: str | None, usual: Sequence[str], what: str) -> str | None:
    """The name asked for, or the first of the usual names that is there.

    >>> choose(Path("a.npz"), ["targets", "probs"], None, SCORE_NAMES, "scores")
    'probs'
    """
    check_unique_names(path, names)
    if key is not None:
        if key not in names:
            raise file_error(path, f"no {what} under {key!r} (it holds {listing(names)})", "name one of these")
        return key
    return next((name for name in usual if name in names), None)


def check_unique_names(path: Path, names: Sequence[str]) -> None:
    """Refuse a file with two entries of one name."""
    if len(set(names)) < len(names):
        duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
        raise file_error(
            path, f"more than one entry is named {listing(duplicates)}", "save each array under its own name"
        )


def find_label_name(
    path: Path, names: Sequence[str], key: str | None, what: str = "labels"
) -> tuple[str | None, list[str]]:
    """The entry that holds the labels, and the other entries that may hold them instead.

    >>> find_labels(Path("a.csv"), ["cat", "dog", "Y_true"], None)
    ('Y_true', [])
    """
    if key is not None:
        return choose_name(path, names, key, (), what), []
    rank = {name: place for place, name in enumerate((*LABEL_NAMES, *MORE_LABEL_NAMES))}
    known = [(rank[plain], place) for place, name in enumerate(names) if (plain := _plain(name)) in rank]
    found = [names[place] for _, place in sorted(known)]
    return (found[0], found[1:]) if found else (None, [])


def _plain(name: str) -> str:
    return re.sub(r"[\s\-]+", "_", name.strip().lower()) if len(name) < 40 else ""


def other_scores_note(key: str, names: Iterable[str], options: ReadOptions) -> list[str]:
    """A note when a file holds other arrays that could have been meant."""
    others = [name for name in names if name in SCORE_NAMES and name != key]
    return [f"also there: {listing(others)}; choose with --scores-key"] if others and not options.scores_key else []


def check_chosen(path: Path, key: str, shape: Sequence[int], names: Iterable[str], options: ReadOptions) -> None:
    """Refuse one number per row, such as the predicted class, where another array may hold the scores."""
    others = [name for name in names if name in SCORE_NAMES and name != key]
    if len(shape) == 1 and others and options.scores_key is None:
        problem = f"key {key!r} has shape {tuple(shape)}, one number per row, and {listing(others)} may hold the scores"
        raise file_error(path, problem, f"choose with --scores-key {others[0]}")


def other_labels_note(others: Sequence[str]) -> list[str]:
    """A note when a file holds other arrays that could be the labels."""
    return [f"also there: {listing(others)}; choose the labels with --label"] if others else []


def memory_bytes(elements: int, itemsize: int) -> int:
    """Bytes for numbers of this size: as they are in the file, and once more in float32 where that is another type."""
    return elements * (itemsize if itemsize == 4 else itemsize + 4)


def check_size(path: Path, what: str, size: int, limit: int) -> None:
    """Refuse before anything is allocated."""
    if size > limit:
        raise file_error(
            path,
            f"{what} claims {size / 1e9:.3g} GB, above the limit of {limit / 1e9:.3g} GB",
            "if the file is to be trusted, raise the limit with --max-gb or AVUC_MAX_GB",
        )


def label_file_name(stem: str, exists: Callable[[str], bool]) -> tuple[str | None, str | None]:
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
