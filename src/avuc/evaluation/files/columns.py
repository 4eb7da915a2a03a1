"""Which columns of a table are scores, and which holds the label; shared by .csv and .parquet.

A column is a score only where that is clear. Everything else is refused with the options that make it clear.
"""

from __future__ import annotations

import csv
import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from avuc.core.errors import InputError
from avuc.evaluation.files.names import Wanted, check_doubled, find_labels, listing, printable, refuse
from avuc.evaluation.files.refusals import unclear_labels

__all__ = [
    "ASIDE",
    "SCORE_PREFIXES",
    "SUSPECTS",
    "Columns",
    "Sample",
    "begins",
    "expand_columns",
    "index_labels",
    "is_row_number",
    "number_suffixes",
    "ordered_classes",
    "pick_columns",
    "suffix_of",
]

SCORE_PREFIXES = {"logits": "logits", "logit": "logits", "probs": "probs", "prob": "probs"} | {
    name: name for name in ("predictions", "scores", "score")
}
# row numbers
ASIDE = frozenset({"", "id", "index", "row", "__index_level_0__"})
# figures that are often saved beside the scores
SUSPECT_WORDS = """
confidence conf predicted prediction pred y_pred yhat y_hat predicted_class predicted_label pred_label argmax
entropy uncertainty margin max min mean std sum total fold split seed epoch step batch loss nll weight
sample_weight correct is_correct error time timestamp date label target true truth y y_true class row_id
sample_id image_id uuid idx score scores prob probs probability logit logits predictions
"""
SUSPECTS = frozenset(SUSPECT_WORDS.split())


@dataclass(frozen=True)
class Columns:
    scores: tuple[str, ...]  # in class order
    name: str  # the scores word, or ""
    class_names: tuple[str, ...]
    label: str | None
    notes: tuple[str, ...] = ()

    @property
    def scores_from(self) -> str:
        first, last = self.scores[0], self.scores[-1]
        return f"column {first!r}" if len(self.scores) == 1 else f"columns {first!r} … {last!r}"


class Sample(Protocol):
    """What can be known of a table's cells before all of them are read."""

    def is_number(self, name: str) -> bool:
        """Whether the column holds numbers."""

    def is_list(self, name: str) -> bool:
        """Whether every cell of the column holds a list."""

    def text(self, name: str) -> str:
        """One cell of a column that holds no numbers, for messages."""

    def rows(self, names: Sequence[str]) -> np.ndarray:
        """Some rows (n, len(names)) of these columns of numbers, in float64."""

    def labels(self, name: str) -> frozenset[str]:
        """The distinct labels of all rows, as text; whole numbers without a decimal point."""


def pick_columns(path: Path, names: Sequence[str], wanted: Wanted, sample: Sample | None = None) -> Columns:
    """The columns that `--columns` lists; else those that begin with the scores key or with a usual scores word
    (`logits_0`, `prob_cat`, or one list column `logits`); else those that clearly form the scores.

    Args:
        path: the file, for messages.
        names: the header.
        wanted: what the caller asks for.
        sample: the cells; without it only the names are looked at.

    >>> pick_columns(Path("a.csv"), ["id", "label", "prob_1", "prob_0"], Wanted()).scores
    ('prob_0', 'prob_1')
    """
    check_doubled(path, names)
    label, alike = find_labels(path, names, wanted.labels_key, "label column")
    given = wanted.columns
    if given is None and len(wanted.prefer) > 1 and set(wanted.prefer) <= set(names):
        given = wanted.prefer
    if given is not None:
        chosen = expand_columns(path, names, given)
        if label in chosen and wanted.labels_key is None:
            label = None
        return _explicit(path, chosen, label, sample)
    others = [name for name in names if name != label and name not in alike]
    from avuc.evaluation.files.prefixed import pick_prefixed
    from avuc.evaluation.files.unnamed import pick_unnamed

    found = pick_prefixed(path, others, wanted, sample, label)
    if found is None:
        found = pick_unnamed(path, names, others, label, wanted, sample)
    if alike and label is not None and wanted.needs_labels:
        raise unclear_labels(path, [label, *alike])
    return found


def expand_columns(path: Path, names: Sequence[str], given: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of `--columns`: names with commas between them, a range `first:last`, or a pattern `prob_*`."""
    if isinstance(given, str):
        try:
            items = next(csv.reader([given], strict=True, skipinitialspace=True), [])
        except csv.Error as error:
            raise InputError(f"--columns {printable(given)}: {error}; separate the names by commas") from None
    else:
        items = list(given)
    places = {name: place for place, name in enumerate(names)}
    chosen: list[str] = []
    for item in items:
        first, _, last = item.partition(":")
        if item in places:
            chosen.append(item)
        elif first in places and last in places:
            if places[first] > places[last]:
                raise refuse(path, f"column {first!r} comes after {last!r}", f"pass --columns {last}:{first}")
            chosen += names[places[first] : places[last] + 1]
        elif "*" in item:
            fits = re.compile(fnmatch.translate(item))
            some = [name for name in names if fits.match(name)]
            if not some:
                raise refuse(path, f"no column fits {item!r} (it has {listing(names)})", "correct --columns")
            suffixes = number_suffixes(some)
            chosen += some if suffixes is None else [some[i] for i in np.argsort(suffixes, kind="stable")]
        else:
            raise refuse(path, f"no column {item!r} (it has {listing(names)})", "correct --columns")
    if len(set(chosen)) < len(chosen):
        raise refuse(path, "--columns names a column more than once", "name each class once")
    if len(chosen) < 2:
        remedy = "give two columns or more, one for each class, or a list column with --scores-key"
        raise refuse(path, f"--columns names {len(chosen) or 'no'} column", remedy)
    return tuple(chosen)


def ordered_classes(path: Path, names: list[str], suffixes: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Numbered columns are put in the order of their numbers (logits_10 comes after logits_9)."""
    if not all(re.fullmatch(r"\d{1,9}", suffix, re.ASCII) for suffix in suffixes):
        return tuple(names), tuple(suffixes)
    numbers = [int(suffix) for suffix in suffixes]
    order = sorted(range(len(names)), key=numbers.__getitem__)
    first = numbers[order[0]]
    if [numbers[i] for i in order] != list(range(first, first + len(names))) or first > 1:
        raise refuse(
            path,
            f"the numbers of columns {listing(names[i] for i in order)} have gaps or repeat",
            "number the classes 0, 1, 2, … without gaps, or list the columns with --columns",
        )
    return tuple(names[i] for i in order), tuple(suffixes[i] for i in order)


def number_suffixes(names: Iterable[str]) -> list[int] | None:
    """The number at the end of each name, where every name has one and they differ in nothing else."""
    found = [re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL | re.ASCII) for name in names]
    if not all(found) or len({match[1] for match in found if match}) != 1:
        return None
    return [int(match[2]) for match in found if match]


def index_labels(path: Path, labels: Sequence[str], classes: Sequence[str], where: str) -> tuple[np.ndarray, bool]:
    """Text labels as numbers, and whether they are names that were looked up among the class columns."""
    number = {name: index for index, name in enumerate(classes)}
    distinct = set(labels)
    if not (distinct and distinct <= number.keys() and not all(name.isdecimal() for name in distinct)):
        try:
            return np.array([float(label) for label in labels]), False
        except ValueError:
            pass
    unknown = sorted(distinct - number.keys())
    if unknown:
        raise refuse(
            path,
            f"{where}: {listing(unknown, 3)} is neither a number nor the name of a class ({listing(classes, 5)})",
            "label the rows 0 … C−1, or by the names of the score columns, or choose these with --columns"
            if classes
            else "label the rows 0 … C−1",
        )
    return np.array([number[label] for label in labels], dtype=np.int64), True


def _explicit(path: Path, chosen: tuple[str, ...], label: str | None, sample: Sample | None) -> Columns:
    """Listed columns: their names without the common beginning, such as `prob_`, are the names of the classes."""
    if label in chosen:
        raise refuse(path, f"column {label!r} is both a score and the label", "correct --columns or --label")
    for prefix in SCORE_PREFIXES:
        if all(begins(name, prefix) for name in chosen):
            return Columns(chosen, SCORE_PREFIXES[prefix], tuple(suffix_of(name, prefix) for name in chosen), label)
    numbers = number_suffixes(chosen)
    if numbers is not None:
        return Columns(chosen, "", tuple(str(number) for number in numbers), label)
    start = _common(chosen)
    if start and sample is not None and label is not None:
        values = sample.labels(label)
        if not values <= set(chosen) and values <= {name[start:] for name in chosen}:
            return Columns(chosen, "", tuple(name[start:] for name in chosen), label)
    return Columns(chosen, "", chosen, label)


def _common(names: Sequence[str]) -> int:
    """How many letters all names begin with."""
    first, last = min(names), max(names)
    return next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def is_row_number(name: str) -> bool:
    """Whether a column of this name counts the rows; pandas names such columns `Unnamed: 0`, `Unnamed: 0.1`."""
    return name.lower() in ASIDE or re.fullmatch(r"unnamed: \d+(\.\d+)*", name, re.IGNORECASE) is not None


def begins(name: str, prefix: str) -> bool:
    """Whether the name is this word, alone or before something that is no letter."""
    return name[: len(prefix)].lower() == prefix and not name[len(prefix) : len(prefix) + 1].isalpha()


def suffix_of(name: str, prefix: str) -> str:
    """What follows the prefix, without separators."""
    return name[len(prefix) :].strip(" _.-:[]()")
