"""Choose the score columns and the label column of a table, for .csv and .parquet."""

from __future__ import annotations

import csv
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from avuc.core.errors import InputError
from avuc.evaluation.files.columns.columns import (
    SCORE_PREFIXES,
    Columns,
    TableSample,
    begins,
    number_suffixes,
    suffix_of,
)
from avuc.evaluation.files.columns.rules import prefixed_columns
from avuc.evaluation.files.columns.unprefixed import unprefixed_columns
from avuc.evaluation.files.messages import ambiguous_labels, file_error, listing, quoted
from avuc.evaluation.files.names import (
    ReadOptions,
    check_class_names,
    check_class_order,
    check_unique_names,
    find_label_name,
)


def choose_columns(
    path: Path, names: Sequence[str], options: ReadOptions, sample: TableSample | None = None
) -> Columns:
    """Return the score columns in class order, and the label column.

    Scores are the columns listed by `--columns`; else the columns that start with `--scores-key` or a usual name of
    scores (`logits_0`, `prob_cat`, or one list column `logits`); else columns that are clearly the scores.

    Args:
        path: the file, for messages.
        names: all columns.
        options: how to read the file.
        sample: cells of the table; None: decide by the names alone.

    >>> choose_columns(Path("a.csv"), ["id", "label", "prob_1", "prob_0"], ReadOptions()).scores
    ('prob_0', 'prob_1')
    """
    check_unique_names(path, names)
    label, other_labels = find_label_name(path, names, options.labels_key, "label column")
    listed = options.columns
    if listed is None and _can_prefer(options.prefer, names, sample):
        listed = options.prefer
    if listed is not None:
        chosen = expand_columns(path, names, listed)
        if len(chosen) == 1 and sample is not None and sample.is_list(chosen[0]):
            problem = f"--columns lists one column, {chosen[0]!r}, which contains lists"
            raise file_error(path, problem, f"pass --scores-key {chosen[0]}")
        if label in chosen and options.labels_key is None:
            label = None
        return _named_classes(path, _listed_columns(path, chosen, label, sample), options)
    others = [name for name in names if name != label and name not in other_labels]
    columns = prefixed_columns(path, others, options, sample, label)
    if columns is None:
        columns = unprefixed_columns(path, names, others, label, options, sample)
    if other_labels and label is not None and options.needs_labels:
        raise ambiguous_labels(path, [label, *other_labels])
    return _named_classes(path, columns, options)


def _can_prefer(prefer: Sequence[str], names: Sequence[str], sample: TableSample | None) -> bool:
    """Return whether the table has the score columns of another file of the same model."""
    if not prefer or not set(prefer) <= set(names) or _has_more(prefer, [name for name in names if name not in prefer]):
        return False
    return len(prefer) > 1 or (sample is not None and not sample.is_list(prefer[0]))


def _has_more(prefer: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether some other column may be a further class: `prob_3` next to `prob_0 … prob_2`, `prob_no` next to
    `prob_yes`. A model with more classes is another model, and its further scores must not be left out."""
    for prefix in SCORE_PREFIXES:
        if all(begins(name, prefix) for name in prefer):
            return any(begins(name, prefix) for name in others)
    if number_suffixes(prefer) is not None and any(number_suffixes([*prefer, name]) for name in others):
        return True
    common = prefer[0][: _common_prefix_length(prefer)] if len(prefer) > 1 else ""
    start = common[: max(common.rfind(mark) for mark in "_.- ") + 1]
    return bool(start) and any(name.startswith(start) for name in others)


def _named_classes(path: Path, columns: Columns, options: ReadOptions) -> Columns:
    """Return the columns with the class names of --classes."""
    classes = options.classes
    if classes is None:
        return columns
    if len(columns.scores) > 1:  # one column is a binary score, or has lists
        check_class_names(path, classes, len(columns.scores))
        check_class_order(path, classes, columns.class_names)
    return replace(columns, class_names=tuple(classes))


def expand_columns(path: Path, names: Sequence[str], listed: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns that `--columns` lists: names with commas, a range `first:last`, or a pattern `prob_*`."""
    if isinstance(listed, str):
        try:
            items = next(csv.reader([listed], strict=True, skipinitialspace=True), [])
        except csv.Error as error:
            raise InputError(f"--columns {quoted(listed)}: {error}; separate the names by commas") from None
    else:
        items = list(listed)
    position = {name: index for index, name in enumerate(names)}
    chosen: list[str] = []
    for item in items:
        first, _, last = item.partition(":")
        if item in position:
            chosen.append(item)
        elif first in position and last in position:
            if position[first] > position[last]:
                raise file_error(path, f"column {first!r} comes after {last!r}", f"pass --columns {last}:{first}")
            chosen += names[position[first] : position[last] + 1]
        elif "*" in item:
            pattern = re.compile(fnmatch.translate(item))
            matching = [name for name in names if pattern.match(name)]
            if not matching:
                raise file_error(path, f"no column matches {item!r} (it has {listing(names)})", "correct --columns")
            suffixes = number_suffixes(matching)
            chosen += matching if suffixes is None else [matching[i] for i in np.argsort(suffixes, kind="stable")]
        else:
            raise file_error(path, f"contains no column {item!r} (it has {listing(names)})", "correct --columns")
    if len(set(chosen)) < len(chosen):
        raise file_error(path, "--columns lists a column twice", "list each column once")
    if not chosen:
        remedy = "list one column per class, or the column with the score of class 1"
        raise file_error(path, "--columns lists no column", remedy)
    return tuple(chosen)


def _listed_columns(path: Path, chosen: tuple[str, ...], label: str | None, sample: TableSample | None) -> Columns:
    """Return the listed columns; class names are the column names without a common prefix such as `prob_`."""
    if label in chosen:
        raise file_error(path, f"column {label!r} is used as a score and as the label", "correct --columns or --label")
    for prefix in SCORE_PREFIXES:
        if all(begins(name, prefix) for name in chosen):
            return Columns(chosen, SCORE_PREFIXES[prefix], tuple(suffix_of(name, prefix) for name in chosen), label)
    numbers = number_suffixes(chosen)
    if numbers is not None:
        return Columns(chosen, "", tuple(str(number) for number in numbers), label)
    start = _common_prefix_length(chosen)
    if start and sample is not None and label is not None:
        values = sample.labels(label)
        if not values <= set(chosen) and values <= {name[start:] for name in chosen}:
            return Columns(chosen, "", tuple(name[start:] for name in chosen), label)
    return Columns(chosen, "", chosen, label)


def _common_prefix_length(names: Sequence[str]) -> int:
    """Return how many characters all names start with."""
    first, last = min(names), max(names)
    return next((index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
