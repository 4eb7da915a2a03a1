"""Rules for a table whose score columns have no usual name in front: `cat, dog, age`, `class_0, class_1, fold`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from avuc.core.errors import InputError
from avuc.evaluation.files.columns.columns import (
    OTHER_DATA_NAMES,
    Columns,
    TableSample,
    binary_column,
    columns_summing_to_one,
    is_other_data,
    is_row_number,
    no_probabilities,
    no_score_columns,
    ordered_classes,
    ranges_overlap,
    single_score_column,
)
from avuc.evaluation.files.columns.numbers import is_number
from avuc.evaluation.files.columns.rules import label_values
from avuc.evaluation.files.messages import ambiguous_columns, listing, number_hint, two_models
from avuc.evaluation.files.names import ReadOptions


def unprefixed_columns(
    path: Path,
    names: Sequence[str],
    others: list[str],
    label: str | None,
    options: ReadOptions,
    sample: TableSample | None,
) -> Columns:
    """Return the numeric columns that are clearly the scores. That is clear if

    - their names are the labels: `cat, dog` and labels `cat`, `dog`;
    - they are numbered without gaps, and no other column could be a score: `class_0, class_1, fold`;
    - their rows sum to 1 as exactly as their digits allow, and no other set of columns does: `cat, dog, age`;
    - only one has a name of binary scores, and the others have names of other data: `y_prob, y_pred, fold`.
    """
    texts = [name for name in others if sample is not None and not sample.is_number(name)]
    skipped = {*texts, *(row_numbers := [name for name in others if is_row_number(name)])}
    pool = [name for name in others if name not in skipped]
    single = [name for name in pool if binary_column(name) is not None]
    rest = [name for name in pool if name not in single]
    if len(single) == 1 and all(is_other_data(name) for name in rest):
        pool, texts = single, [*texts, *rest]
    binary = binary_column(pool[0]) if len(pool) == 1 else None
    if binary is not None and not any(binary_column(name) for name in texts):  # such a text may be a list of scores
        kind, name = binary
        ignored = list(dict.fromkeys([*row_numbers, *texts]))
        notes = (_not_scores(ignored),) if ignored else ()
        return Columns((pool[0],), kind, (name,), label, notes)
    if len(pool) == 1 and not texts:
        raise single_score_column(path, pool[0])
    if len(pool) < 2:
        raise no_score_columns(path, names, texts, sample)
    candidates = _Candidates(path, names, pool, texts, row_numbers, label, options.needs_labels)
    likely = [name for name in pool if name.lower() not in OTHER_DATA_NAMES]
    values = label_values(sample, label)
    probability_columns = columns_summing_to_one(sample, likely) or []
    named = _named_by_labels(pool, values)
    if named:
        return _named_columns(candidates, named, probability_columns)
    group = _numbered(pool)
    if group is not None:
        chosen, classes = group
        kept = set(chosen)
        if not any(name not in kept for name in likely) or set(probability_columns) == kept:
            return candidates.result(*ordered_classes(path, chosen, classes))
    if probability_columns:
        return candidates.result(probability_columns, probability_columns)
    if options.needs_labels and len(likely) == len(pool) and _has_unknown_labels(values, pool):
        return candidates.result(pool, pool)
    hinted = [name for name in texts if sample is not None and number_hint(sample.text(name))]
    if len(hinted) > 1:
        raise no_score_columns(path, names, hinted, sample)
    if len(single) == 1 and no_probabilities(sample, unknown := [name for name in rest if not is_other_data(name)]):
        problem = f"it is unclear whether only {listing(single)} is a score, or also {listing(unknown, 4)}"
        raise ambiguous_columns(path, problem, single, label, names, options.needs_labels)
    plausible = len(likely) == len(values) > 1 and len(likely) < len(pool) and ranges_overlap(sample, likely)
    raise candidates.doubt(likely if len(likely) > 1 else pool, likely if plausible else None)


@dataclass(frozen=True)
class _Candidates:
    """The columns that may be scores, and what the others are."""

    path: Path
    names: Sequence[str]  # of all columns
    pool: list[str]  # that may be scores
    texts: list[str]  # that are not scores
    row_numbers: list[str]
    label: str | None
    needs_labels: bool

    def result(self, chosen: Sequence[str], classes: Sequence[str]) -> Columns:
        """Return the chosen columns, with notes about the others."""
        kept = set(chosen)
        left = [name for name in self.pool if name not in kept]
        notes = [f"column {listing(self.row_numbers)} was ignored: row numbers"] if self.row_numbers else []
        if left or self.texts:
            notes.append(_not_scores([*left, *self.texts]))
        return Columns(tuple(chosen), "", tuple(classes), self.label, tuple(notes))

    def doubt(self, chosen: list[str], guess: list[str] | None) -> InputError:
        """Return the error that it is unclear whether the chosen columns are all scores; `guess` as in its message."""
        kept = set(chosen)
        problem = f"it is unclear whether {listing(chosen, 4)} are the scores of the classes"
        if strays := [name for name in self.pool if name not in kept]:
            problem = f"it is unclear whether {listing(strays, 4)} is a class like {listing(chosen, 4)}"
        return ambiguous_columns(self.path, problem, guess, self.label, self.names, self.needs_labels)


def _named_columns(
    candidates: _Candidates, named: list[tuple[list[str], list[str]]], probability_columns: list[str]
) -> Columns:
    """Return the columns that are named by the labels, if they are all the classes and of one model.

    Args:
        candidates: the columns.
        named: columns and class names, as `_named_by_labels` returns them.
        probability_columns: columns whose rows sum to 1.
    """
    pool = candidates.pool
    if len(named) > 1:  # p_cat, p_dog, n_cat, n_dog
        fitting = [fit for fit in named if set(fit[0]) == set(probability_columns)]
        if not fitting:
            starts = [chosen[0].removesuffix(classes[0]) for chosen, classes in named]
            raise two_models(candidates.path, [name for chosen, _ in named for name in chosen], starts)
        named = fitting
    chosen, classes = named[0]
    prefix = chosen[0].removesuffix(classes[0])
    same_prefix = [name for name in pool if prefix and name.startswith(prefix)]
    # same_prefix: p_cat, p_dog next to a column that does not start with p_
    if len(chosen) == len(pool) or set(probability_columns) == set(chosen) or len(same_prefix) == len(chosen):
        return candidates.result(chosen, classes)
    if set(probability_columns) > set(chosen):  # some classes have no labelled row
        return candidates.result(probability_columns, [name.removeprefix(prefix) for name in probability_columns])
    raise candidates.doubt(chosen, chosen if _are_other_data(pool, chosen) else None)


def _not_scores(names: list[str]) -> str:
    return f"column {names[0]!r} is not a score" if len(names) == 1 else f"columns {listing(names, 4)} are not scores"


def _are_other_data(pool: list[str], chosen: list[str]) -> bool:
    """Return whether all columns that were not chosen have usual names of other data."""
    kept = set(chosen)
    return all(name.lower() in OTHER_DATA_NAMES for name in pool if name not in kept)


def _named_by_labels(pool: list[str], values: frozenset[str]) -> list[tuple[list[str], list[str]]]:
    """Return the columns named by the labels and the class names: without a prefix, else for each common prefix."""
    if not values:
        return []
    fits: list[tuple[list[str], list[str]]] = []
    value = min(values)
    prefixes = [name.removesuffix(value) for name in pool if value and name.endswith(value) and name != value]
    for prefix in ["", *prefixes[:8]]:
        classes = {prefix + value: value for value in values}
        chosen = [name for name in pool if name in classes]
        if len(chosen) == len(values) > 1 and not _are_column_numbers(values, pool):
            fits.append((chosen, [classes[name] for name in chosen]))
            if not prefix:
                break
    return fits


def _are_column_numbers(values: frozenset[str], pool: list[str]) -> bool:
    """Return whether the labels are numbers of a group of columns, which may have more columns than labels."""
    return all(value.isdecimal() for value in values) and _numbered(pool) is not None


def _numbered(pool: list[str]) -> tuple[list[str], list[str]] | None:
    """Return the columns numbered from 0 or 1 without gaps, and their numbers; None unless there is one such group."""
    groups: dict[str, dict[str, str]] = {}
    for name in pool:
        match = re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL | re.ASCII)
        if match:
            groups.setdefault(match[1], {})[name] = match[2]
    complete = []
    for group in groups.values():
        numbers = sorted(int(number) for number in group.values())
        if len(numbers) > 1 and numbers[0] <= 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            complete.append(group)
    if len(complete) != 1:
        return None
    return list(complete[0]), list(complete[0].values())


def _has_unknown_labels(values: frozenset[str], pool: list[str]) -> bool:
    """Return whether some text label names no column; then reading the labels raises the error."""
    known = set(pool)
    return any(value not in known and not is_number(value) for value in values)
