"""Tables whose score columns begin with a scores word: `logits_0, logits_1` or `prob_cat, prob_dog`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from avuc.evaluation.files.columns import (
    ASIDE,
    SCORE_PREFIXES,
    SUSPECTS,
    Columns,
    Sample,
    begins,
    number_suffixes,
    ordered_classes,
    suffix_of,
)
from avuc.evaluation.files.names import Wanted, listing, refuse
from avuc.evaluation.files.probability_columns import summing_columns
from avuc.evaluation.files.refusals import unclear

__all__ = ["pick_prefixed"]

# words that other columns have too: the results of exams, score_math and score_reading
WEAK = ("predictions", "scores", "score")


def pick_prefixed(
    path: Path, others: list[str], wanted: Wanted, sample: Sample | None, label: str | None
) -> Columns | None:
    """The columns that begin with the scores key or a scores word; None where no word fits."""
    key = wanted.scores_key
    groups: list[tuple[str, list[str]]] = []
    for prefix in [key] if key is not None else list(SCORE_PREFIXES):
        some = [name for name in others if (name.startswith(prefix) if key is not None else begins(name, prefix))]
        lists = [name for name in some if name == prefix and sample is not None and sample.is_list(name)]
        # one number in each row is a confidence, not the scores of every class
        if len(some) > 1 or (some and (sample is None or sample.is_list(some[0]) or key is not None)):
            groups.append((prefix, lists or some))
    if not groups:
        if key is not None:
            raise refuse(path, f"no column begins with {key!r} (it has {listing(others)})", "correct --scores-key")
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
    _refuse_strays(path, others, chosen, suffixes, label, wanted)
    numbered = all(_is_number(suffix) for suffix in suffixes)
    if numbered or len(chosen) < 2:
        ordered, classes = ordered_classes(path, chosen, suffixes)
        return Columns(ordered, word, classes, label, notes)
    named = _are_labels(suffixes, sample, label)
    if not named and prefix in WEAK and _doubtful(others, chosen, suffixes, sample):
        return None
    if not named:
        _refuse_families(path, chosen, suffixes, sample)
        numbers = number_suffixes(suffixes)
        if numbers is not None and (numbers != sorted(numbers) or _without_gaps(numbers)):
            suffixes = [str(number) for number in numbers]
    ordered, classes = ordered_classes(path, chosen, suffixes)
    return Columns(ordered, word, classes, label, notes)


def _refuse_strays(
    path: Path, others: list[str], chosen: list[str], suffixes: list[str], label: str | None, wanted: Wanted
) -> None:
    """Refuse `logits_max` beside `logits_0, logits_1`, and `prob_max` beside `prob_cat, prob_dog`."""
    if len(chosen) < 2:
        return
    numbered = [_is_number(suffix) for suffix in suffixes]
    doubtful = [suffix.lower() in SUSPECTS for suffix in suffixes]
    if (any(numbered) and not all(numbered)) or any(doubtful):
        keep = numbered if any(numbered) else [not one for one in doubtful]
        good = [name for name, one in zip(chosen, keep, strict=True) if one]
        strays = [name for name, one in zip(chosen, keep, strict=True) if not one]
        problem = f"{listing(strays, 4)} may not be a class beside {listing(good, 3)}"
        raise unclear(path, problem, good if len(good) > 1 else None, label, others, wanted)


def _numbered_by_pandas(names: list[str]) -> list[str] | None:
    """`prob, prob.1, prob.2`: how pandas names columns that had one name, in their order."""
    first = min(names, key=len)
    expected = [first, *(f"{first}.{place}" for place in range(1, len(names)))]
    return expected if len(names) > 1 and set(expected) == set(names) else None


def _are_labels(suffixes: list[str], sample: Sample | None, label: str | None) -> bool:
    """Whether the labels are names of these classes."""
    values = sample.labels(label) if sample is not None and label is not None else frozenset[str]()
    return bool(values) and values <= set(suffixes)


def _doubtful(others: list[str], chosen: list[str], suffixes: list[str], sample: Sample | None) -> bool:
    """Whether other columns of numbers may be the scores just as well."""
    if sample is None or number_suffixes(suffixes) is not None:
        return False
    kept = {*chosen, *ASIDE, *SUSPECTS}
    rest = [name for name in others if name not in kept and name.lower() not in kept and sample.is_number(name)]
    shares = summing_columns(sample, chosen)
    return bool(rest) and (shares is None or len(shares) < len(chosen))


def _refuse_families(path: Path, chosen: list[str], suffixes: list[str], sample: Sample | None) -> None:
    """Refuse the scores of two models in one table: `logits_a_0, logits_a_1, logits_b_0, logits_b_1`."""
    heads = _heads(suffixes)
    if heads is None:
        return
    shares = summing_columns(sample, chosen)
    if shares is not None and len(shares) == len(chosen):
        return  # together they are the probabilities of one model
    starts = sorted(
        {name[: name.rindex(suffix) + len(head)] for name, suffix, head in zip(chosen, suffixes, heads, strict=True)}
    )
    raise refuse(
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


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"\d{1,9}", text, re.ASCII))
