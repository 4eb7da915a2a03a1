"""One number per row: decide whether it is a probability or a logit, and which label it stands for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from avuc.evaluation.files.decision.summary import LabelSummary, ScoreSummary, Summary
from avuc.evaluation.files.messages import file_error, listing, quoted
from avuc.evaluation.files.names import RawScores

TOLERANCE = 1e-6
# with fewer rows, it may be chance that every number is at least 0.5
MANY_ROWS = 10
ONE_COLUMN_EACH = "save one column per class, (N, C)"


def decide_binary_kind(path: Path, raw: RawScores, summary: ScoreSummary, kind: str) -> tuple[str, float, list[str]]:
    """Return "logits" or "probs", the number that stands for probability 1, and notes; ambiguous numbers are refused.

    Args:
        path: the file, for messages.
        raw: where the scores were found and their name.
        summary: of all rows.
        kind: `auto`, `logits`, `probs` or `percent`.
    """
    where, low, high = raw.scores_from, summary.low, summary.high
    share = low >= -TOLERANCE and high <= 1 + TOLERANCE
    if kind == "auto":
        kind = _by_name_and_values(path, where, summary, raw.name, share)
    elif kind == "logits" and share:
        return kind, 1.0, ["read as logits, as requested, although every number is from 0 to 1, like probabilities"]
    if kind == "logits":
        return kind, 1.0, []
    scale = 100.0 if kind == "percent" else 1.0
    if low < -TOLERANCE or high > scale * (1 + TOLERANCE):
        value = low if low < -TOLERANCE else high
        remedy = "pass --kind logits if these are logits"
        if low >= -TOLERANCE and high <= 100 and kind == "probs":
            remedy = f"pass --kind percent if these are percentages, or {remedy[5:]}"
        problem = f"{where} should contain probabilities of class 1 from 0 to {scale:g}, but has {value:.6g}"
        raise file_error(path, problem, remedy)
    return "probs", scale, []


def _by_name_and_values(path: Path, where: str, summary: ScoreSummary, name: str, share: bool) -> str:
    low, high = summary.low, summary.high
    if summary.digits == 0 and name != "probs":
        problem = f"{where} has one whole number per row, which may be the predicted class"
        kinds = "--kind probs if these are probabilities of class 1" if share else "--kind logits if these are logits"
        raise file_error(path, problem, f"{ONE_COLUMN_EACH}, or pass {kinds}")
    if name == "logits" and share:
        problem = f"{where} should contain logits, but every number is from 0 to 1, like probabilities"
        raise file_error(path, problem, "pass --kind probs, or --kind logits if these are logits")
    if (share or name == "probs") and low >= 0.5 and summary.rows >= MANY_ROWS and high <= 1 + TOLERANCE:
        problem = f"{where} may contain confidences of the predicted class: every number is at least 0.5"
        raise file_error(
            path, problem, f"pass --kind probs if these are probabilities of class 1, or {ONE_COLUMN_EACH}"
        )
    if name in ("logits", "probs"):
        return name
    if share:
        return "probs"
    if low < 0 < high:
        raise file_error(
            path,
            f"{where} may contain logits or margins: its numbers go from {low:.6g} to {high:.6g}",
            "pass --kind logits if these are the log-odds of class 1; margins of a support vector machine are not",
        )
    if low >= 0 and high <= 100:
        remedy = "pass --kind percent for probabilities of class 1 in per cent, or --kind logits"
        raise file_error(path, f"{where} may contain percentages or logits: its numbers go up to {high:.6g}", remedy)
    what = "odds, counts or logits" if low >= 0 else "logarithms of probabilities, or logits"
    raise file_error(
        path,
        f"{where} may contain {what}: its numbers go from {low:.6g} to {high:.6g}",
        "save the probability of class 1, or pass --kind logits if these are its log-odds",
    )


def decide_binary_labels(
    path: Path,
    raw: RawScores,
    summary: Summary,
    kind: str,
    first_label: int | None,
    positive: str | None,
    fitted: Sequence[str] | None = None,
) -> tuple[int, tuple[int, ...] | None, list[str]]:
    """Return the label of the first class, the labels of both classes if they are not consecutive, and notes."""
    labels = summary.labels
    assert labels is not None
    where = f"labels from {raw.labels_from}"
    if labels.not_integer is not None:
        row, value = labels.not_integer
        raise file_error(
            path,
            f"{where} are not integers: {value:g} at row {row}",
            "avuc evaluates classifiers, not regression: save class numbers 0 and 1, and remove rows without a label",
        )
    column = (raw.class_names or ("",))[0]
    numbers: tuple[int, ...]
    words = raw.labels_named if isinstance(raw.labels_named, tuple) else None
    values = words or tuple(map(str, labels.values or ()))
    of_fit = None if positive is not None else _classes_of_fit(values, column, fitted)
    if raw.labels_named is True and raw.class_names is not None:  # --classes
        numbers, chosen = (0, 1), quoted(raw.class_names[-1])
        if len(raw.class_names) != 2:
            raise file_error(path, "one number per row has two classes", "name both with --classes: class 0, class 1")
    elif words is not None:
        pair = of_fit or _text_classes(path, where, words, labels, kind, column, positive)
        raw.class_names = pair
        known = {word: code for code, word in enumerate(words)}
        numbers = tuple(known.get(name, len(words)) for name in pair)
        chosen = quoted(pair[1])
    else:
        raw.class_names = None
        numbers = tuple(map(int, of_fit or ()))
        numbers = numbers or _number_classes(path, raw.scores_from, where, labels, column, first_label, positive)
        chosen = str(numbers[1])
    axis = None if raw.layout is None else raw.layout.axis
    if kind == "probs" and axis is not None and summary.scores.low == 1 and labels.values == (numbers[0],):
        problem = f"{raw.scores_from} has one column of 1, and every label is {labels.values[0]}: this may be one class"
        raise file_error(path, problem, "save binary probabilities with the shape (N,)")
    what = "probability" if kind == "probs" else "logit"
    note = f"one number per row was read as the {what} of class {chosen} (--positive chooses the class)"
    return 0, (None if numbers == (0, 1) else numbers), [note]


def _classes_of_fit(values: Sequence[str], column: str, fitted: Sequence[str] | None) -> tuple[str, str] | None:
    """Return the two classes of a fit, the one that the number stands for last; None if the labels are others."""
    if fitted is None or len(fitted) != 2 or not set(values) <= set(fitted):
        return None
    chosen = column if column in fitted else fitted[1]
    return fitted[1 - list(fitted).index(chosen)], chosen


def _text_classes(
    path: Path,
    where: str,
    words: tuple[str, ...],
    labels: LabelSummary,
    kind: str,
    column: str,
    positive: str | None,
) -> tuple[str, str]:
    """Return the names of class 0 and class 1."""
    if len(words) > 2:
        problem = f"{where} have {len(words)} classes ({listing(words, 3)}), but there is one number per row"
        raise file_error(path, problem, ONE_COLUMN_EACH)
    if positive is not None:
        if positive not in words and len(words) == 2:
            raise file_error(path, f"--positive {quoted(positive)} is not among the {where}", f"use {listing(words)}")
        others = [word for word in words if word != positive]
        return (others or ["not " + positive])[0], positive
    if len(words) == 1:
        raise file_error(
            path,
            f"{where} have one class only, {quoted(words[0])}",
            f"pass --positive {shlex.quote(words[0])} if the scores are its own",
        )
    if column in words:
        return words[1 - words.index(column)], column
    right = labels.right_from_0 if kind == "probs" else labels.right_from_1
    if 2 * right < labels.rows:
        shares = [f"{100 * count / labels.rows:.3g} %" for count in (right, labels.rows - right)]
        raise file_error(
            path,
            f"it is unclear whether the scores are those of {quoted(words[1])} or of {quoted(words[0])} "
            f"(accuracy {shares[0]} or {shares[1]})",
            f"pass --positive {shlex.quote(words[1])} or --positive {shlex.quote(words[0])}",
        )
    return words[0], words[1]


def _number_classes(
    path: Path,
    scores: str,
    where: str,
    labels: LabelSummary,
    column: str,
    first_label: int | None,
    positive: str | None,
) -> tuple[int, int]:
    """Return the labels of class 0 and class 1."""
    values = labels.values or ()
    low, high = int(labels.low), int(labels.high)
    if len(values) > 2 or labels.values is None:
        problem = f"{where} go from {low} to {high}, but {scores} has one number per row, a binary score"
        raise file_error(path, problem, f"{ONE_COLUMN_EACH}; avuc evaluates classifiers, not regression")
    if positive is not None:
        if not positive.lstrip("-").isdecimal() or (len(values) == 2 and int(positive) not in values):
            known = ", ".join(map(str, values))
            raise file_error(path, f"--positive {quoted(positive)} is not among the {where}", f"use one of {known}")
        chosen = int(positive)
        others = [value for value in values if value != chosen]
        return (others[0] if others else 1 - chosen if chosen in (0, 1) else chosen - 1), chosen
    if column == "0":
        raise file_error(
            path, f"{scores} may be the score of class 0 or of class 1", "pass --positive 0 or --positive 1"
        )
    first = 0 if first_label is None else first_label
    if low < first or high > first + 1:
        remedy = f"pass --positive {high}" if len(values) == 2 else "save labels 0 and 1"
        if values == (1, 2):
            remedy = "pass --first-label 1"
        raise file_error(path, f"{where} are {listing(map(str, values))}, not {first} and {first + 1}", remedy)
    return first, first + 1
