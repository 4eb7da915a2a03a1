"""The layouts of predictions, and their common form: rows (M, C) of scores with labels (M,).

multiclass    (N, C) with labels (N,)
dense         (N, C, *spatial) with labels (N, *spatial), or the classes in another dimension: `class_dim=-1` for the
              (N, T, C) of language models
binary        one number for each row, (N,) or (N, 1), or for each position, (N, 1, *spatial); labels 0 and 1.
              A probability p becomes the row [1 − p, p], a logit z the row [0, z]: softmax([0, z])[1] = sigmoid(z)
multi-label   (N, L) with labels (N, L) of 0 and 1: each decision is one binary row. It is never guessed.

S posterior samples (draws) are a dimension in front. Rows whose label is `ignore_index` are left out. Regression is
refused.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.core.frames import check_same_rows

Kind = Literal["probs", "logits"]
Shape = tuple[int, ...]

# torch's default in cross_entropy
IGNORE_INDEX = -100
TASKS = ("multiclass", "binary", "multilabel")
REGRESSION = "real-valued targets are regression, which avuc does not do"


class Rows(NamedTuple):
    """Predictions of any layout as rows.

    scores     (M, C), or (S, M, C) with draws; a view of what was given, if possible
    labels     (M,) int64; None if there are none
    shape      of the labels as they were given: (N,), or (N, *spatial)
    positions  (M,) flat indices into `shape` of the rows that were kept; None: all of them
    """

    scores: Tensor
    labels: Tensor | None
    shape: Shape
    positions: Tensor | None


class Layout(NamedTuple):
    """Where scores have their draws and classes.

    draws  whether the first dimension is S posterior samples
    axis   the dimension of the classes; None: there is none, one number for each row
    shape  the dimensions of the labels
    """

    draws: bool
    axis: int | None
    shape: Shape


def as_rows(
    scores: Any,
    labels: Any = None,
    *,
    kind: Kind,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
    draws: bool | None = False,
) -> Rows:
    """Return scores and labels of any layout as rows.

    Shapes and kinds of labels are checked here, the values of scores and the range of labels are not; but one number
    for each row is checked, because it becomes two.

    Args:
        scores: probabilities or logits; list, array or tensor.
        labels: class numbers, with one dimension less. Default None: no labels.
        kind: "probs" or "logits".
        class_dim: the dimension of the classes in `scores`. Default None: the last one for (N, C), else the one after
            N.
        ignore_index: rows with this label are left out; None: no row is.
        draws: whether the first dimension is posterior samples; None: if `scores` have two dimensions more than
            `labels`.

    >>> as_rows(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64), kind="logits").scores.shape
    torch.Size([32, 3])
    >>> as_rows([0.9, 0.2], [1, 0], kind="probs").scores
    tensor([[0.1000, 0.9000],
            [0.8000, 0.2000]], dtype=torch.float64)
    """
    what = "probabilities" if kind == "probs" else "logits"
    check_same_rows(scores, labels, (what, "labels"))
    tensor = as_tensor(scores, what).detach()
    targets = None if labels is None else as_tensor(labels, "labels").detach()
    layout = find_layout(
        tuple(tensor.shape), None if targets is None else tuple(targets.shape), class_dim=class_dim, draws=draws
    )
    binary = layout.axis is None or tensor.shape[layout.axis] == 1
    if targets is not None:
        targets = whole_labels(targets).reshape(layout.shape)
        if binary:
            _refuse_other_labels(targets, ignore_index)
            if kind == "probs" and layout.axis is not None:
                _refuse_one_class(tensor, targets)
    if layout.axis is not None:
        tensor = tensor.squeeze(layout.axis) if binary else tensor.movedim(layout.axis, -1)
    rows = _kept_rows(tensor, targets, layout, ignore_index)
    return rows._replace(scores=binary_rows(rows.scores, kind)) if binary else rows


def multilabel_rows(
    scores: Any, labels: Any = None, *, kind: Kind, ignore_index: int | None = IGNORE_INDEX, draws: bool = False
) -> Rows:
    """Return every decision of a multi-label model as one binary row.

    Args:
        scores: (N, L) probabilities or logits, one for each label; (S, N, L) with draws.
        labels: (N, L) of 0 and 1. Default None: no labels.
        kind: "probs" or "logits".
        ignore_index: decisions with this label are left out; None: none is.
        draws: whether the first dimension is posterior samples.

    >>> multilabel_rows([[0.9, 0.2]], [[1, -100]], kind="probs").scores
    tensor([[0.1000, 0.9000]], dtype=torch.float64)
    """
    check_same_rows(scores, labels)
    tensor = as_tensor(scores, "scores").detach()
    shape = tuple(tensor.shape[int(draws) :])
    if len(shape) < 2 or 0 in shape[1:]:
        raise InputError(f"multi-label scores must have shape (N, L), one for each label; found {tuple(tensor.shape)}")
    targets = None if labels is None else as_tensor(labels, "labels").detach()
    if targets is not None:
        if tuple(targets.shape) != shape:
            raise InputError(
                f"multi-label labels must have shape {shape}, 0 or 1 for each score; found {tuple(targets.shape)}"
            )
        targets = whole_labels(targets)
        kept = targets if ignore_index is None else targets[targets != ignore_index]
        if kept.numel() and bool(((kept != 0) & (kept != 1)).any()):
            low, high = kept.aminmax()
            raise InputError(
                f"multi-label labels must be 0 or 1, or ignore_index ({ignore_index}) where unknown; "
                f"found {int(low)}…{int(high)}"
            )
    rows = _kept_rows(tensor, targets, Layout(draws, None, shape), ignore_index)
    return rows._replace(scores=binary_rows(rows.scores, kind))


def find_layout(scores: Shape, labels: Shape | None, *, class_dim: int | None, draws: bool | None) -> Layout:
    """Return where the draws and the classes are, from the shapes of scores and labels alone.

    >>> find_layout((8, 5, 16, 16), (8, 16, 16), class_dim=None, draws=False)
    Layout(draws=False, axis=1, shape=(8, 16, 16))
    """
    if draws is None:
        draws = labels is not None and _has_draws(scores, labels)
    front = int(draws)
    body = scores[front:]
    if not body or 0 in (*scores[:front], *body[1:]):
        raise InputError(f"scores must have shape {'(S, N, C)' if draws else '(N, C)'}, found {scores}")
    axis = _class_axis(scores, class_dim, front)
    shape = body if axis is None else (*body[: axis - front], *body[axis - front + 1 :])
    if labels is None:
        if len(body) == 3 and class_dim is None:
            if draws:
                raise InputError(
                    f"logits {scores} of samples without labels have their classes in the third or in the last "
                    "dimension: give class_dim=2 for (S, N, C, L), class_dim=-1 for (S, N, T, C)"
                )
            raise InputError(
                f"three dimensions {scores} without labels can be samples or dense: use from_samples for (S, N, C), or "
                "give class_dim=1 for (N, C, L), class_dim=-1 for (N, T, C)"
            )
    elif labels != shape and labels != _with_unit_axis(shape, axis, front):
        raise InputError(
            f"labels must have shape {shape} to match {scores}, found {labels}{_hint(scores, labels, draws)}"
        )
    return Layout(draws, axis, shape)


def not_ignored(labels: Tensor, ignore: int | None) -> Tensor:
    """Return where labels of any type differ from a number, which may be outside their type: −100 for uint8.

    Torch would first wrap the number around to the type of the labels, −100 to 156, the number of another class.

    >>> not_ignored(torch.tensor([156, 3], dtype=torch.uint8), -100).tolist()
    [True, True]
    """
    if ignore is None:
        return torch.ones_like(labels, dtype=torch.bool)
    return (labels if labels.is_floating_point() else labels.to(torch.int64)).ne(ignore)


def whole_labels(labels: Tensor) -> Tensor:
    """Return labels as int64, or raise InputError if they are not whole numbers.

    >>> whole_labels(torch.tensor([1.0, 0.0]))
    tensor([1, 0])
    """
    if labels.is_complex():
        raise InputError(f"labels must be class numbers, found {labels.dtype}")
    whole = labels.to(torch.int64)
    if labels.is_floating_point() and not bool((whole == labels).all()):
        if not bool(labels.isfinite().all()):
            raise InputError("labels contain NaN or infinity; class numbers from 0 are needed")
        bad = float(labels[whole != labels][0])
        raise InputError(f"labels must be whole class numbers, found {bad:g}: {REGRESSION}")
    return whole


def binary_rows(scores: Tensor, kind: Kind) -> Tensor:
    """Return one number (...) as two classes (..., 2): [1 − p, p] for a probability p, [0, z] for a logit z.

    >>> binary_rows(torch.tensor([2.0]), "logits").softmax(-1)
    tensor([[0.1192, 0.8808]])
    """
    if scores.is_complex():
        raise InputError(f"scores must be real numbers, found {scores.dtype}")
    wide = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
    if kind == "logits":
        return torch.stack((torch.zeros_like(wide), wide), -1)
    inside = (wide >= 0) & (wide <= 1)
    if not bool(inside.all()):
        where, value = (~inside).nonzero()[0].tolist(), float(wide[~inside][0])
        remedy = "remove or repair these rows" if value != value else "apply a sigmoid if these are logits"
        if bool((wide >= 0).all()):
            remedy = f"divide percentages by 100, or {remedy}"
        raise InputError(
            f"the probability of the positive class must be from 0 to 1, found {value:g} in row "
            f"{where[0] if len(where) == 1 else tuple(where)}: {remedy}"
        )
    return torch.stack((1 - wide, wide), -1)


def _kept_rows(scores: Tensor, labels: Tensor | None, layout: Layout, ignore_index: int | None) -> Rows:
    """Return rows ([S,] M, *rest) of scores ([S,] *shape, *rest) whose label is not `ignore_index`."""
    front, shape = int(layout.draws), layout.shape
    if labels is not None and ignore_index is not None:
        keep = labels != ignore_index
        if not bool(keep.all()):
            mask = keep.to(scores.device)
            kept = scores[:, mask] if layout.draws else scores[mask]
            return Rows(kept, labels[keep], shape, keep.flatten().nonzero()[:, 0])
    # a single dimension is not flattened, so that scores without rows keep their shape
    rows = scores if len(shape) == 1 else scores.flatten(front, front + len(shape) - 1)
    return Rows(rows, None if labels is None else labels.flatten(), shape, None)


def _class_axis(scores: Shape, class_dim: int | None, front: int) -> int | None:
    dimensions = len(scores)
    if dimensions - front == 1:
        if class_dim is not None:
            raise InputError(f"scores {scores} are one number for each row (binary); leave class_dim out")
        return None
    if class_dim is None:
        return front + 1
    if isinstance(class_dim, bool) or not isinstance(class_dim, int):
        raise InputError(f"class_dim must be a whole number or None, found {class_dim!r}")
    axis = class_dim + dimensions if class_dim < 0 else class_dim
    if not front <= axis < dimensions:
        of_draws = " of the classes, not of the samples" if axis == 0 else ""
        raise InputError(f"class_dim must be a dimension{of_draws} of scores {scores}, found {class_dim}")
    return axis


def _has_draws(scores: Shape, labels: Shape) -> bool:
    if len(scores) == 3 and len(labels) == 2 and labels[1] == 1:  # labels (N, 1) are (N,)
        return labels[0] == scores[1] and labels != (scores[0], scores[2])
    return len(scores) - len(labels) == 2


def _with_unit_axis(shape: Shape, axis: int | None, front: int) -> Shape:
    """Return the shape with a dimension of size 1 for the classes."""
    position = len(shape) if axis is None else axis - front
    return (*shape[:position], 1, *shape[position:])


def _hint(scores: Shape, labels: Shape, draws: bool) -> str:
    """Return the remedy for labels that do not match."""
    if draws:
        return ": samples must have shape (S, N, C), or (S, N, C, *spatial)"
    if len(scores) == 3 and len(labels) == 1:
        return ": average the samples of (S, N, C) first, with Predictions.from_samples"
    if scores == labels:
        return (
            ": one-hot labels need .argmax(1); independent labels are multi-label, which must be said "
            '(task="multilabel", MultiLabelPredictions)'
        )
    for class_dim in (-1, *range(1, len(scores) - 1)):
        axis = class_dim % len(scores)
        if (*scores[:axis], *scores[axis + 1 :]) == labels:
            return f": give class_dim={class_dim}"
    return ""


def _refuse_other_labels(labels: Tensor, ignore_index: int | None) -> None:
    kept = labels if ignore_index is None else labels[labels != ignore_index]
    if kept.numel() and not -1 <= int(kept.min()) <= int(kept.max()) <= 1:
        raise InputError(
            f"one number for each row is a binary score, with labels 0 and 1; found labels {int(kept.min())}…"
            f"{int(kept.max())}: give one column for each class, (N, C); {REGRESSION}"
        )


def _refuse_one_class(probs: Tensor, labels: Tensor) -> None:
    if probs.numel() and bool((probs == 1).all()) and bool((labels == 0).all()):
        raise InputError(
            "one column of 1 with labels 0 can be a single class or a binary score that is always wrong: give binary "
            "probabilities as (N,)"
        )
