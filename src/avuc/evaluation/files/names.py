"""Names of scores and labels in files of every format, the options of a read, and what a reader returns."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError
from avuc.evaluation.files.layout import Layout
from avuc.evaluation.files.messages import file_error, listing

Named = bool | tuple[str, ...]
SCORE_NAMES = ("logits", "probs", "predictions", "scores")
LABEL_NAMES = ("labels", "y", "targets", "ground_truth")
# further names of labels, in upper or lower case, with spaces or hyphens instead of underscores
MORE_LABEL_NAMES = (
    *("label", "target", "y_true", "class", "true_label", "true_class", "truth", "gt", "true", "y_test", "actual"),
    "label_ids",  # the name in Trainer.predict of Transformers
)
MAX_GB = 8.0
MARK = "mark"  # rows of padding are kept and marked
# float32 stores numbers up to this size to 4 decimals; rows of larger logits are shifted before conversion
EXACT_RANGE = 512.0


@dataclass(frozen=True)
class ReadOptions:
    """How to read one file."""

    scores_key: str | None = None  # name of the scores, or prefix of their columns; None: one of the usual names
    labels_key: str | None = None  # name of the labels; None: one of the usual names
    max_gb: float | None = None  # memory limit; None: AVUC_MAX_GB or 8
    columns: str | Sequence[str] | None = None  # score columns of a table, in class order
    prefer: Sequence[str] = ()  # used like `columns` if the table has all of them
    needs_labels: bool = True  # False: labels come from another file or are not used
    # whether labels that are not needed are read, because they mark padding; those of tables only for `MARK`
    padding: bool | str = False
    classes: Sequence[str] | None = None  # names of the classes in the order of the scores
    in_blocks: bool = False  # return `avuc.evaluation.files.sources.Source`s instead of arrays

    @property
    def only_mark(self) -> bool:
        """Whether labels are read only to mark padding: what cannot be read then marks none."""
        return self.padding == MARK and not self.needs_labels

    def label_errors(self) -> AbstractContextManager[None]:
        """Suppress errors of labels that are read only to mark padding."""
        return suppress(InputError) if self.only_mark else nullcontext()

    @property
    def limit(self) -> int:
        """Return the memory limit in bytes."""
        gigabytes = self.max_gb
        if gigabytes is None:
            text = os.environ.get("AVUC_MAX_GB", "")
            try:
                gigabytes = float(text) if text else MAX_GB
            except ValueError:
                gigabytes = math.nan
            if not gigabytes > 0:
                raise InputError(f"AVUC_MAX_GB={text!r} is not a positive number; set it to gigabytes, such as 16")
        return int(min(gigabytes, 2**30) * 1e9)


@dataclass(frozen=True)
class ImageRows:
    """Which images or sentences the rows of a file are positions of."""

    shape: tuple[int, ...]  # (N, *spatial)
    positions: Any  # flat index of each row into `shape`, ascending


@dataclass
class RawScores:
    """Scores and labels as a reader found them in a file, before they are checked."""

    scores: Any  # NumPy array or tensor
    scores_from: str  # where they were, for messages
    name: str  # name of the scores: `logits` and `probs` decide the kind
    keys: tuple[str, ...]  # arrays or columns that contain the scores
    labels: Any = None
    labels_from: str | None = None
    class_names: tuple[str, ...] | None = None
    notes: list[str] = field(default_factory=list)
    # True: the labels were class names, and are now class numbers; a tuple: indices into these names, which are sorted
    labels_named: Named = False
    limit: int = int(MAX_GB * 1e9)  # bytes that `write_scores` may unpack
    draws: int = 1  # number of draws that the scores are the mean of
    expected_entropy: Any = None  # (N) mean entropy of these draws
    images: ImageRows | None = None  # of rows that `Predictions.save` wrote, if they are pixels or tokens
    layout: Layout | None = None  # layout of the scores in the file
    class_array: tuple[str, ...] | None = None  # an array `classes`: the names, if there is one for each class
    positive: str | None = None  # class that one number per row stands for, if it is known without labels

    def keep(self, rows: Any) -> None:
        """Leave out all but some rows of what the file says about each row; `rows` is a mask or their numbers."""
        if self.expected_entropy is not None:
            self.expected_entropy = self.expected_entropy[rows]
        if self.images is not None:
            self.images = replace(self.images, positions=self.images.positions[rows])


def choose_name(path: Path, names: Sequence[str], key: str | None, usual: Sequence[str], what: str) -> str | None:
    """Return the requested name, or the first of the usual names that the file has, or None.

    >>> choose_name(Path("a.npz"), ["targets", "probs"], None, SCORE_NAMES, "scores")
    'probs'
    """
    check_unique_names(path, names)
    if key is not None:
        if key not in names:
            raise file_error(path, f"contains no {what} named {key!r}", f"choose one of {listing(names)}")
        return key
    return next((name for name in usual if name in names), None)


def check_unique_names(path: Path, names: Sequence[str]) -> None:
    """Raise if a name occurs twice."""
    if len(set(names)) < len(names):
        duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
        raise file_error(
            path,
            f"several entries have the same name: {listing(duplicates)}",
            "give every array or column its own name",
        )


def check_class_names(path: Path, names: Sequence[str], classes: int) -> None:
    """Raise unless --classes has a different name for every class."""
    if len(names) != classes or len(set(names)) < len(names):
        problem = f"--classes names {len(set(names))} different classes, but there are {classes} scores per row"
        raise file_error(path, problem, "name every class once, in the order of the scores")


def check_class_order(path: Path, classes: Sequence[str], columns: Sequence[str] | None) -> None:
    """Raise if --classes has the names of the columns in another order: it would swap the classes."""
    if columns is not None and tuple(classes) != tuple(columns) and sorted(classes) == sorted(columns):
        problem = f"--classes {','.join(classes)} has another order than the columns, which are {listing(columns)}"
        raise file_error(path, problem, "leave it out, because the columns name the classes")


def find_label_name(
    path: Path, names: Sequence[str], key: str | None, what: str = "labels"
) -> tuple[str | None, list[str]]:
    """Return the name of the labels (None: there are none), and other names that labels may have.

    >>> find_label_name(Path("a.csv"), ["cat", "dog", "Y_true"], None)
    ('Y_true', [])
    """
    if key is not None:
        return choose_name(path, names, key, (), what), []
    rank = {name: index for index, name in enumerate((*LABEL_NAMES, *MORE_LABEL_NAMES))}
    known = [(rank[normal], index) for index, name in enumerate(names) if (normal := _normalised(name)) in rank]
    candidates = [names[index] for _, index in sorted(known)]
    return (candidates[0], candidates[1:]) if candidates else (None, [])


def _normalised(name: str) -> str:
    return re.sub(r"[\s\-]+", "_", name.strip().lower()) if len(name) < 40 else ""


def other_scores_note(key: str, names: Iterable[str], options: ReadOptions) -> list[str]:
    """Return a note if the file has other arrays with usual names of scores."""
    others = [name for name in names if name in SCORE_NAMES and name != key]
    if not others or options.scores_key:
        return []
    return [f"the file also contains {listing(others)}; --scores-key chooses the scores"]


def check_chosen(path: Path, key: str, shape: Sequence[int], names: Iterable[str], options: ReadOptions) -> None:
    """Raise if the chosen array has one number per row, such as the predicted class, and another may be the scores."""
    others = [name for name in names if name in SCORE_NAMES and name != key]
    if len(shape) == 1 and others and options.scores_key is None:
        problem = f"key {key!r} has shape {tuple(shape)}, one number per row; the scores may be {listing(others)}"
        raise file_error(path, problem, f"pass --scores-key {others[0]}")


def other_labels_note(others: Sequence[str]) -> list[str]:
    """Return a note if the file has other arrays with usual names of labels."""
    return [f"the file also contains {listing(others)}; --label chooses the labels"] if others else []


def memory_bytes(elements: int, itemsize: int) -> int:
    """Return the bytes for an array as it is in the file and, unless it is 4 bytes wide, its float32 copy."""
    return elements * (itemsize if itemsize == 4 else itemsize + 4)


def check_size(path: Path, what: str, size: int, limit: int, remedy: str = "") -> None:
    """Raise before memory is allocated if `size` bytes are above the limit; `remedy` is added to the usual one."""
    if size > limit:
        raise file_error(
            path,
            f"{what} needs {size / 1e9:.3g} GB, above the limit of {limit / 1e9:.3g} GB",
            f"if you trust the file, raise the limit with --max-gb or AVUC_MAX_GB{remedy}",
        )


def label_file_name(stem: str, exists: Callable[[str], bool]) -> tuple[str | None, str | None]:
    """Return the score name in a file name, and the first existing name that has a label name in its place.

    >>> label_file_name("test_logits", {"test_labels"}.__contains__)
    ('logits', 'test_labels')
    """
    for word in SCORE_NAMES:
        match = re.search(rf"(?<![a-zA-Z]){word}(?![a-zA-Z])", stem)
        if match:
            names = [stem[: match.start()] + label + stem[match.end() :] for label in LABEL_NAMES]
            return word, next((name for name in names if exists(name)), None)
    return None, None
