"""Rules that find the score columns of a table by their names and their first rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from avuc.evaluation.files.columns import (
    OTHER_DATA_NAMES,
    ROW_NUMBER_NAMES,
    SCORE_PREFIXES,
    Columns,
    TableSample,
    begins,
    columns_summing_to_one,
    is_number,
    is_row_number,
    no_score_columns,
    number_suffixes,
    ordered_classes,
    single_score_column,
    suffix_of,
)
from avuc.evaluation.files.messages import ambiguous_columns, file_error, listing
from avuc.evaluation.files.names import ReadOptions

# words that other columns have too: the results of exams, score_math and score_reading
WEAK_PREFIXES = ("predictions", "scores", "score")


def prefixed_columns(
    path: Path, others: list[str], options: ReadOptions, sample: TableSample | None, label: str | None
) -> Columns | None:
    """The columns that begin with the scores key or a scores word; None where no word fits."""
    key = options.scores_key
    groups: list[tuple[str, list[str]]] = []
    for prefix in [key] if key is not None else list(SCORE_PREFIXES):
        some = [name for name in others if (name.startswith(prefix) if key is not None else begins(name, prefix))]
        lists = [name for name in some if name == prefix and sample is not None and sample.is_list(name)]
        # one number in each row is a confidence, not the scores of every class
        if len(some) > 1 or (some and (sample is None or sample.is_list(some[0]) or key is not None)):
            groups.append((prefix, lists or some))
    if not groups:
        if key is not None:
            raise file_error(path, f"no column begins with {key!r} (it has {listing(others)})", "correct --scores-key")
        return None
    prefix, chosen = groups[0]
    suffixes = [suffix_of(name, prefix) for name in chosen]
    word = next((SCORE_PREFIXES[one] for one in SCORE_PREFIXES if begins(prefix, one)), "")
    notes: tuple[str, ...] = ()
    if len(groups) > 1 and set(groups[1][1]) - set(chosen):
        notes = (f"also there: {listing(groups[1][1], 3)}; choose with --scores-key",)
    repeated = _numbered_by_pandas(chosen)
    if repeated is not None:
        return Columns(tuple(repeated), word, tuple(map(str, range(len(repeated)))), label, notes)
    _check_strays(path, others, chosen, suffixes, label, options)
    numbered = all(_is_digits(suffix) for suffix in suffixes)
    if numbered or len(chosen) < 2:
        ordered, classes = ordered_classes(path, chosen, suffixes)
        return Columns(ordered, word, classes, label, notes)
    named = _are_labels(suffixes, sample, label)
    if not named and prefix in WEAK_PREFIXES and _doubtful(others, chosen, suffixes, sample):
        return None
    if not named:
        _check_one_model(path, chosen, suffixes, sample)
        numbers = number_suffixes(suffixes)
        if numbers is not None and (numbers != sorted(numbers) or _without_gaps(numbers)):
            suffixes = [str(number) for number in numbers]
    ordered, classes = ordered_classes(path, chosen, suffixes)
    return Columns(ordered, word, classes, label, notes)


def _check_strays(
    path: Path, others: list[str], chosen: list[str], suffixes: list[str], label: str | None, options: ReadOptions
) -> None:
    """Refuse `logits_max` beside `logits_0, logits_1`, and `prob_max` beside `prob_cat, prob_dog`."""
    if len(chosen) < 2:
        return
    numbered = [_is_digits(suffix) for suffix in suffixes]
    doubtful = [suffix.lower() in OTHER_DATA_NAMES for suffix in suffixes]
    if (any(numbered) and not all(numbered)) or any(doubtful):
        keep = numbered if any(numbered) else [not one for one in doubtful]
        good = [name for name, one in zip(chosen, keep, strict=True) if one]
        strays = [name for name, one in zip(chosen, keep, strict=True) if not one]
        problem = f"{listing(strays, 4)} may not be a class beside {listing(good, 3)}"
        raise ambiguous_columns(path, problem, good if len(good) > 1 else None, label, others, options.needs_labels)


def _numbered_by_pandas(names: list[str]) -> list[str] | None:
    """`prob, prob.1, prob.2`: how pandas names columns that had one name, in their order."""
    first = min(names, key=len)
    expected = [first, *(f"{first}.{place}" for place in range(1, len(names)))]
    return expected if len(names) > 1 and set(expected) == set(names) else None


def _are_labels(suffixes: list[str], sample: TableSample | None, label: str | None) -> bool:
    """Whether the labels are names of these classes."""
    values = sample.labels(label) if sample is not None and label is not None else frozenset[str]()
    return bool(values) and values <= set(suffixes)


def _doubtful(others: list[str], chosen: list[str], suffixes: list[str], sample: TableSample | None) -> bool:
    """Whether other columns of numbers may be the scores just as well."""
    if sample is None or number_suffixes(suffixes) is not None:
        return False
    kept = {*chosen, *ROW_NUMBER_NAMES, *OTHER_DATA_NAMES}
    rest = [name for name in others if name not in kept and name.lower() not in kept and sample.is_number(name)]
    probability_columns = columns_summing_to_one(sample, chosen)
    return bool(rest) and (probability_columns is None or len(probability_columns) < len(chosen))


def _check_one_model(path: Path, chosen: list[str], suffixes: list[str], sample: TableSample | None) -> None:
    """Refuse the scores of two models in one table: `logits_a_0, logits_a_1, logits_b_0, logits_b_1`."""
    heads = _heads(suffixes)
    if heads is None:
        return
    probability_columns = columns_summing_to_one(sample, chosen)
    if probability_columns is not None and len(probability_columns) == len(chosen):
        return  # together they are the probabilities of one model
    starts = sorted(
        {name[: name.rindex(suffix) + len(head)] for name, suffix, head in zip(chosen, suffixes, heads, strict=True)}
    )
    raise file_error(
        path,
        f"columns {listing(chosen, 3)} may be the scores of {len(starts)} models: their names begin with "
        f"{listing(starts, 4)}",
        f"choose one with --scores-key {shlex.quote(starts[0])}",
    )


def _heads(suffixes: Sequence[str]) -> list[str] | None:
    """The beginning of each suffix, where the suffixes are every beginning with every end: a_0, a_1, b_0, b_1; or
    where those of every beginning are numbered without gaps: a0, a1, b0, b1, b2."""
    patterns = (r"(.*[_.\- ])([^_.\- ]+)", r"([^_.\- ]+[_.\- ])(.*)")
    for pattern in patterns:
        found = [re.fullmatch(pattern, suffix, re.DOTALL) for suffix in suffixes]
        pairs = [(match[1], match[2]) for match in found if match]
        heads, ends = {head for head, _ in pairs}, {end for _, end in pairs}
        if len(pairs) == len(suffixes) == len(heads) * len(ends) and min(len(heads), len(ends)) > 1:
            return [head for head, _ in pairs]
    numbered = [re.fullmatch(r"(.*?)(\d{1,9})", suffix, re.DOTALL | re.ASCII) for suffix in suffixes]
    groups: dict[str, list[int]] = {}
    for match in numbered:
        if match is None:
            return None
        groups.setdefault(match[1], []).append(int(match[2]))
    whole = all(len(numbers) > 1 and _without_gaps(numbers) for numbers in groups.values())
    return [match[1] for match in numbered if match] if whole and len(groups) > 1 else None


def _without_gaps(numbers: Sequence[int]) -> bool:
    """Whether these are 0, 1, 2, … or 1, 2, 3, … in some order."""
    first = min(numbers)
    return first <= 1 and sorted(numbers) == list(range(first, first + len(numbers)))


def _is_digits(text: str) -> bool:
    return bool(re.fullmatch(r"\d{1,9}", text, re.ASCII))


def unprefixed_columns(
    path: Path,
    names: Sequence[str],
    others: list[str],
    label: str | None,
    options: ReadOptions,
    sample: TableSample | None,
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
        raise single_score_column(path, pool[0])
    if len(pool) < 2:
        raise no_score_columns(path, names, texts, sample)
    likely = [name for name in pool if name.lower() not in OTHER_DATA_NAMES]
    values = sample.labels(label) if sample is not None and label is not None else frozenset[str]()
    probability_columns = columns_summing_to_one(sample, likely) or []

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
        if len(chosen) == len(pool) or set(probability_columns) == set(chosen) or len(alike) == len(chosen):
            return take(chosen, classes)
        if set(probability_columns) > set(chosen):  # classes that no row is labelled as
            return take(probability_columns, [name.removeprefix(prefix) for name in probability_columns])
        raise ambiguous_columns(
            path, _doubt(pool, chosen), chosen if _known(pool, chosen) else None, label, names, options.needs_labels
        )
    group = _numbered(pool)
    if group is not None:
        chosen, classes = group
        kept = set(chosen)
        if not any(name not in kept for name in likely) or set(probability_columns) == kept:
            return take(chosen, classes, numbered=True)
    if probability_columns:
        return take(probability_columns, probability_columns)
    if options.needs_labels and len(likely) == len(pool) and _foreign(values, pool):
        return take(pool, pool)
    plausible = len(likely) == len(values) > 1 and len(likely) < len(pool) and _overlap(sample, likely)
    problem = _doubt(pool, likely if len(likely) > 1 else pool)
    raise ambiguous_columns(path, problem, likely if plausible else None, label, names, options.needs_labels)


def _doubt(pool: list[str], chosen: list[str]) -> str:
    kept = set(chosen)
    strays = [name for name in pool if name not in kept]
    if strays:
        return f"it is not clear whether {listing(strays, 4)} is a class beside {listing(chosen, 4)}"
    return f"it is not clear whether {listing(chosen, 4)} are the scores of the classes"


def _known(pool: list[str], chosen: list[str]) -> bool:
    """Whether every column beside the chosen ones has the name of something else."""
    kept = set(chosen)
    return all(name.lower() in OTHER_DATA_NAMES for name in pool if name not in kept)


def _overlap(sample: TableSample | None, names: list[str]) -> bool:
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
    return any(value not in known and not is_number(value) for value in values)
