"""Reads the inputs of conformal and selective classifiers: `Predictions`, or probabilities or logits with labels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.core.frames import check_all_rows
from avuc.core.probabilities import looks_like
from avuc.core.row_groups import images_or_groups
from avuc.core.tasks import as_rows
from avuc.predictions import MultiLabelPredictions, Predictions
from avuc.predictions.rows import refuse_probabilities

Array = np.ndarray[Any, np.dtype[Any]]


class ClassRows(NamedTuple):
    """Rows (M, C) of probabilities, or of logits; `labels` (M,) are −1 where there are none.

    `images` (M,) are the numbers of the images or groups that rows belong to; None: each row is one by itself.
    """

    scores: Tensor
    labels: Array
    logits: bool
    images: Array | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.scores.shape[1]

    def check_labelled(self) -> None:
        """Raise unless there are rows, and all have a label."""
        if not len(self.labels):
            raise InputError("predictions: there are no rows; at least 1 with a label is needed")
        if missing := int((self.labels < 0).sum()):
            raise InputError(f"labels: {missing} of {len(self.labels)} rows have none (−1); leave these rows out")


def class_rows(predictions: Any, labels: Any = None, *, logits: bool = False, groups: Any = None) -> ClassRows:
    """Return the rows of predictions, of probabilities, or of logits, which are not copied."""
    check_all_rows(groups, "groups", predictions=predictions, labels=labels)
    if not logits:
        try:
            checked = as_predictions(predictions, labels)
        except InputError as error:
            if not _are_logits(predictions):
                raise
            raise InputError(
                "predictions: some numbers are negative or above 1, so they are not probabilities; pass logits=True if "
                "they are logits"
            ) from error
        images = images_or_groups(checked.shape, checked.positions, len(checked.labels), groups)
        return ClassRows(checked.probs, checked.labels.cpu().numpy(), False, images)
    if isinstance(predictions, Predictions | MultiLabelPredictions):
        raise InputError("predictions: Predictions have probabilities, not logits; leave logits=True out")
    rows = as_rows(predictions, labels, kind="logits")
    remedy = "leave logits=True out, or give Predictions.from_logits(logits, labels, check=False) if these are logits"
    refuse_probabilities(rows.scores[None], remedy)
    targets = np.full(len(rows.scores), -1) if rows.labels is None else rows.labels.cpu().numpy()
    if len(targets) and not -1 <= targets.min() <= targets.max() < rows.scores.shape[1]:
        raise InputError(
            f"labels must be in 0…{rows.scores.shape[1] - 1}, or −1 for none, found {targets.min()}…{targets.max()}"
        )
    images = images_or_groups(rows.shape, rows.positions, len(targets), groups)
    return ClassRows(rows.scores, targets, True, images)


def _are_logits(values: Any) -> bool:
    """Return whether refused numbers may be logits: some are negative or above 1, and they are no percentages."""
    if isinstance(values, Predictions | MultiLabelPredictions):
        return False
    try:
        scores = as_tensor(values, "predictions")
    except InputError:
        return False
    if not scores.is_floating_point() or not scores.numel() or not bool(scores.isfinite().all()):
        return False
    low, high = scores.detach().aminmax()
    return bool((low < 0) | (high > 1)) and looks_like(scores) is None


def as_predictions(predictions: Any, labels: Any = None) -> Predictions:
    """Return predictions as they are, or those of probabilities of any layout; without `labels` they have none."""
    if isinstance(predictions, MultiLabelPredictions):
        raise InputError(
            "predictions: a multi-label model has no single class per row; pass one label's Predictions, predictions[i]"
        )
    if isinstance(predictions, Predictions):
        if labels is not None:
            raise InputError("labels: Predictions have labels already; leave them out")
        return predictions
    if labels is None:
        shape = tuple(np.shape(predictions))
        binary = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
        labels = np.full(shape[:1] if len(shape) < 3 or binary else (shape[0], *shape[2:]), -1)
    return Predictions(predictions, labels)


def labelled(predictions: Any, labels: Any = None, groups: Any = None) -> tuple[Predictions, ClassRows]:
    """Return predictions and their rows; raise unless there are rows, and all have a label."""
    check_all_rows(groups, "groups", predictions=predictions, labels=labels)
    checked = as_predictions(predictions, labels)
    rows = class_rows(checked, groups=groups)
    rows.check_labelled()
    return checked, rows


def check_classes(classes: int, fitted: int) -> None:
    """Raise if the predictions do not have the classes of the fit."""
    if classes != fitted:
        raise InputError(f"predictions: have {classes} classes, but the fit had {fitted}; use the same model")


def check_share(name: str, value: Any) -> None:
    """Raise unless a parameter is a number between 0 and 1."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1
    if not good:
        raise InputError(f"{name} must be a number between 0 and 1, found {value!r}; pass for example 0.9 for 90 %")
