"""Rules that find the score columns of a table from their names and the first rows.

A column counts as a score only if that is clear. Otherwise the error shows the options that make it clear.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from avuc.evaluation.files.columns.columns import (
    OTHER_DATA_NAMES,
    ROW_NUMBER_NAMES,
    SCORE_PREFIXES,
    Columns,
    TableSample,
    begins,
    binary_column,
    columns_summing_to_one,
    is_number,
    is_other_data,
    is_row_number,
    no_probabilities,
    no_score_columns,
    number_suffixes,
    ordered_classes,
    ranges_overlap,
    single_score_column,
    suffix_of,
)
from avuc.evaluation.files.messages import ambiguous_columns, file_error, listing, number_hint, two_models
from avuc.evaluation.files.names import ReadOptions

# other columns start with these words too, such as score_math and score_reading
WEAK_PREFIXES = ("predictions", "scores", "score")


def prefixed_columns(
    path: Path, others: list[str], options: ReadOptions, sample: TableSample | None, label: str | None
) -> Columns | None:
    """Return the columns that start with `--scores-key` or a usual name of scores; None if there are none."""
    key = options.scores_key
    groups: list[tuple[str, list[str]]] = []
    for prefix in [key] if key is not None else list(SCORE_PREFIXES):
        matching = [name for name in others if (name.startswith(prefix) if key is not None else begins(name, prefix))]
        lists = [name for name in matching if name == prefix and sample is not None and sample.is_list(name)]
        # a single column of numbers is a confidence, not scores of all classes
        if len(matching) > 1 or (matching and (sample is None or sample.is_list(matching[0]) or key is not None)):
            groups.append((prefix, lists or matching))
    if not groups:
        if key is not None:
            raise file_error(path, f"no column starts with {key!r} (it has {listing(others)})", "correct --scores-key")
        return None
    prefix, chosen = groups[0]
    suffixes = [suffix_of(name, prefix) for name in chosen]
    kind_name = next((SCORE_PREFIXES[known] for known in SCORE_PREFIXES if begins(prefix, known)), "")
    notes: tuple[str, ...] = ()
    if len(groups) > 1 and set(groups[1][1]) - set(chosen):
        notes = (f"the table also contains {listing(groups[1][1], 3)}; --scores-key chooses the scores",)
    repeated = _numbered_by_pandas(chosen)
    if repeated is not None:
        return Columns(tuple(repeated), kind_name, tuple(map(str, range(len(repeated)))), label, notes)
    values = _label_values(sample, label)
    if values != set(suffixes):  # prob_1, prob_2, prob_3+ with labels 1, 2, 3+ are clear
        _check_strays(path, others, chosen, suffixes, label, options)
    numbered = all(_is_digits(suffix) for suffix in suffixes)
    if numbered or len(chosen) < 2:
        ordered, classes = ordered_classes(path, chosen, suffixes)
        return Columns(ordered, kind_name, classes, label, notes)
    named = bool(values) and values <= set(suffixes)
    if not named and prefix in WEAK_PREFIXES and _others_fit_too(others, chosen, suffixes, sample):
        return None
    if not named:
        _check_one_model(path, chosen, suffixes, sample)
        numbers = number_suffixes(suffixes)
        if numbers is not None and (numbers != sorted(numbers) or _without_gaps(numbers)):
            suffixes = [str(number) for number in numbers]
    ordered, classes = ordered_classes(path, chosen, suffixes)
    return Columns(ordered, kind_name, classes, label, notes)


def _check_strays(
    path: Path, others: list[str], chosen: list[str], suffixes: list[str], label: str | None, options: ReadOptions
) -> None:
    """Raise for `logits_max` next to `logits_0, logits_1`, and for `prob_max` next to `prob_cat, prob_dog`."""
    if len(chosen) < 2:
        return
    numbered = [_is_digits(suffix) for suffix in suffixes]
    other_data = [suffix.lower() in OTHER_DATA_NAMES for suffix in suffixes]
    if (any(numbered) and not all(numbered)) or any(other_data):
        keep = numbered if any(numbered) else [not flag for flag in other_data]
        good = [name for name, kept in zip(chosen, keep, strict=True) if kept]
        strays = [name for name, kept in zip(chosen, keep, strict=True) if not kept]
        problem = f"{listing(strays, 4)} may not be a class like {listing(good, 3)}"
        raise ambiguous_columns(path, problem, good if len(good) > 1 else None, label, others, options.needs_labels)


def _numbered_by_pandas(names: list[str]) -> list[str] | None:
    """Return `prob, prob.1, prob.2` in order, which pandas writes for columns of the same name; else None."""
    first = min(names, key=len)
    expected = [first, *(f"{first}.{number}" for number in range(1, len(names)))]
    return expected if len(names) > 1 and set(expected) == set(names) else None


def _label_values(sample: TableSample | None, label: str | None) -> frozenset[str]:
    """Return the distinct labels; none if they are not known."""
    return sample.labels(label) if sample is not None and label is not None else frozenset()


def _others_fit_too(others: list[str], chosen: list[str], suffixes: list[str], sample: TableSample | None) -> bool:
    """Return whether other numeric columns may be scores just as well."""
    if sample is None or number_suffixes(suffixes) is not None:
        return False
    kept = {*chosen, *ROW_NUMBER_NAMES, *OTHER_DATA_NAMES}
    rest = [name for name in others if name not in kept and name.lower() not in kept and sample.is_number(name)]
    probability_columns = columns_summing_to_one(sample, chosen)
    return bool(rest) and (probability_columns is None or len(probability_columns) < len(chosen))


def _check_one_model(path: Path, chosen: list[str], suffixes: list[str], sample: TableSample | None) -> None:
    """Raise if a table has the scores of two models: `logits_a_0, logits_a_1, logits_b_0, logits_b_1`."""
    heads = _heads(suffixes)
    if heads is None:
        return
    probability_columns = columns_summing_to_one(sample, chosen)
    if probability_columns is not None and len(probability_columns) == len(chosen):
        return  # all together are the probabilities of one model
    starts = sorted(
        {name[: name.rindex(suffix) + len(head)] for name, suffix, head in zip(chosen, suffixes, heads, strict=True)}
    )
    raise two_models(path, chosen, starts)


def _heads(suffixes: Sequence[str]) -> list[str] | None:
    """Return the first part of each suffix, if the suffixes are those of several models; else None.

    That is, if every first part occurs with every second part (a_0, a_1, b_0, b_1), or if the suffixes with the same
    first part are numbered without gaps (a0, a1, b0, b1, b2).
    """
    patterns = (r"(.*[_.\- ])([^_.\- ]+)", r"([^_.\- ]+[_.\- ])(.*)")
    for pattern in patterns:
        matches = [re.fullmatch(pattern, suffix, re.DOTALL) for suffix in suffixes]
        pairs = [(match[1], match[2]) for match in matches if match]
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
    """Return whether these are 0, 1, 2, … or 1, 2, 3, … in any order."""
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
    likely = [name for name in pool if name.lower() not in OTHER_DATA_NAMES]
    values = _label_values(sample, label)
    probability_columns = columns_summing_to_one(sample, likely) or []

    def result(chosen: list[str], classes: list[str], *, numbered: bool = False) -> Columns:
        kept = set(chosen)
        left = [name for name in pool if name not in kept]
        notes = [f"column {listing(row_numbers)} was ignored: row numbers"] if row_numbers else []
        if left or texts:
            notes.append(_not_scores([*left, *texts]))
        if numbered:
            ordered, suffixes = ordered_classes(path, chosen, classes)
            return Columns(ordered, "", suffixes, label, tuple(notes))
        return Columns(tuple(chosen), "", tuple(classes), label, tuple(notes))

    named = _named_by_labels(pool, values)
    if len(named) > 1:  # p_cat, p_dog, n_cat, n_dog
        fitting = [fit for fit in named if set(fit[0]) == set(probability_columns)]
        if not fitting:
            starts = [chosen[0].removesuffix(classes[0]) for chosen, classes in named]
            raise two_models(path, [name for chosen, _ in named for name in chosen], starts)
        named = fitting
    if named:
        chosen, classes = named[0]
        prefix = chosen[0].removesuffix(classes[0])
        same_prefix = [name for name in pool if prefix and name.startswith(prefix)]
        # same_prefix: p_cat, p_dog next to a column that does not start with p_
        if len(chosen) == len(pool) or set(probability_columns) == set(chosen) or len(same_prefix) == len(chosen):
            return result(chosen, classes)
        if set(probability_columns) > set(chosen):  # some classes have no labelled row
            return result(probability_columns, [name.removeprefix(prefix) for name in probability_columns])
        raise ambiguous_columns(
            path,
            _doubt_text(pool, chosen),
            chosen if _are_other_data(pool, chosen) else None,
            label,
            names,
            options.needs_labels,
        )
    group = _numbered(pool)
    if group is not None:
        chosen, classes = group
        kept = set(chosen)
        if not any(name not in kept for name in likely) or set(probability_columns) == kept:
            return result(chosen, classes, numbered=True)
    if probability_columns:
        return result(probability_columns, probability_columns)
    if options.needs_labels and len(likely) == len(pool) and _has_unknown_labels(values, pool):
        return result(pool, pool)
    hinted = [name for name in texts if sample is not None and number_hint(sample.text(name))]
    if len(hinted) > 1:
        raise no_score_columns(path, names, hinted, sample)
    if len(single) == 1 and no_probabilities(sample, unknown := [name for name in rest if not is_other_data(name)]):
        problem = f"it is unclear whether only {listing(single)} is a score, or also {listing(unknown, 4)}"
        raise ambiguous_columns(path, problem, single, label, names, options.needs_labels)
    plausible = len(likely) == len(values) > 1 and len(likely) < len(pool) and ranges_overlap(sample, likely)
    problem = _doubt_text(pool, likely if len(likely) > 1 else pool)
    raise ambiguous_columns(path, problem, likely if plausible else None, label, names, options.needs_labels)


def _not_scores(names: list[str]) -> str:
    return f"column {names[0]!r} is not a score" if len(names) == 1 else f"columns {listing(names, 4)} are not scores"


def _doubt_text(pool: list[str], chosen: list[str]) -> str:
    kept = set(chosen)
    strays = [name for name in pool if name not in kept]
    if strays:
        return f"it is unclear whether {listing(strays, 4)} is a class like {listing(chosen, 4)}"
    return f"it is unclear whether {listing(chosen, 4)} are the scores of the classes"


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
