"""What scores and labels must be, whatever file they came from: decisions from facts, never from a whole array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.evaluation.files.kinds import decide_kind
from avuc.evaluation.files.messages import BINARY_REMEDY, file_error, listing
from avuc.evaluation.files.names import EXACT_RANGE, RawScores
from avuc.evaluation.files.summary import LabelSummary, ScoreSummary, Summary

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
        if self.kind == "logits":
            return _in_float32(torch.as_tensor(block))
        scores = torch.as_tensor(block).to(torch.float32).contiguous().clamp_min(0)
        return scores / scores.sum(-1, keepdim=True)

    def labels(self, block: Any) -> Tensor:
        """A block of labels as class numbers 0 … C-1, int64."""
        labels = torch.as_tensor(block).to(torch.int64)
        if self.label_numbers is None:
            return labels - self.first_label
        order = torch.tensor(self.label_numbers).argsort()
        known = torch.tensor(self.label_numbers)[order]
        return order[torch.searchsorted(known, labels)]


def _in_float32(logits: Tensor) -> Tensor:
    """Logits in float32. Rows far from 0, such as log-likelihoods near -1e7, are shifted first so that their largest
    logit is 0: that changes no probability, and float32 would round the differences away."""
    kept = logits.to(torch.float32).contiguous()
    if logits.dtype.itemsize < 4 or logits.dtype == torch.float32:
        return kept
    far = kept.amax(-1).abs() > EXACT_RANGE
    if bool(far.any()):
        rows = logits[far].double()
        kept = kept.clone() if kept is logits else kept
        kept[far] = (rows - rows.amax(-1, keepdim=True)).to(torch.float32)
    return kept


def decide(path: Path, raw: RawScores, facts: Summary, kind: str = "auto", first_label: int | None = None) -> Decision:
    """Logits, probabilities or percentages; labels from 0 or from 1; or an `InputError` that says what is unclear.

    Args:
        path: the file, for messages.
        raw: where the scores and labels are in it and what they are called; its arrays are not used.
        facts: of all rows.
        kind: `auto`, `logits`, `probs` or `percent`.
        first_label: the label of the first class, 0 or 1, or None to find out.
    """
    check_finite(path, raw, facts.scores)
    kind, scale, notes = decide_kind(path, raw, facts.scores, kind)
    if facts.labels is None:
        return Decision(kind, scale, notes=tuple(notes))
    first, numbers, more = decide_labels(path, raw, facts.labels, facts.scores.classes, first_label)
    return Decision(kind, scale, first, numbers, (*notes, *more))


def check_score_shape(path: Path, where: str, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Refuse scores of a shape or type that cannot be read."""
    shape = tuple(shape)
    if dtype == torch.bool or dtype.is_complex:
        raise file_error(path, f"{where} holds {dtype}, not scores", "save logits or probabilities")
    if len(shape) not in (2, 3):
        remedy = (
            f"save one column per class; {BINARY_REMEDY}" if len(shape) < 2 else "save (N, C), or (S, N, C) for S draws"
        )
        raise file_error(path, f"{where} has shape {shape}, expected (N, C) or (S, N, C)", remedy)
    if 0 in shape:
        raise file_error(path, f"{where} is empty: shape {shape}", "save at least one row")
    if shape[-1] < 2 and len(shape) == 3 and shape[1] > 1:
        raise file_error(path, f"{where} has shape {shape}, expected (N, C) or (S, N, C)", "save scores.squeeze(-1)")
    if shape[-1] < 2:
        raise file_error(path, f"{where} has one column: shape {shape}", BINARY_REMEDY)


def check_label_shape(
    path: Path, where: str, shape: Sequence[int], dtype: torch.dtype, scores_shape: Sequence[int]
) -> None:
    """Refuse labels that are not one whole number per row; (N, 1) counts as (N)."""
    rows, shape = scores_shape[-2], tuple(shape)
    if shape == (1, rows) and rows > 1:
        raise file_error(path, f"{where} have shape {shape}, expected ({rows},)", "save labels.reshape(-1)")
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == 1):
        remedy = "save one label per row"
        if len(shape) == 2:
            remedy = "save class numbers: of one-hot labels, labels.argmax(1); several labels per row are not supported"
        raise file_error(path, f"{where} have shape {shape}, expected ({rows},)", remedy)
    if shape[0] != rows:
        raise file_error(
            path, f"{rows:,} rows of scores but {shape[0]:,} {where}", _axes(shape[0], tuple(scores_shape))
        )
    if dtype == torch.bool or dtype.is_complex:
        raise file_error(path, f"{where} are {dtype}", "save whole class numbers 0 … C−1")


def _axes(labels: int, shape: tuple[int, ...]) -> str:
    """What to do about scores of a shape whose rows are not as many as the labels."""
    if len(shape) == 2 and shape[1] == labels:
        return f"transpose the scores of shape {shape}: save scores.T"
    if len(shape) == 3 and shape[2] == labels:
        return f"save (S, N, C) instead of {shape}: scores.transpose(0, 2, 1)"
    if len(shape) == 3 and shape[0] == labels:
        return (
            f"put the draws first, (S, N, C) instead of {shape}: scores.transpose(1, 0, 2) where the draws are second, "
            "scores.transpose(2, 0, 1) where they are last"
        )
    return "save one label per row"


def check_finite(path: Path, raw: RawScores, facts: ScoreSummary) -> None:
    if facts.bad is not None:
        row, column, value = facts.bad
        raise file_error(
            path,
            f"{raw.scores_from} holds {value} at row {row}, class {column} "
            f"({facts.nan + facts.infinite:,} such values)",
            "drop these rows or repair the model; every score must be a finite float32 number",
        )


def decide_labels(
    path: Path, raw: RawScores, facts: LabelSummary, classes: int, first_label: int | None = None
) -> tuple[int, tuple[int, ...] | None, list[str]]:
    """The label of the first class, the label of every class where these are not consecutive, and notes."""
    where = f"labels from {raw.labels_from}"
    if facts.not_whole is not None:
        row, value = facts.not_whole
        raise file_error(path, f"{where} are not whole: {value:g} at row {row}", _other_labels(value))
    if raw.labels_named:  # looked up among the names of the classes
        return 0, None, []
    numbers = _numbers(raw.class_names)
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
            raise file_error(
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
    path: Path, where: str, facts: LabelSummary, classes: int, numbers: tuple[int, ...]
) -> tuple[int, tuple[int, ...] | None, list[str]]:
    """Columns that were listed in an order of their own, or with gaps in their numbers."""
    named = facts.values is not None and set(facts.values) <= set(numbers)
    placed = facts.low >= 0 and facts.high < classes
    if named and placed:
        raise file_error(
            path,
            f"{where} may be the numbers of the columns ({listing(map(str, numbers), 5)}) or their places",
            "pass --first-label 0 for places, or list the columns in the order of their numbers",
        )
    if named:
        return 0, numbers, []
    _check_range(path, where, facts, classes, 0)
    return 0, None, []


def _other_labels(value: float) -> str:
    leave = ", leave out the rows without a label," if value != value else ""
    return f"save class numbers 0 … C−1{leave} or name other labels with --label"


def _check_range(path: Path, where: str, facts: LabelSummary, classes: int, first: int) -> None:
    last = first + classes - 1
    if facts.low >= first and facts.high <= last:
        return
    outside = [(facts.low_row, facts.low)] * (facts.low < first) + [(facts.high_row, facts.high)] * (facts.high > last)
    row, value = min(outside)
    hint = f"{classes} score columns allow {first} … {last}"
    if facts.values == (-1, 1) and classes == 2:
        hint += "; save 0 instead of −1"
    elif facts.low < 0:
        hint += "; leave out the rows without a label"
    if first == 0 and facts.low == 1 and facts.high == classes:
        hint = "subtract 1: classes count from 0; or pass --first-label 1"
    raise file_error(path, f"{where} are out of range: {value:.0f} at row {row}", hint)


def _numbers(names: Sequence[str] | None) -> tuple[int, ...] | None:
    """The classes' numbers, where every class is named by one."""
    if names is None or not all(name.isascii() and name.isdecimal() and len(name) <= 9 for name in names):
        return None
    return tuple(int(name) for name in names)
