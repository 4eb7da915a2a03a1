"""Rules that find the score columns of a table from the start of their names and the first rows.

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
    columns_summing_to_one,
    number_suffixes,
    ordered_classes,
    suffix_of,
)
from avuc.evaluation.files.messages import ambiguous_columns, file_error, listing, two_models
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
    values = label_values(sample, label)
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


def label_values(sample: TableSample | None, label: str | None) -> frozenset[str]:
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
