"""Tables whose score columns carry no scores word: `cat, dog, fold, label`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from avuc.evaluation.files.columns import SUSPECTS, Columns, Sample, is_row_number, ordered_classes
from avuc.evaluation.files.names import Wanted, listing
from avuc.evaluation.files.probability_columns import summing_columns
from avuc.evaluation.files.refusals import no_scores, one_score, unclear

__all__ = ["pick_unnamed"]


def pick_unnamed(
    path: Path, names: Sequence[str], others: list[str], label: str | None, wanted: Wanted, sample: Sample | None
) -> Columns:
    """Columns of numbers, where it is clear that they are the scores and all of them. It is clear when

    - their names are the labels: `cat, dog` and labels `cat`, `dog`;
    - they are numbered without gaps, and no other column could be a score: `class_0, class_1, fold`;
    - their rows sum to 1 as exactly as their digits allow, and those of no other set do: `cat, dog, age`.
    """
    texts = [name for name in others if sample is not None and not sample.is_number(name)]
    hidden = set(texts)
    aside = [name for name in others if is_row_number(name)]
    pool = [name for name in others if not is_row_number(name) and name not in hidden]
    if len(pool) == 1 and not texts:
        raise one_score(path, pool[0])
    if len(pool) < 2:
        raise no_scores(path, names, texts, sample)
    likely = [name for name in pool if name.lower() not in SUSPECTS]
    values = sample.labels(label) if sample is not None and label is not None else frozenset[str]()
    shares = summing_columns(sample, likely) or []

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
        prefix = chosen[0].removesuffix(classes[0])
        alike = [name for name in pool if prefix and name.startswith(prefix)]
        # p_cat, p_dog beside a column that does not begin with p_
        if len(chosen) == len(pool) or set(shares) == set(chosen) or len(alike) == len(chosen):
            return take(chosen, classes)
        if set(shares) > set(chosen):  # classes that no row is labelled as
            return take(shares, [name.removeprefix(prefix) for name in shares])
        raise unclear(path, _doubt(pool, chosen), chosen if _known(pool, chosen) else None, label, names, wanted)
    group = _numbered(pool)
    if group is not None:
        chosen, classes = group
        kept = set(chosen)
        if not any(name not in kept for name in likely) or set(shares) == kept:
            return take(chosen, classes, numbered=True)
    if shares:
        return take(shares, shares)
    if wanted.needs_labels and len(likely) == len(pool) and _foreign(values, pool):
        return take(pool, pool)
    plausible = len(likely) == len(values) > 1 and len(likely) < len(pool) and _overlap(sample, likely)
    problem = _doubt(pool, likely if len(likely) > 1 else pool)
    raise unclear(path, problem, likely if plausible else None, label, names, wanted)


def _doubt(pool: list[str], chosen: list[str]) -> str:
    kept = set(chosen)
    strays = [name for name in pool if name not in kept]
    if strays:
        return f"it is not clear whether {listing(strays, 4)} is a class beside {listing(chosen, 4)}"
    return f"it is not clear whether {listing(chosen, 4)} are the scores of the classes"


def _known(pool: list[str], chosen: list[str]) -> bool:
    """Whether every column beside the chosen ones has the name of something else."""
    kept = set(chosen)
    return all(name.lower() in SUSPECTS for name in pool if name not in kept)


def _overlap(sample: Sample | None, names: list[str]) -> bool:
    """Whether these columns may hold one kind of number: the ranges of an age and of a height do not overlap."""
    rows = sample.rows(names) if sample is not None else np.empty((0, len(names)))
    return len(rows) > 0 and bool(np.isfinite(rows).all()) and float(rows.min(0).max()) < float(rows.max(0).min())


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
