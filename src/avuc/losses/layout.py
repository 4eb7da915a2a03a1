"""Converts scores and labels of every task to the layout that the losses compute with.

The losses compute with ([S,] N, C, *spatial) and labels (N, *spatial). A binary score z becomes two columns [0, z],
because softmax([0, z])[1] = sigmoid(z); each decision of a multi-label model becomes such a row. Nothing is detached or
left out here, unlike in `avuc.core.tasks.as_rows`: gradients pass, and shapes alone decide.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tasks import TASKS, Kind, as_rows, binary_rows, find_layout, whole_labels
from avuc.losses.inputs import may_synchronise, one_of

Task = Literal["multiclass", "binary", "multilabel"]


def standard_layout(
    scores: Tensor, labels: Tensor, task: Task | None, class_dim: int | None, kind: Kind = "logits"
) -> tuple[Tensor, Tensor]:
    """Return scores ([S,] N, C, *spatial) and labels (N, *spatial), or ([S,] M, 2) and (M) for binary decisions.

    Scores that match no layout are returned unchanged: the checks of each loss name the problem.

    Args:
        scores: probabilities or logits of any layout.
        labels: class numbers; 0 and 1 for binary and multi-label scores.
        task: "multiclass", "binary" or "multilabel". None: binary for one number per label, else multiclass.
        class_dim: the dimension of the classes. None: the one after N.
        kind: "logits" or "probs".
    """
    unchecked_scores: Any = scores
    unchecked_labels: Any = labels
    if not (isinstance(unchecked_scores, Tensor) and isinstance(unchecked_labels, Tensor)):
        name, argument = (
            ("labels", unchecked_labels) if isinstance(unchecked_scores, Tensor) else ("scores", unchecked_scores)
        )
        raise InputError(
            f"avuc: {name} must be a tensor; found {type(argument).__name__}: convert it with torch.as_tensor"
        )
    if class_dim is None and task in (None, "multiclass") and labels.ndim == 1 and scores.ndim == 2:
        if task is not None or scores.shape[1] > 1:
            return scores, labels
    elif task is not None:
        one_of("task", task, TASKS)
    if task == "multilabel":
        return _multilabel(scores, labels, class_dim, kind)
    if task == "binary" or (task is None and _one_number(scores, labels, class_dim)):
        return _binary(scores, labels, class_dim, kind)
    if class_dim is None:
        return scores, labels
    layout = find_layout(tuple(scores.shape), tuple(labels.shape), class_dim=class_dim, draws=None)
    if layout.axis is None:
        raise InputError(f"avuc: scores {tuple(scores.shape)} are one number per row; leave class_dim out")
    return scores.movedim(layout.axis, 1 + layout.draws), labels


def _one_number(scores: Tensor, labels: Tensor, class_dim: int | None) -> bool:
    """Return whether there is one score per label; several independent labels per row are never guessed."""
    if scores.shape == labels.shape and labels.ndim:
        return scores.ndim == 1 or scores.shape[1] == 1
    return labels.ndim > 0 and scores.ndim > labels.ndim and _width(scores, labels, class_dim) == 1


def _width(scores: Tensor, labels: Tensor, class_dim: int | None) -> int:
    """Return the size of the dimension of classes, 0 if there is no such dimension."""
    axis = scores.ndim - labels.ndim if class_dim is None else class_dim
    return scores.shape[axis] if -scores.ndim <= axis < scores.ndim else 0


def _binary(scores: Tensor, labels: Tensor, class_dim: int | None, kind: Kind) -> tuple[Tensor, Tensor]:
    shapes = tuple(scores.shape), tuple(labels.shape)
    if kind == "probs" and scores.ndim == 2 and scores.shape[1] == 1 and may_synchronise(scores):
        as_rows(scores, labels, kind=kind)  # refuses one column that may be the probabilities of a single class
    if not _per_label(scores, labels) and labels.ndim and _width(scores, labels, class_dim) == 1:
        scores = scores.squeeze(scores.ndim - labels.ndim if class_dim is None else class_dim)
    if not _per_label(scores, labels):
        raise InputError(
            "avuc: binary scores have one number per label: (N), (N, 1) or (S, N) with labels (N), or the same with "
            f"*spatial; found scores {shapes[0]} and labels {shapes[1]}"
        )
    return _decisions(scores, labels, kind)


def _per_label(scores: Tensor, labels: Tensor) -> bool:
    """Return whether scores have the shape of the labels, or that with samples in front."""
    samples = scores.ndim - labels.ndim
    return labels.ndim > 0 and samples in (0, 1) and scores.shape[samples:] == labels.shape


def _multilabel(scores: Tensor, labels: Tensor, class_dim: int | None, kind: Kind) -> tuple[Tensor, Tensor]:
    if class_dim is not None:
        raise InputError("avuc: multi-label scores (N, L) have no dimension of classes; leave class_dim out")
    if labels.ndim < 2 or not _per_label(scores, labels):
        raise InputError(
            "avuc: multi-label scores (N, L) or (S, N, L) go with labels (N, L) of 0 and 1; found scores "
            f"{tuple(scores.shape)} and labels {tuple(labels.shape)}"
        )
    return _decisions(scores, labels, kind)


def _decisions(scores: Tensor, labels: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return scores ([S,] *shape) and labels (*shape) as rows ([S,] M, 2) and (M)."""
    if not scores.is_floating_point():
        raise InputError(f"avuc: scores must be floating point; found {scores.dtype}")
    if may_synchronise(labels):
        labels = whole_labels(labels)
    rows = scores.reshape(*scores.shape[: scores.ndim - labels.ndim], -1)
    if kind == "logits" or may_synchronise(scores):
        return binary_rows(rows, kind), labels.reshape(-1).long()
    return torch.stack((1 - rows, rows), dim=-1), labels.reshape(-1).long()
