"""Tables whose score columns carry no scores word: `cat, dog, fold, label`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from avuc.scores.columns import ASIDE, SUSPECTS, Columns, Sample, no_scores, ordered_classes, unclear
from avuc.scores.names import Wanted, listing

__all__ = ["pick_unnamed"]

# of the rows' sums, as for every file; the values may have been rounded
SUM_TOLERANCE = 1e-2
NEGATIVE_TOLERANCE = 1e-6


def pick_unnamed(
    path: Path, names: Sequence[str], others: list[str], label: str | None, wanted: Wanted, sample: Sample | None
) -> Columns:
    """Columns of numbers, where it is clear that they are the scores and all of them. It is clear when

    - their names are the labels: `cat, dog` and labels `cat`, `dog`;
    - they are numbered without gaps, and no other column could be a score: `class_0, class_1, fold`;
    - their rows sum to 1, with or without the columns that never are scores: `cat, dog, confidence`;
    - there are as many as classes among the labels, and none has the name of something else.
    """
    texts = [name for name in others if sample is not None and not sample.is_number(name)]
    hidden = set(texts)
    aside = [name for name in others if name.lower() in ASIDE]
    pool = [name for name in others if name.lower() not in ASIDE and name not in hidden]
    if len(pool) < 2:
        raise no_scores(path, names, texts, sample)
    likely = [name for name in pool if name.lower() not in SUSPECTS]
    values = sample.labels(label) if sample is not None and label is not None else frozenset[str]()

    def take(chosen: list[str], classes: list[str], *, numbered: bool = False) -> Columns:
        kept = set(chosen)
        left = [name for name in pool if name not in kept]
        notes = [f"column {listing(aside)} left aside as row numbers"] if aside else []
        if left or texts:
            notes.append(f"columns {listing([*left, *texts], 4)} were taken for other data, not scores")
        if numbered:
            ordered, suffixes = ordered_classes(path, chosen, classes)
            return Columns(ordered, "", suffixes, label, tuple(notes))
        return Columns(tuple(chosen), "", tuple(classes), label, tuple(notes))

    named = _named_by_labels(pool, values)
    if named is not None:
        chosen, classes = named
        if len(chosen) == len(pool) or _sums_to_one(sample, chosen):
            return take(chosen, classes)
        prefix = chosen[0].removesuffix(classes[0])
        alike = [name for name in pool if prefix and name.startswith(prefix)]
        if len(alike) == len(chosen):  # p_cat, p_dog beside a column that does not begin with p_
            return take(chosen, classes)
        if len(likely) == len(pool) and _sums_to_one(sample, pool):
            return take(pool, [name.removeprefix(prefix) for name in pool])
        raise unclear(path, _doubt(pool, chosen), Columns(tuple(chosen), "", (), label), names)
    group = _numbered(pool)
    if group is not None:
        chosen, classes = group
        kept = set(chosen)
        rest = [name for name in likely if name not in kept]
        if not rest or _sums_to_one(sample, chosen):
            return take(chosen, classes, numbered=True)
        raise unclear(path, _doubt(pool, chosen), Columns(tuple(chosen), "", (), label), names)
    if len(likely) == len(pool) and (_one_for_each(values, len(pool)) or _foreign(values, pool)):
        return take(pool, pool)
    shares = _within_one(sample, likely)
    if _sums_to_one(sample, shares) and (len(shares) == len(pool) or not _sums_to_one(sample, pool)):
        return take(shares, shares)
    guess = likely if len(likely) > 1 else pool
    raise unclear(path, _doubt(pool, guess), Columns(tuple(guess), "", (), label), names)


def _doubt(pool: list[str], chosen: list[str]) -> str:
    kept = set(chosen)
    strays = [name for name in pool if name not in kept]
    if strays:
        return f"it is not clear whether {listing(strays, 4)} is a class beside {listing(chosen, 4)}"
    return f"it is not clear whether {listing(chosen, 4)} are the scores of the classes"


def _named_by_labels(pool: list[str], values: frozenset[str]) -> tuple[list[str], list[str]] | None:
    """The columns whose names are the labels, alone or behind one common beginning, in the order of the file."""
    if not values:
        return None
    some = min(values)
    ends = [name.removesuffix(some) for name in pool if some and name.endswith(some) and name != some]
    for prefix in ["", *ends[:8]]:
        classes = {prefix + value: value for value in values}
        chosen = [name for name in pool if name in classes]
        if len(chosen) == len(values) > 1 and not _counts(values, prefix, pool):
            return chosen, [classes[name] for name in chosen]
    return None


def _counts(values: frozenset[str], prefix: str, pool: list[str]) -> bool:
    """Whether the labels are numbers of a group that may have more columns: `_numbered` decides about those."""
    return all(value.isdecimal() for value in values) and _numbered(pool) is not None


def _numbered(pool: list[str]) -> tuple[list[str], list[str]] | None:
    """The one group of columns that are numbered from 0 or 1 without gaps, if there is just one."""
    groups: dict[str, dict[str, str]] = {}
    for name in pool:
        match = re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL | re.ASCII)
        if match:
            groups.setdefault(match[1], {})[name] = match[2]
    whole = []
    for group in groups.values():
        numbers = sorted(int(number) for number in group.values())
        if len(numbers) > 1 and numbers[0] <= 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            whole.append(group)
    if len(whole) != 1:
        return None
    return list(whole[0]), list(whole[0].values())


def _within_one(sample: Sample | None, names: list[str]) -> list[str]:
    """Those of the columns that hold nothing but numbers from 0 to 1."""
    if sample is None or not names:
        return []
    rows = sample.rows(names)
    if not len(rows):
        return []
    low, high = rows.min(0), rows.max(0)
    good = (low >= -NEGATIVE_TOLERANCE) & (high <= 1 + NEGATIVE_TOLERANCE)
    return [name for name, fits in zip(names, good.tolist(), strict=True) if fits]


def _sums_to_one(sample: Sample | None, names: list[str]) -> bool:
    """Whether these columns are probabilities, none of them 0 in every row: such a column may be anything."""
    if sample is None or len(names) < 2:
        return False
    rows = sample.rows(names)
    if not len(rows) or not np.isfinite(rows).all() or rows.min() < -NEGATIVE_TOLERANCE:
        return False
    return bool((np.abs(rows.sum(1) - 1) <= SUM_TOLERANCE).all() and (len(rows) < 20 or (rows.max(0) > 0).all()))


def _one_for_each(values: frozenset[str], count: int) -> bool:
    """Whether the labels are all the numbers of `count` classes."""
    if len(values) != count or not all(value.isascii() and value.isdecimal() for value in values):
        return False
    numbers = sorted(int(value) for value in values)
    return numbers[0] <= 1 and numbers[-1] - numbers[0] == count - 1


def _foreign(values: frozenset[str], pool: list[str]) -> bool:
    """Whether there are text labels that name no column: the reader of the labels says so."""
    known = set(pool)
    return any(value not in known and not _is_number(value) for value in values)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
