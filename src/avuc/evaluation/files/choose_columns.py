"""Choose the columns of a table that are scores, and the one that holds the labels; for .csv and .parquet."""

from __future__ import annotations

import csv
import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from avuc.core.errors import InputError
from avuc.evaluation.files.column_rules import prefixed_columns, unprefixed_columns
from avuc.evaluation.files.columns import SCORE_PREFIXES, Columns, TableSample, begins, number_suffixes, suffix_of
from avuc.evaluation.files.messages import ambiguous_labels, file_error, listing, quoted
from avuc.evaluation.files.names import ReadOptions, check_unique_names, find_label_name


def choose_columns(
    path: Path, names: Sequence[str], options: ReadOptions, sample: TableSample | None = None
) -> Columns:
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
    check_unique_names(path, names)
    label, alike = find_label_name(path, names, options.labels_key, "label column")
    given = options.columns
    if given is None and len(options.prefer) > 1 and set(options.prefer) <= set(names):
        given = options.prefer
    if given is not None:
        chosen = expand_columns(path, names, given)
        if label in chosen and options.labels_key is None:
            label = None
        return _explicit(path, chosen, label, sample)
    others = [name for name in names if name != label and name not in alike]
    found = prefixed_columns(path, others, options, sample, label)
    if found is None:
        found = unprefixed_columns(path, names, others, label, options, sample)
    if alike and label is not None and options.needs_labels:
        raise ambiguous_labels(path, [label, *alike])
    return found


def expand_columns(path: Path, names: Sequence[str], given: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of `--columns`: names with commas between them, a range `first:last`, or a pattern `prob_*`."""
    if isinstance(given, str):
        try:
            items = next(csv.reader([given], strict=True, skipinitialspace=True), [])
        except csv.Error as error:
            raise InputError(f"--columns {quoted(given)}: {error}; separate the names by commas") from None
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
                raise file_error(path, f"column {first!r} comes after {last!r}", f"pass --columns {last}:{first}")
            chosen += names[places[first] : places[last] + 1]
        elif "*" in item:
            fits = re.compile(fnmatch.translate(item))
            some = [name for name in names if fits.match(name)]
            if not some:
                raise file_error(path, f"no column fits {item!r} (it has {listing(names)})", "correct --columns")
            suffixes = number_suffixes(some)
            chosen += some if suffixes is None else [some[i] for i in np.argsort(suffixes, kind="stable")]
        else:
            raise file_error(path, f"no column {item!r} (it has {listing(names)})", "correct --columns")
    if len(set(chosen)) < len(chosen):
        raise file_error(path, "--columns names a column more than once", "name each class once")
    if len(chosen) < 2:
        remedy = "give two columns or more, one for each class, or a list column with --scores-key"
        raise file_error(path, f"--columns names {len(chosen) or 'no'} column", remedy)
    return tuple(chosen)


def _explicit(path: Path, chosen: tuple[str, ...], label: str | None, sample: TableSample | None) -> Columns:
    """Listed columns: their names without the common beginning, such as `prob_`, are the names of the classes."""
    if label in chosen:
        raise file_error(path, f"column {label!r} is both a score and the label", "correct --columns or --label")
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
