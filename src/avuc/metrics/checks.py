"""Checks of the probabilities and labels that are passed to a metric."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor

from avuc.core.arrays import as_array, as_tensor, range_remedy, text_remedy
from avuc.core.errors import InputError
from avuc.core.frames import check_same_rows
from avuc.core.probabilities import BOTH_COLUMNS
from avuc.core.tasks import IGNORE_INDEX, as_rows
from avuc.metrics.arrays import Array
from avuc.predictions import MultiLabelPredictions

R_co = TypeVar("R_co", covariant=True)
# texts of a docstring, and what `any_layout` replaces them with
LAYOUTS = {
    "probs: (N, C) probabilities; list, NumPy array or tensor.": (
        "probs: (N, C) probabilities; dense (N, C, *spatial); or binary, of class 1, (N,) or (N, 1). List, NumPy\n"
        "        array or tensor."
    ),
    "labels: (N,) class numbers": "labels: (N,) or (N, *spatial) class numbers",
}
OPTION_LINES = """
    class_dim: dimension of the classes in `probs`. Default None: the last one for (N, C), else 1.
    ignore_index: rows with this label are left out (default −100); None: no row is."""


class ProbsAndLabels(NamedTuple):
    """Rows of probabilities (M, C) with labels (M,)."""

    probs: Any
    labels: Any


class Metric(Protocol[R_co]):
    """A function of probabilities and labels of any layout; `options` are the function's own options."""

    __name__: str

    def __call__(
        self, probs: Any, labels: Any, *, class_dim: int | None = None, ignore_index: int | None = -100, **options: Any
    ) -> R_co: ...


def any_layout(function: Callable[..., R_co]) -> Metric[R_co]:
    """Let a function of rows (N, C) and labels (N,) take every layout, with the options class_dim and ignore_index.

    The two options are added to its signature and to the Args of its docstring.
    """

    @wraps(function)
    def metric(
        probs: Any,
        labels: Any,
        *,
        class_dim: int | None = None,
        ignore_index: int | None = IGNORE_INDEX,
        **options: Any,
    ) -> R_co:
        return function(*metric_rows(probs, labels, class_dim=class_dim, ignore_index=ignore_index), **options)

    own = inspect.signature(function)
    added = [p for p in inspect.signature(metric, follow_wrapped=False).parameters.values() if p.kind is p.KEYWORD_ONLY]
    metric.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
    metric.__doc__ = _layout_doc(function.__doc__)
    return metric


def metric_rows(
    probs: Any,
    labels: Any,
    *,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
    none_is_fine: bool = False,
) -> ProbsAndLabels:
    """Return rows and labels of any layout; (N, C) and (N,) are returned as they are, and checked later.

    Args:
        probs: probabilities of any layout of `avuc.core.tasks`, without draws.
        labels: class numbers.
        class_dim: dimension of the classes. Default None: the last one for (N, C), else 1.
        ignore_index: rows with this label are left out (default −100); None: no row is.
        none_is_fine: whether all rows may be left out.

    >>> metric_rows([0.9, 0.2, 0.4], [1, 0, -100]).probs.tolist()
    [[0.09999999999999998, 0.9], [0.8, 0.2]]
    """
    check_same_rows(probs, labels, ("probabilities", "labels"))
    matrix = probs.detach() if isinstance(probs, Tensor) else as_array(probs, "probabilities")
    targets = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else as_array(labels, "labels")
    plain = matrix.ndim == 2 and matrix.shape[1] > 1 and class_dim in (None, 1, -1) and targets.ndim == 1
    if plain and len(targets) == len(matrix):
        ignored = None if ignore_index is None else targets == ignore_index
        if ignored is None or not ignored.any():
            return ProbsAndLabels(matrix, targets)
        rows, kept = matrix[_like(~ignored, matrix)], targets[~ignored]
    elif 0 in matrix.shape:  # refused later, with its own message
        return ProbsAndLabels(matrix, targets)
    else:
        flat = as_rows(
            as_tensor(matrix, "probabilities"),
            as_tensor(targets, "labels"),
            kind="probs",
            class_dim=class_dim,
            ignore_index=ignore_index,
        )
        assert flat.labels is not None
        rows, kept = flat.scores, flat.labels.numpy()
    if not len(kept) and not none_is_fine:
        raise InputError(f"every label is ignore_index ({ignore_index}), so there are no samples; at least 1 is needed")
    return ProbsAndLabels(rows, kept)


def rows_of(predictions: Any, **layout: Any) -> ProbsAndLabels:
    """Return the rows of anything with `probs` and `labels`; of a multi-label model, all known decisions.

    Args:
        predictions: such as `avuc.Predictions` and `avuc.MultiLabelPredictions`.
        layout: class_dim and ignore_index of `metric_rows`.

    >>> rows_of(MultiLabelPredictions([[0.9, 0.2]], [[1, -100]])).labels
    array([1])
    """
    if isinstance(predictions, MultiLabelPredictions):
        predictions = predictions.flatten()
    return metric_rows(predictions.probs, predictions.labels, **layout)


def _like(mask: Array, matrix: Any) -> Any:
    return as_tensor(mask, "mask").to(matrix.device) if isinstance(matrix, Tensor) else mask


def _layout_doc(text: str | None) -> str | None:
    """Return the docstring of a function of rows with the layouts and the two options."""
    if text is None:  # python -OO
        return None
    text = inspect.cleandoc(text)  # Python 3.13 has removed the indentation already
    for rows, layouts in LAYOUTS.items():
        text = text.replace(rows, layouts)
    before, after = text.split("\n\n>>> ", 1)
    return f"{before}{OPTION_LINES}\n\n>>> {after}"


def checked_inputs(probs: Any, labels: Any) -> tuple[Any, Array]:
    """Return probabilities (N, C), unchanged, and labels (N,) as an int64 array.

    Checks shapes, dtypes and labels. The values of the probabilities are checked later, block by block
    (`avuc.core.probabilities.check_probs`).
    """
    matrix = probs.detach() if isinstance(probs, Tensor) else as_array(probs, "probabilities")
    shape = tuple(matrix.shape)
    if len(shape) != 2 or shape[1] == 0:
        hints = {1: BOTH_COLUMNS, 3: "average the samples first (Predictions.from_samples)"}
        hint = hints.get(len(shape), "give one row for each sample and one column for each class")
        raise InputError(f"probabilities must have shape (N, C), found {shape}: {hint}")
    if shape[0] == 0:
        raise InputError("there are no samples: probabilities have 0 rows, at least 1 is needed")
    if isinstance(matrix, np.ndarray):
        if matrix.dtype.kind not in "fiub":
            raise InputError(f"probabilities must be real numbers, found dtype {matrix.dtype}")
    elif matrix.is_complex():
        raise InputError(f"probabilities must be real numbers, found {matrix.dtype}")
    return matrix, _checked_labels(labels, *shape)


def _checked_labels(labels: Any, rows: int, classes: int) -> Array:
    targets = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else as_array(labels, "labels")
    if targets.shape == (rows, 1):
        targets = targets[:, 0]  # one column, as data frames and TensorFlow have them
    if targets.shape != (rows,):
        hint = "; one-hot labels need .argmax(1)" if targets.ndim == 2 and targets.shape[1] > 1 else ""
        raise InputError(f"labels must have shape ({rows},) to match the probabilities, found {targets.shape}{hint}")
    if targets.dtype.kind == "f":
        if not np.isfinite(targets).all():
            raise InputError("labels contain NaN or infinity; class numbers from 0 are needed")
        if (targets != np.floor(targets)).any():
            bad = targets[targets != np.floor(targets)][0]
            raise InputError(f"labels must be whole class numbers, found {bad}")
    elif targets.dtype.kind not in "iub":
        raise InputError(f"labels must be class numbers, found dtype {targets.dtype}{text_remedy(targets, 'labels')}")
    low, high = targets.min(), targets.max()
    if low < 0 or high >= classes:
        bad = low if low < 0 else high
        if classes == 1 and low >= 0 and high == 1:
            raise InputError(f"the probabilities have one column, but some labels are 1: {BOTH_COLUMNS}")
        remedy = range_remedy(low, high, classes)
        if low == -1 and high < classes:
            remedy = "; leave rows without a label out, with ignore_index=-1"
        raise InputError(f"labels must be in 0…{classes - 1} for {classes} classes, found {bad}{remedy}")
    return targets.astype(np.int64, copy=False)
