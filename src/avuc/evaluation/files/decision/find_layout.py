"""Find the layout of scores from their shape and that of the labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from avuc.evaluation.files.decision.checks import check_label_shape, check_score_shape, check_score_type
from avuc.evaluation.files.layout import Layout, Shape
from avuc.evaluation.files.messages import file_error

# the label of positions that are left out: the default of torch's losses
IGNORE_INDEX = -100
TASKS = ("auto", "multiclass", "binary", "multilabel")
SAME_SHAPE = (
    "pass --task multilabel if every label is a decision of its own, or save class numbers: of one-hot labels, "
    "labels.argmax(1)"
)


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
        draws_and_axis = _without_labels(path, where, shape, like)
        draws, axis = draws_and_axis if draws_and_axis is not None else _plain(path, where, shape, scores[1], labels)
    else:
        draws_and_axis = _with_labels(path, where, shape, known, task)
        draws, axis = draws_and_axis if draws_and_axis is not None else _plain(path, where, shape, scores[1], labels)
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
        remedy = "pass --class-dim 1 for (N, C, *spatial), --class-dim 2 for samples (S, N, C, *spatial)"
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
