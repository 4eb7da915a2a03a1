"""What conformal and selective classifiers take: `Predictions`, or probabilities with labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.predictions import MultiLabelPredictions, Predictions

Array = np.ndarray[Any, np.dtype[Any]]


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


def labelled(predictions: Any, labels: Any = None) -> tuple[Predictions, Array]:
    """Return predictions and their labels (M,); raise unless there are rows, and all have a label."""
    found = as_predictions(predictions, labels)
    targets: Array = found.labels.cpu().numpy()
    if not len(targets):
        raise InputError("predictions: there are no rows; at least 1 with a label is needed")
    if missing := int((targets < 0).sum()):
        raise InputError(f"labels: {missing} of {len(targets)} rows have none (−1); leave these rows out")
    return found, targets


def check_classes(found: int, fitted: int) -> None:
    """Raise if the predictions do not have the classes of the fit."""
    if found != fitted:
        raise InputError(f"predictions: have {found} classes, but the fit had {fitted}; use the same model")


def check_share(name: str, value: Any) -> None:
    """Raise unless a parameter is a number between 0 and 1."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1
    if not good:
        raise InputError(f"{name} must be a number between 0 and 1, found {value!r}; pass for example 0.9 for 90 %")
