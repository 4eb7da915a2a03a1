"""Columns of a table: conclusions from their names and their first rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from avuc.core.errors import InputError
from avuc.core.probabilities import MOST_ROUNDING, rounding_error
from avuc.evaluation.files.columns.numbers import is_finite_number, is_number
from avuc.evaluation.files.messages import file_error, listing, number_hint, quoted
from avuc.evaluation.files.names import Named

SCORE_PREFIXES = {"logits": "logits", "logit": "logits", "probs": "probs", "prob": "probs"} | {
    name: name for name in ("predictions", "scores", "score")
}
# a single column with one of these names is the score of class 1; the value is the kind, if the name says it
BINARY_NAMES = {"p": "probs", "p1": "probs", "y_score": "", "y_logit": "logits"}
# names of columns that count the rows
ROW_NUMBER_NAMES = frozenset({"", "id", "index", "row", "__index_level_0__"})
# names of other columns that are often saved with the scores
OTHER_DATA_WORDS = """
confidence conf predicted prediction pred y_pred yhat y_hat predicted_class predicted_label pred_label argmax
entropy uncertainty margin max min mean std sum total fold split seed epoch step batch loss nll weight
sample_weight correct is_correct error time timestamp date label target true truth y y_true class row_id
sample_id image_id uuid idx score scores prob probs probability logit logits predictions
"""
OTHER_DATA_NAMES = frozenset(OTHER_DATA_WORDS.split())
# rounding error of a float32 sum of 1
TOLERANCE = 1e-5
# numbers with at most this many decimals count as rounded
MOST_DIGITS = 6
NEGATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are scores, and the label column."""

    scores: tuple[str, ...]  # in class order
    name: str  # prefix of the score columns such as `logits`, or ""
    class_names: tuple[str, ...]
    label: str | None
    notes: tuple[str, ...] = ()

    @property
    def scores_from(self) -> str:
        """Return where the scores are, for messages."""
        first, last = self.scores[0], self.scores[-1]
        return f"column {first!r}" if len(self.scores) == 1 else f"columns {first!r} … {last!r}"


class TableSample(Protocol):
    """Cells of a table that are known before all of it is read."""

    def is_number(self, name: str) -> bool:
        """Return whether the column contains numbers."""

    def is_list(self, name: str) -> bool:
        """Return whether every cell of the column contains a list."""

    def text(self, name: str) -> str:
        """Return one cell of a column without numbers, for messages."""

    def rows(self, names: Sequence[str]) -> np.ndarray:
        """Return some rows (n, len(names)) of these columns of numbers, in float64."""

    def labels(self, name: str) -> frozenset[str]:
        """Return the distinct labels of all rows as text; integers without a decimal point."""


def ordered_classes(path: Path, names: list[str], suffixes: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return columns and class names; numbered columns are sorted by number (logits_10 comes after logits_9)."""
    if not all(re.fullmatch(r"\d{1,9}", suffix, re.ASCII) for suffix in suffixes):
        return tuple(names), tuple(suffixes)
    numbers = [int(suffix) for suffix in suffixes]
    order = sorted(range(len(names)), key=numbers.__getitem__)
    first = numbers[order[0]]
    if [numbers[i] for i in order] != list(range(first, first + len(names))) or first > 1:
        raise file_error(
            path,
            f"the numbers of columns {listing(names[i] for i in order)} have gaps or duplicates",
            "number the classes 0, 1, 2, … without gaps, or list the columns with --columns",
        )
    return tuple(names[i] for i in order), tuple(suffixes[i] for i in order)


def number_suffixes(names: Iterable[str]) -> list[int] | None:
    """Return the number at the end of each name, if the names differ in nothing else; else None."""
    matches = [re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL | re.ASCII) for name in names]
    if not all(matches) or len({match[1] for match in matches if match}) != 1:
        return None
    return [int(match[2]) for match in matches if match]


def index_labels(path: Path, labels: Sequence[str], classes: Sequence[str], where: str) -> tuple[np.ndarray, Named]:
    """Return text labels as numbers, and whether they were class names.

    If the classes have no names, the numbers are indices into the sorted texts, which are returned too.
    """
    number = {name: index for index, name in enumerate(classes)}
    distinct = set(labels)
    named = distinct and distinct <= number.keys() and not all(name.isdecimal() for name in distinct)
    # nan and inf alone are words; beside numbers they are numbers, too
    numbers = all(map(is_number, distinct)) and (not distinct or any(map(is_finite_number, distinct)))
    if numbers and not named:
        return np.array([float(label) for label in labels]), False
    if "" in distinct:
        raise file_error(path, f"{where}: some rows have no label", "label every row, or remove these rows")
    if len(classes) < 2:
        words = tuple(sorted(distinct))
        position = {word: index for index, word in enumerate(words)}
        return np.array([position[label] for label in labels], dtype=np.int64), words
    unknown = sorted(distinct - number.keys())
    if unknown:
        raise file_error(
            path,
            f"{where}: {listing(unknown, 3)} is neither a number nor a class name ({listing(classes, 5)})",
            "use labels 0 … C−1 or the names of the score columns, choose other score columns with --columns, or name "
            "the classes with --classes",
        )
    return np.array([number[label] for label in labels], dtype=np.int64), True


def is_row_number(name: str) -> bool:
    """Return whether a column with this name counts the rows; pandas writes `Unnamed: 0`, `Unnamed: 0.1`."""
    return name.lower() in ROW_NUMBER_NAMES or re.fullmatch(r"unnamed: \d+(\.\d+)*", name, re.IGNORECASE) is not None


def is_other_data(name: str) -> bool:
    """Return whether a column with this name is often saved with the scores: a predicted class, a fold, an id.

    >>> is_other_data("y_pred"), is_other_data("PassengerId"), is_other_data("covid")
    (True, True, False)
    """
    return name.lower() in OTHER_DATA_NAMES or re.search(r"_id$|[a-z]I[dD]$", name) is not None


def begins(name: str, prefix: str) -> bool:
    """Return whether the name is the prefix, alone or followed by anything but a letter."""
    return name[: len(prefix)].lower() == prefix and not name[len(prefix) : len(prefix) + 1].isalpha()


def suffix_of(name: str, prefix: str) -> str:
    """Return the name without the prefix and separators."""
    return name[len(prefix) :].strip(" _.-:[]()")


def columns_summing_to_one(sample: TableSample | None, names: Sequence[str]) -> list[str] | None:
    """Return the columns that sum to 1 in every row of the sample, as exactly as their digits allow.

    Candidates are all columns with numbers from 0 to 1, or all but one of them. The result is None if no set of columns
    sums to 1, if two sets do, or if a column does not change the sums, such as a flag that is always 0.
    """
    if sample is None or len(names) < 2:
        return None
    rows = sample.rows(names)
    if not len(rows):
        return None
    with np.errstate(invalid="ignore"):
        in_range = (rows >= -NEGATIVE_TOLERANCE) & (rows <= 1 + NEGATIVE_TOLERANCE)  # False for NaN
    candidates = np.flatnonzero(in_range.all(0)).tolist()
    names, rows = [names[index] for index in candidates], rows[:, candidates]
    count = len(names)
    if count < 2:
        return None
    digits, total = _digits(rows), rows.sum(1)
    sets = []
    if np.abs(total - 1).max() <= _tolerance(int(digits.max()), count):
        sets.append(list(range(count)))
    if count > 2:
        off = np.abs(total[:, None] - rows - 1).max(0)
        order = np.argsort(digits, kind="stable")
        for left_out in np.flatnonzero(off <= MOST_ROUNDING).tolist():
            most = int(digits[order[-1] if order[-1] != left_out else order[-2]])
            if off[left_out] <= _tolerance(most, count - 1):
                sets.append([index for index in range(count) if index != left_out])
            if len(sets) > 1:
                return None
    if len(sets) != 1:
        return None
    chosen = sets[0]
    if rows[:, chosen].max(0).min() <= 2 * _tolerance(int(digits[chosen].max()), len(chosen)):
        return None  # without this column the sums would also be 1
    return [names[index] for index in chosen]


def no_probabilities(sample: TableSample | None, names: list[str]) -> bool:
    """Return whether each of these columns has whole numbers, or numbers outside 0 … 1."""
    rows = sample.rows(names) if sample is not None else np.empty((0, len(names)))
    whole, outside = (rows == np.round(rows)).all(0), ((rows < 0) | (rows > 1)).any(0)
    return len(rows) > 0 and bool((whole | outside).all())


def ranges_overlap(sample: TableSample | None, names: list[str]) -> bool:
    """Return whether the ranges of these columns overlap; those of an age and a height do not."""
    rows = sample.rows(names) if sample is not None else np.empty((0, len(names)))
    return len(rows) > 0 and bool(np.isfinite(rows).all()) and float(rows.min(0).max()) < float(rows.max(0).min())


def _tolerance(digits: int, count: int) -> float:
    """Return how far the sum of `count` numbers with `digits` decimals may be from 1."""
    if not 2 <= digits <= MOST_DIGITS:
        return TOLERANCE
    return max(TOLERANCE, min(MOST_ROUNDING, rounding_error(count, digits) + 1e-9))


def _digits(rows: np.ndarray) -> np.ndarray:
    """Return for each column how many decimals its numbers have; `MOST_DIGITS` + 1 stands for more."""
    decimals = np.full(rows.shape[1], MOST_DIGITS + 1)
    for digits in range(MOST_DIGITS, -1, -1):
        scaled = rows * 10**digits
        # 0.17 * 100 is 17 except for float32 rounding
        decimals[(np.abs(scaled - np.round(scaled)) <= 1.2e-7 * np.abs(scaled) + 1e-9).all(0)] = digits
    return decimals


def no_score_columns(path: Path, names: Sequence[str], texts: Sequence[str], sample: TableSample | None) -> InputError:
    """Return the error for a table without numeric columns besides the label."""
    detail, remedy = "", "name them logits_0, logits_1, … or list them with --columns"
    if texts and sample is not None:
        text = sample.text(texts[0])
        detail = f"; column {texts[0]!r} contains text, {quoted(text)}"
        remedy = number_hint(text) or remedy
        listed = [name for name in texts if sample.text(name).lstrip().startswith("[")]
        if listed:
            detail = f"; column {listed[0]!r} contains lists as text, {quoted(sample.text(listed[0]))}"
            remedy = "save one column per class, logits_0, logits_1, …, or a .parquet or .npz file"
        lists = [name for name in texts if sample.is_list(name)]
        if lists:
            detail = f"; column {lists[0]!r} has {sample.text(lists[0])}"
            remedy = f"name the list column of the scores with --scores-key, for example {shlex.quote(lists[0])}"
    sure = [name for name in names if name.lower() in ("confidence", "conf", "max_prob")]
    if sure:
        detail = f"; {sure[0]!r} alone is not enough, because it says nothing about the other classes"
        remedy = "save the probability of every class, in columns such as prob_cat, prob_dog"
    return file_error(path, f"contains no score columns (it has {listing(names)}{detail})", remedy)


def binary_column(name: str) -> tuple[str, str] | None:
    """Return the kind and the class that the name of a single score column says; None: it is no name of a score.

    >>> binary_column("prob_dog"), binary_column("y_score"), binary_column("churn_probability"), binary_column("age")
    (('probs', 'dog'), ('', ''), ('probs', ''), None)
    """
    plain = name.lower()
    if plain in BINARY_NAMES:
        return BINARY_NAMES[plain], ""
    for prefix, kind in SCORE_PREFIXES.items():
        suffix = suffix_of(name, prefix)
        if begins(name, prefix) and suffix.lower() not in OTHER_DATA_NAMES:
            return kind, suffix
    match = re.fullmatch(r"(?!.*log)(?:.*[ _.-])?prob(?:a|ability)?(?:[ _.-](.+))?", name, re.IGNORECASE)
    return ("probs", match[1] or "") if match and (match[1] or "").lower() not in OTHER_DATA_NAMES else None


def single_score_column(path: Path, name: str) -> InputError:
    """Return the error for a table with only one numeric column besides the label."""
    binary = f"pass --columns {shlex.quote(name)} if it is the score of class 1"
    return file_error(path, f"only column {name!r} can contain scores", f"{binary}, else save one column per class")
