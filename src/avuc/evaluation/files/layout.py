"""Layouts of scores: which dimension has the classes, and how scores and labels become rows.

(N, C), (S, N, C)               one row per sample; S Monte Carlo draws come first
(N, C, *spatial), (N, *, C)     dense: one row per position, with labels (N, *spatial)
(N,), (N, 1), (N, 1, *spatial)  binary: one number per row or position, for class 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.evaluation.files.checks import check_label_shape, check_score_shape, check_score_type
from avuc.evaluation.files.messages import file_error

# the label of positions that are left out: the default of torch's losses
IGNORE_INDEX = -100
TASKS = ("auto", "multiclass", "binary", "multilabel")
SAME_SHAPE = (
    "pass --task multilabel if every label is a decision of its own, or save class numbers: of one-hot labels, "
    "labels.argmax(1)"
)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Where the draws and the classes of an array of scores are."""

    shape: Shape  # of the array
    draws: bool = False  # whether the first dimension counts Monte Carlo draws
    axis: int | None = None  # of the classes; None: one number per row
    ignore: int | None = None  # rows with this label are left out
    left_out: int = 0  # how many rows these are

    @property
    def row_axis(self) -> int:
        """The dimension that counts the samples."""
        return int(self.draws)

    @property
    def binary(self) -> bool:
        """Whether there is one number per row or position."""
        return self.axis is None or self.shape[self.axis] == 1

    @property
    def dense(self) -> bool:
        """Whether a sample has several positions with a label each."""
        return len(self.shape) - int(self.draws) - int(self.axis is not None) > 1

    @property
    def flat(self) -> Shape:
        """Shape of all rows: (M, C) or (S, M, C); C is 1 for binary scores."""
        classes = 1 if self.axis is None else self.shape[self.axis]
        front = self.shape[:1] if self.draws else ()
        return (*front, math.prod(self.shape) // classes // math.prod(front), classes)

    def rows(self, block: Tensor) -> Tensor:
        """Return a block of samples as rows (M, C) or (S, M, C)."""
        last = block[..., None] if self.axis is None else block.movedim(self.axis, -1)
        return last.reshape(*last.shape[:1], -1, last.shape[-1]) if self.draws else last.reshape(-1, last.shape[-1])

    def back(self, rows: Tensor) -> Tensor:
        """Return rows in the shape of the array."""
        if self.axis is None:
            return rows.reshape(self.shape)
        order = [*self.shape[: self.axis], *self.shape[self.axis + 1 :], self.shape[self.axis]]
        return rows.reshape(order).movedim(-1, self.axis).contiguous()

    def kept(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows and labels without those that are left out."""
        if self.ignore is None:
            return scores, labels
        keep = labels != self.ignore
        return (scores, labels) if bool(keep.all()) else (scores[..., keep, :], labels[keep])


def find_layout(
    path: Path,
    where: str,
    scores: tuple[Sequence[int], torch.dtype],
    labels: tuple[str, Sequence[int], torch.dtype] | None,
    *,
    task: str = "auto",
    class_dim: int | None = None,
    ignore_index: int | None = None,
    like: Layout | None = None,
) -> Layout:
    """Return the layout of scores, from their shape and that of the labels; ambiguous shapes are refused.

    Args:
        path: the file, for messages.
        where: where the scores are, for messages.
        scores: shape and type of the scores.
        labels: where the labels are, their shape and type; None: there are none.
        task: `auto`, `multiclass` or `binary`; `binary`: there is one number per label.
        class_dim: the dimension of the classes; None: decided by the shapes.
        ignore_index: label of rows that are left out; None: −100 for dense scores, else no row is left out.
        like: layout of another file of the same model, for scores without labels.
    """
    shape = tuple(scores[0])
    check_score_type(path, where, scores[1])
    if shape and 0 in shape:
        raise file_error(path, f"{where} is empty: shape {shape}", "save at least one row")
    known = None if labels is None else tuple(labels[1])
    draws: bool
    axis: int | None
    if class_dim is not None:
        draws, axis = _given_axis(path, where, shape, known, class_dim, like)
    elif known is None:
        found = _without_labels(path, where, shape, like)
        draws, axis = found if found is not None else _plain(path, where, shape, scores[1], labels)
    else:
        found = _with_labels(path, where, shape, known, task)
        draws, axis = found if found is not None else _plain(path, where, shape, scores[1], labels)
    layout = Layout(shape, draws, axis, ignore_index)
    if task == "binary" and not layout.binary:
        raise file_error(path, f"{where} has shape {shape}, not one number per row", "leave out --task binary")
    if layout.dense and ignore_index is None:
        layout = Layout(shape, draws, axis, IGNORE_INDEX)
    return layout


def _plain(
    path: Path, where: str, shape: Shape, dtype: torch.dtype, labels: tuple[str, Sequence[int], torch.dtype] | None
) -> tuple[bool, int]:
    """Check that the scores are (N, C) or (S, N, C), and the labels (N,)."""
    check_score_shape(path, where, shape, dtype)
    if labels is not None:
        check_label_shape(path, labels[0], labels[1], labels[2], shape)
    return len(shape) == 3, len(shape) - 1


def _with_labels(path: Path, where: str, shape: Shape, labels: Shape, task: str) -> tuple[bool, int | None] | None:
    """Return draws and the axis of the classes for binary and dense scores; None for (N, C) and (S, N, C)."""
    if len(labels) == 2 and labels[1] == 1 and shape[-2:] != (labels[0], 1) and not _dense_axes(shape, labels):
        labels = labels[:1]
    if task == "binary" and shape == labels:
        return False, None
    if len(labels) == 1:
        if shape == labels or shape == (*labels, 1):
            return False, None if len(shape) == 1 else 1
        if len(shape) == 3 and shape[2] == 1 and shape[1] == labels[0] != shape[0]:
            return True, 2  # (S, N, 1)
        if len(shape) == 1:
            problem = f"{where} has {shape[0]:,} numbers, but there are {labels[0]:,} labels"
            raise file_error(path, problem, "save one column per class, (N, C), or one number per label")
        return None
    if len(labels) == len(shape) and shape[1] == 1 == labels[1] and shape == labels:
        return False, 1
    if len(labels) == len(shape) > 2 and labels[1] == 1:
        labels = (labels[0], *labels[2:])  # (N, 1, H, W)
    if shape == labels:
        binary = ", or --task binary if every position has one score" if len(shape) > 2 else ""
        raise file_error(path, f"scores and labels have the same shape {shape}", SAME_SHAPE + binary)
    axes = _dense_axes(shape, labels)
    if axes == [1]:
        return False, 1
    if axes:
        names = " or ".join(f"--class-dim {axis}" for axis in axes)
        problem = f"{where} has shape {shape} for labels of shape {labels}: the classes may be in dimension "
        raise file_error(path, problem + " or ".join(map(str, axes)), f"pass {names}")
    if len(shape) == len(labels) + 2 and _dense_axes(shape[1:], labels) == [1]:
        return True, 2
    if len(shape) > 2 and len(labels) > 1:
        raise file_error(
            path,
            f"{where} has shape {shape}, which does not fit labels of shape {labels}",
            "save scores (N, C, *spatial) with labels (N, *spatial), or pass --class-dim",
        )
    return None


def _dense_axes(shape: Shape, labels: Shape) -> list[int]:
    """Return the dimensions after the first without which the scores have the shape of the labels."""
    if len(labels) < 2:
        return []
    return [axis for axis in range(1, len(shape)) if (*shape[:axis], *shape[axis + 1 :]) == labels]


def _without_labels(path: Path, where: str, shape: Shape, like: Layout | None) -> tuple[bool, int | None] | None:
    if like is not None and len(like.shape) == len(shape) and (like.dense or like.binary):
        return like.draws, like.axis
    if len(shape) == 1:
        return False, None
    if len(shape) == 2 and shape[1] == 1:
        return False, 1
    if len(shape) == 4:
        return False, 1
    if len(shape) > 4:
        remedy = "pass --class-dim 1 for (N, C, *spatial), --class-dim 2 for draws (S, N, C, *spatial)"
        raise file_error(path, f"{where} has shape {shape}, and there are no labels to compare it with", remedy)
    return None


def _given_axis(
    path: Path, where: str, shape: Shape, labels: Shape | None, class_dim: int, like: Layout | None
) -> tuple[bool, int]:
    axis = class_dim + len(shape) if class_dim < 0 else class_dim
    if not 0 < axis < len(shape):
        raise file_error(
            path,
            f"{where} has shape {shape}, so --class-dim {class_dim} is no dimension of its classes",
            f"pass 1 to {len(shape) - 1}, or -1 for the last one" if len(shape) > 1 else "leave out --class-dim",
        )
    rest = (*shape[:axis], *shape[axis + 1 :])
    if labels is None:
        same = like is not None and len(like.shape) == len(shape) and like.axis == axis
        return bool(same and like is not None and like.draws) or (len(shape) > 3 and axis == 2 and not same), axis
    fits = {rest: False, rest[1:]: True}
    for known in (
        labels,
        labels[:1] if labels[1:] == (1,) else labels,
        (labels[0], *labels[2:]) if labels[1:2] == (1,) else labels,
    ):
        if known in fits and (known != rest[1:] or axis > 1):
            return fits[known], axis
    raise file_error(
        path,
        f"{where} has shape {shape}, so --class-dim {class_dim} needs labels of shape {rest}, but they have {labels}",
        "correct --class-dim, or save the labels in this shape",
    )


def as_numbers(rows: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """Return binary rows (…, 2) as one number each: the probability or the logit of class 1.

    >>> as_numbers(torch.tensor([[0.0, 2.0]]), "logits", torch.float32)
    tensor([[2.]])
    """
    if kind == "probs":
        return rows[..., 1:]
    logits = rows[..., 1:].double() - rows[..., :1].double()
    limits: Any = torch.finfo(dtype)
    return logits.clamp(limits.min, limits.max)
