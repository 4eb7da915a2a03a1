"""Check scores and labels of any file, and decide how to read them, from a `Summary` of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.evaluation.files.decision.binary import decide_binary_kind, decide_binary_labels
from avuc.evaluation.files.decision.class_order import columns_name_numbers
from avuc.evaluation.files.decision.kinds import decide_kind
from avuc.evaluation.files.decision.summary import LabelSummary, ScoreSummary, Summary
from avuc.evaluation.files.messages import BINARY_REMEDY, file_error, listing, quoted
from avuc.evaluation.files.names import EXACT_RANGE, RawScores

REGRESSION = "avuc evaluates classifiers, not regression"
# with this many rows per class, a note says if no row has label 0
ROWS_PER_CLASS = 10
# classes that the note on the order of the columns names
MOST_NAMES = 5
# the sum of a row of float32 probabilities may differ from 1 by this much
SUM_ROUNDING = 1e-6


@dataclass(frozen=True)
class Decision:
    """How to read every block of a file."""

    kind: str  # logits or probs
    scale: float = 1.0  # the number that stands for probability 1: 100 for percentages
    first_label: int = 0  # label of the first class
    label_numbers: tuple[int, ...] | None = None  # label of each class, if they are not consecutive
    binary: bool = False  # one number per row, for class 1
    notes: tuple[str, ...] = ()

    def scores(self, block: Any) -> Tensor:
        """Return a block of scores in float32; each row of probabilities is divided by its sum, unless that is 1."""
        tensor = torch.as_tensor(block)
        if self.binary and self.kind == "logits":
            return _in_float32(torch.cat((torch.zeros_like(tensor), tensor), -1))
        if self.binary:
            # 1 − p is taken before p is rounded to float32
            share = (tensor.double() / self.scale).clamp(0, 1)
            return torch.cat((1 - share, share), -1).to(torch.float32)
        if self.kind == "logits":
            return _in_float32(tensor)
        scores = torch.as_tensor(block).to(torch.float32).contiguous().clamp_min(0)
        total = scores.sum(-1, keepdim=True, dtype=torch.float64)
        # a sum of 1 but for rounding: a division would make equal probabilities of two rows different
        total = torch.where((total - 1).abs() <= SUM_ROUNDING, 1.0, total)
        return scores / total.to(torch.float32)

    def labels(self, block: Any) -> Tensor:
        """Return a block of labels as class numbers 0 … C−1, int64."""
        labels = torch.as_tensor(block).to(torch.int64)
        if self.label_numbers is None:
            return labels - self.first_label
        order = torch.tensor(self.label_numbers).argsort()
        known = torch.tensor(self.label_numbers)[order]
        return order[torch.searchsorted(known, labels)]

    def numbers(self, classes: int) -> tuple[int, ...]:
        """Return the label of each class; one score per row has two classes."""
        return self.label_numbers or tuple(range(self.first_label, self.first_label + max(2, classes)))


def _in_float32(logits: Tensor) -> Tensor:
    """Return logits in float32.

    Rows far from 0, such as log-likelihoods near -1e7, are first shifted so that their largest logit is 0. That changes
    no probability; without it float32 would round the differences away.
    """
    result = logits.to(torch.float32).contiguous()
    if logits.dtype.itemsize < 4 or logits.dtype == torch.float32:
        return result
    far = result.amax(-1).abs() > EXACT_RANGE
    if bool(far.any()):
        rows = logits[far].double()
        result = result.clone() if result is logits else result
        result[far] = (rows - rows.amax(-1, keepdim=True)).to(torch.float32)
    return result


def decide(
    path: Path,
    raw: RawScores,
    summary: Summary,
    kind: str = "auto",
    first_label: int | None = None,
    positive: str | None = None,
    fitted: Sequence[str] | None = None,
) -> Decision:
    """Decide the kind of the scores and the first label; raise an `InputError` if that is ambiguous.

    Args:
        path: the file, for messages.
        raw: where the scores and labels are and their names; its arrays are not used.
        summary: of all rows.
        kind: `auto`, `logits`, `probs` or `percent`.
        first_label: label of the first class, 0 or 1; None: decide.
        positive: label of the class that one number per row stands for; None: decide.
        fitted: names of the classes of a fit that the file belongs to.
    """
    check_finite(path, raw, summary.scores)
    binary = summary.scores.classes == 1
    kind, scale, notes = (decide_binary_kind if binary else decide_kind)(path, raw, summary.scores, kind)
    if binary and summary.labels is None:
        # the name of the other class is known to the fit that these scores are matched with (`names_for`)
        raw.positive = (raw.class_names or ("",))[-1] or None
        raw.class_names = raw.class_names if raw.class_names is not None and len(raw.class_names) == 2 else None
    if summary.labels is None:
        return Decision(kind, scale, binary=binary, notes=tuple(notes))
    if binary:
        first, numbers, label_notes = decide_binary_labels(path, raw, summary, kind, first_label, positive, fitted)
    else:
        first, numbers, label_notes = decide_labels(path, raw, summary.labels, summary.scores.classes, first_label)
    return Decision(kind, scale, first, numbers, binary, (*notes, *label_notes))


def check_score_type(path: Path, where: str, dtype: torch.dtype) -> None:
    """Raise for scores that are not real numbers."""
    if dtype == torch.bool or dtype.is_complex:
        raise file_error(path, f"{where} contains {dtype}, not scores", "save logits or probabilities")


def check_score_shape(path: Path, where: str, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raise for scores of an unsupported shape or type."""
    shape = tuple(shape)
    check_score_type(path, where, dtype)
    if len(shape) not in (2, 3):
        remedy = (
            f"save one column per class; {BINARY_REMEDY}"
            if len(shape) < 2
            else "save (N, C), or (S, N, C) for S posterior samples"
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
    """Raise unless there is one label per row; (N, 1) counts as (N)."""
    rows, shape = scores_shape[-2], tuple(shape)
    if shape == (1, rows) and rows > 1:
        raise file_error(path, f"{where} have shape {shape}, expected ({rows},)", "save labels.reshape(-1)")
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == 1):
        remedy = "save one label per row"
        if len(shape) == 2:
            remedy = (
                "save class numbers: of one-hot labels, labels.argmax(1); several labels per row need --task multilabel"
            )
        raise file_error(path, f"{where} have shape {shape}, expected ({rows},)", remedy)
    if shape[0] != rows:
        raise file_error(
            path, f"{rows:,} rows of scores but {shape[0]:,} {where}", _shape_remedy(shape[0], tuple(scores_shape))
        )
    if dtype.is_complex or (dtype == torch.bool and scores_shape[-1] != 2):
        raise file_error(path, f"{where} are {dtype}", "save integer class numbers 0 … C−1")


def _shape_remedy(labels: int, shape: tuple[int, ...]) -> str:
    """Return what to do if the number of rows differs from the number of labels."""
    if len(shape) == 2 and shape[1] == labels:
        return f"transpose the scores of shape {shape}: save scores.T"
    if len(shape) == 3 and shape[2] == labels:
        return f"save (S, N, C) instead of {shape}: scores.transpose(0, 2, 1)"
    if len(shape) == 3 and shape[0] == labels:
        return (
            f"put the samples first, (S, N, C) instead of {shape}: scores.transpose(1, 0, 2) if they are second, "
            "scores.transpose(2, 0, 1) if they are last"
        )
    return "save one label per row"


def check_finite(path: Path, raw: RawScores, summary: ScoreSummary) -> None:
    """Raise if some score is NaN or infinite."""
    if summary.bad is not None:
        row, column, value = summary.bad
        raise file_error(
            path,
            f"{raw.scores_from} contains {value} at row {row}, class {column} "
            f"({summary.nan + summary.infinite:,} in all)",
            "drop these rows or repair the model; every score must be a finite float32 number",
        )


def decide_labels(
    path: Path, raw: RawScores, summary: LabelSummary, classes: int, first_label: int | None = None
) -> tuple[int, tuple[int, ...] | None, list[str]]:
    """Return the label of the first class, the label of every class if they are not consecutive, and notes."""
    where = f"labels from {raw.labels_from}"
    if summary.not_integer is not None:
        row, value = summary.not_integer
        raise file_error(path, f"{where} are not integers: {value:g} at row {row}", _label_remedy(value))
    if raw.labels_named:  # class names, already converted to numbers
        return 0, None, []
    numbers, dense = _class_numbers(raw.class_names), raw.layout is not None and raw.layout.dense
    if first_label is not None:
        _check_range(path, where, summary, classes, first_label, dense)
        return first_label, None, _order_notes(raw, numbers, first_label)
    consecutive = numbers is None or numbers == tuple(range(numbers[0], numbers[0] + classes))
    if numbers is not None and (not consecutive or numbers[0] > 1):
        return _decide_by_number(path, where, summary, classes, numbers)
    notes: list[str] = []
    first = 0 if numbers is None else numbers[0]
    if first == 1 and summary.low == 0:
        first = 0
        notes.append("the score columns are numbered from 1, but some labels are 0; labels were read as starting at 0")
    _check_range(path, where, summary, classes, first, dense)
    if summary.low >= 1 and summary.high < classes:
        counts = summary.right_from_0, summary.right_from_1
        if counts[1 - first] > counts[first]:
            shares = [f"{100 * count / summary.rows:.3g} %" for count in counts]
            raise file_error(
                path,
                f"{where} go from {int(summary.low)} to {int(summary.high)} and may start at 0 or at 1 "
                f"(accuracy {shares[0]} or {shares[1]})",
                f"pass --first-label {1 - first} or --first-label {first}",
            )
        if first == 0 and summary.rows >= ROWS_PER_CLASS * classes:
            notes.append(
                "no row has label 0; labels were read as starting at 0 (pass --first-label 1 if they start at 1)"
            )
    if first == 1:
        notes.append("labels were read as starting at 1, like the score columns")
    return first, None, [*notes, *_order_notes(raw, numbers, first)]


def _order_notes(raw: RawScores, numbers: tuple[int, ...] | None, first: int) -> list[str]:
    """Return the note that numbers as labels are read in the order of columns with names; no other order is known."""
    names = raw.class_names
    if names is None or numbers is not None or not columns_name_numbers(raw):
        return []
    examples = [f"{first + k} is {quoted(name)}" for k, name in enumerate(names[:MOST_NAMES])]
    more = ", …" if len(names) > MOST_NAMES else ""
    return [f"labels are numbers, read in the order of the columns: {', '.join(examples)}{more}"]


def _decide_by_number(
    path: Path, where: str, summary: LabelSummary, classes: int, numbers: tuple[int, ...]
) -> tuple[int, tuple[int, ...] | None, list[str]]:
    """Decide for columns whose numbers have gaps or another order."""
    by_number = summary.values is not None and set(summary.values) <= set(numbers)
    by_position = summary.low >= 0 and summary.high < classes
    if by_number and by_position:
        raise file_error(
            path,
            f"{where} may be the numbers of the columns ({listing(map(str, numbers), 5)}) or their positions",
            "pass --first-label 0 for positions; else save positions, or list columns in the order of their numbers",
        )
    if by_number:
        return 0, numbers, []
    _check_range(path, where, summary, classes, 0)
    return 0, None, []


def _label_remedy(value: float) -> str:
    if value == value:
        return f"{REGRESSION}: save class numbers 0 … C−1, or name other labels with --label"
    return "save class numbers 0 … C−1, remove the rows without a label, or name other labels with --label"


def _check_range(path: Path, where: str, summary: LabelSummary, classes: int, first: int, dense: bool = False) -> None:
    last = first + classes - 1
    if summary.low >= first and summary.high <= last:
        return
    outside = []
    if summary.low < first:
        outside.append((summary.low_row, summary.low))
    if summary.high > last:
        outside.append((summary.high_row, summary.high))
    row, value = min(outside)
    hint = f"{classes} score columns allow {first} … {last}"
    if summary.values == (-1, 1) and classes == 2:
        hint += "; save 0 instead of −1"
    elif summary.low < 0:
        hint += "; remove the rows without a label"
    if first == 0 and summary.low == 1 and summary.high == classes:
        hint = "pass --first-label 1, or subtract 1 from the labels"
    elif dense:
        hint += f"; pass --ignore-index {value:.0f} to leave these positions out"
    raise file_error(path, f"{where} are out of range: {value:.0f} at row {row}", hint)


def _class_numbers(names: Sequence[str] | None) -> tuple[int, ...] | None:
    """Return the class names as numbers, if all of them are numbers; else None."""
    if names is None or not all(name.isascii() and name.isdecimal() and len(name) <= 9 for name in names):
        return None
    return tuple(int(name) for name in names)
