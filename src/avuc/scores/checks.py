"""What scores and labels must be, whatever file they came from: decisions from facts, never from a whole array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.scores.facts import Facts, LabelFacts, ScoreFacts
from avuc.scores.names import Found, listing, refuse

__all__ = ["Decision", "check_label_shape", "check_score_shape", "decide", "decide_kind", "decide_labels"]

# rows of probabilities that were rounded when they were saved still count as probabilities
SUM_TOLERANCE = 1e-2
SUM_NOTE = 1e-4
NEGATIVE_TOLERANCE = 1e-6
# percentages are often rounded to whole numbers
PERCENT_TOLERANCE = 5.0
# with this many rows per class, a class 0 without a row is worth a note
ROWS_PER_CLASS = 10


@dataclass(frozen=True)
class Decision:
    """How every block of a file is to be read."""

    kind: str  # logits or probs
    scale: float = 1.0  # what a certain probability is in the file: 100 for percentages
    first_label: int = 0  # the label of the first class
    label_numbers: tuple[int, ...] | None = None  # the label of each class, where they are not consecutive
    notes: tuple[str, ...] = ()

    def scores(self, block: Any) -> Tensor:
        """A block of scores in float32; probabilities are divided by their sum."""
        scores = torch.as_tensor(block).to(torch.float32).contiguous()
        if self.kind == "logits":
            return scores
        scores = scores.clamp_min(0)
        return scores / scores.sum(-1, keepdim=True)

    def labels(self, block: Any) -> Tensor:
        """A block of labels as class numbers 0 … C-1, int64."""
        labels = torch.as_tensor(block).to(torch.int64)
        if self.label_numbers is None:
            return labels - self.first_label
        order = torch.tensor(self.label_numbers).argsort()
        known = torch.tensor(self.label_numbers)[order]
        return order[torch.searchsorted(known, labels)]


def decide(path: Path, found: Found, facts: Facts, kind: str = "auto", first_label: int | None = None) -> Decision:
    """Logits, probabilities or percentages; labels from 0 or from 1; or an `InputError` that says what is unclear.

    Args:
        path: the file, for messages.
        found: where the scores and labels are in it and what they are called; its arrays are not used.
        facts: of all rows.
        kind: `auto`, `logits`, `probs` or `percent`.
        first_label: the label of the first class, 0 or 1, or None to find out.
    """
    check_finite(path, found, facts.scores)
    kind, scale, notes = decide_kind(path, found, facts.scores, kind)
    if facts.labels is None:
        return Decision(kind, scale, notes=tuple(notes))
    first, numbers, more = decide_labels(path, found, facts.labels, facts.scores.classes, first_label)
    return Decision(kind, scale, first, numbers, (*notes, *more))


def check_score_shape(path: Path, where: str, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Refuse scores of a shape or type that cannot be read."""
    shape = tuple(shape)
    if dtype == torch.bool or dtype.is_complex:
        raise refuse(path, f"{where} holds {dtype}, not scores", "save logits or probabilities")
    if len(shape) not in (2, 3):
        remedy = (
            "save one column per class; for a binary model stack [1 − p, p]"
            if len(shape) < 2
            else "save (N, C), or (S, N, C) for Monte Carlo draws"
        )
        raise refuse(path, f"{where} has shape {shape}, expected (N, C) or (S, N, C)", remedy)
    if 0 in shape:
        raise refuse(path, f"{where} is empty: shape {shape}", "save at least one row")
    if shape[-1] < 2:
        raise refuse(path, f"{where} has one column: shape {shape}", "for a binary model save both columns [1 − p, p]")


def check_label_shape(
    path: Path, where: str, shape: Sequence[int], dtype: torch.dtype, scores_shape: Sequence[int]
) -> None:
    """Refuse labels that are not one whole number per row; (N, 1) counts as (N)."""
    rows, shape = scores_shape[-2], tuple(shape)
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == 1):
        remedy = "save class numbers, for example one_hot.argmax(1)" if len(shape) == 2 else "save one label per row"
        raise refuse(path, f"{where} have shape {shape}, expected ({rows},)", remedy)
    if shape[0] != rows:
        swapped = len(scores_shape) == 3 and shape[0] == scores_shape[0]
        raise refuse(
            path,
            f"{rows:,} rows of scores but {shape[0]:,} {where}",
            "put the draws first: scores.transpose(1, 0, 2)" if swapped else "save one label per row",
        )
    if dtype == torch.bool or dtype.is_complex:
        raise refuse(path, f"{where} are {dtype}", "save whole class numbers 0 … C−1")


def check_finite(path: Path, found: Found, facts: ScoreFacts) -> None:
    if facts.bad is not None:
        row, column, value = facts.bad
        raise refuse(
            path,
            f"{found.scores_from} holds {value} at row {row}, class {column} "
            f"({facts.nan + facts.infinite:,} such values)",
            "drop these rows or repair the model; every score must be a finite float32 number",
        )


def decide_kind(path: Path, found: Found, facts: ScoreFacts, kind: str) -> tuple[str, float, list[str]]:
    """Logits or probabilities, and what a certain probability is in the file: as asked, else by name or by values."""
    positive = facts.low >= -NEGATIVE_TOLERANCE
    looks = positive and facts.off(1)[0] <= SUM_TOLERANCE
    percent = positive and facts.off(100)[0] <= PERCENT_TOLERANCE
    notes: list[str] = []
    if kind == "auto":
        named = found.name if found.name in ("logits", "probs") else None
        if percent and named != "logits":
            raise refuse(
                path,
                f"{found.scores_from} may hold percentages: every row sums to about 100",
                "pass --kind percent, or --kind logits if these are logits",
            )
        if named is None and positive and facts.high <= 1 and not looks:
            _, row, total = facts.off(1)
            raise refuse(
                path,
                f"{found.scores_from} holds only numbers from 0 to 1, but row {row} sums to {total:.6g}: these are "
                "neither clearly probabilities nor clearly logits",
                "divide every row by its sum if these are probabilities, or pass --kind logits",
            )
        kind = named or ("probs" if looks else "logits")
        if kind == "logits" and looks:
            notes.append("named 'logits', but every row sums to 1: if these are probabilities, pass --kind probs")
        if kind == "logits" and percent:
            notes.append(
                "named 'logits', but every row sums to about 100: if these are percentages, pass --kind percent"
            )
    if kind == "logits":
        return kind, 1.0, notes
    scale, tolerance = (100.0, PERCENT_TOLERANCE) if kind == "percent" else (1.0, SUM_TOLERANCE)
    worst, row, total = facts.off(scale)
    what = "percentages" if kind == "percent" else "probabilities"
    other = "; pass --kind percent if these are percentages" if percent else ""
    remedy = f"pass --kind logits if these are logits, else save softmax outputs{other}"
    if worst > tolerance:
        problem = f"row {row} sums to {total:.6g}, not {scale:g}"
        raise refuse(path, f"{found.scores_from} should hold {what}, but {problem}", remedy)
    if not positive:
        problem = f"row {facts.low_row} holds a negative probability, {facts.low:.3g}"
        raise refuse(path, f"{found.scores_from} should hold {what}, but {problem}", remedy)
    if worst > SUM_NOTE * scale:
        notes.append(f"rows sum to {scale:g} only within {worst:.1g}; each was divided by its sum")
    return "probs", scale, notes


def decide_labels(
    path: Path, found: Found, facts: LabelFacts, classes: int, first_label: int | None = None
) -> tuple[int, tuple[int, ...] | None, list[str]]:
    """The label of the first class, the label of every class where these are not consecutive, and notes."""
    where = f"labels from {found.labels_from}"
    if facts.not_whole is not None:
        row, value = facts.not_whole
        raise refuse(path, f"{where} are not whole: {value:g} at row {row}", "save class numbers 0 … C−1")
    if found.labels_named:  # looked up among the names of the classes
        return 0, None, []
    numbers = _numbers(found.class_names)
    if first_label is not None:
        _check_range(path, where, facts, classes, first_label)
        return first_label, None, []
    consecutive = numbers is None or numbers == tuple(range(numbers[0], numbers[0] + classes))
    if numbers is not None and (not consecutive or numbers[0] > 1):
        return _decide_by_number(path, where, facts, classes, numbers)
    notes: list[str] = []
    first = 0 if numbers is None else numbers[0]
    if first == 1 and facts.low == 0:
        first = 0
        notes.append("the score columns are numbered from 1, but some labels are 0: labels were counted from 0")
    _check_range(path, where, facts, classes, first)
    if facts.low >= 1 and facts.high < classes:
        counts = facts.right_from_0, facts.right_from_1
        if counts[1 - first] > counts[first]:
            shares = [f"{100 * count / facts.rows:.3g} %" for count in counts]
            raise refuse(
                path,
                f"{where} run from {int(facts.low)} to {int(facts.high)} and may count from 0 or from 1 "
                f"(accuracy {shares[0]} or {shares[1]})",
                f"pass --first-label {1 - first}, or --first-label {first}",
            )
        if first == 0 and facts.rows >= ROWS_PER_CLASS * classes:
            notes.append("no row has label 0; labels were counted from 0 (if they count from 1, pass --first-label 1)")
    if first == 1:
        notes.append("labels were counted from 1, like the score columns")
    return first, None, notes


def _decide_by_number(
    path: Path, where: str, facts: LabelFacts, classes: int, numbers: tuple[int, ...]
) -> tuple[int, tuple[int, ...] | None, list[str]]:
    """Columns that were listed in an order of their own, or with gaps in their numbers."""
    named = facts.values is not None and set(facts.values) <= set(numbers)
    placed = facts.low >= 0 and facts.high < classes
    if named and placed:
        raise refuse(
            path,
            f"{where} may be the numbers of the columns ({listing(map(str, numbers), 5)}) or their places",
            "pass --first-label 0 for places, or list the columns in the order of their numbers",
        )
    if named:
        return 0, numbers, []
    _check_range(path, where, facts, classes, 0)
    return 0, None, []


def _check_range(path: Path, where: str, facts: LabelFacts, classes: int, first: int) -> None:
    last = first + classes - 1
    if facts.low >= first and facts.high <= last:
        return
    outside = [(facts.low_row, facts.low)] * (facts.low < first) + [(facts.high_row, facts.high)] * (facts.high > last)
    row, value = min(outside)
    hint = f"{classes} score columns allow {first} … {last}"
    if first == 0 and facts.low == 1 and facts.high == classes:
        hint = "subtract 1: classes count from 0; or pass --first-label 1"
    raise refuse(path, f"{where} are out of range: {value:.0f} at row {row}", hint)


def _numbers(names: Sequence[str] | None) -> tuple[int, ...] | None:
    """The classes' numbers, where every class is named by one."""
    if names is None or not all(name.isascii() and name.isdecimal() and len(name) <= 9 for name in names):
        return None
    return tuple(int(name) for name in names)
