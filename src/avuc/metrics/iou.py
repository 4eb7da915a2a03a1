"""Intersection over union (Jaccard index), the usual score of segmentation.

IoU_c = TP_c / (TP_c + FP_c + FN_c) with counts over the whole data set, and its mean over classes (mIoU). A class that
is neither predicted nor a label anywhere has no IoU, and is left out of the mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.metrics.arrays import Array
from avuc.metrics.checks import metric_rows
from avuc.metrics.statistics import prediction_statistics


class IoU(NamedTuple):
    """The result of `iou`.

    Args:
        mean: mean IoU over the classes that are predicted or labelled; NaN without any.
        per_class: (C,) IoU of each class; NaN for the other classes.
    """

    mean: float
    per_class: Array


def iou(probs: Any, labels: Any, *, class_dim: int | None = None, ignore_index: int | None = IGNORE_INDEX) -> IoU:
    """Return the intersection over union of each class, and their mean (mIoU).

        IoU_c = TP_c / (TP_c + FP_c + FN_c)        mIoU = mean over classes that occur

    Counts are over all rows, so a class counts the same whether it is in one image or in many.

    Args:
        probs: (N, C) or dense (N, C, *spatial) probabilities, or binary, of class 1, (N,) or (N, 1, H, W). List, NumPy
            array or tensor.
        labels: (N, H, W) class numbers.
        class_dim: dimension of the classes in `probs`. Default None: the last one for (N, C), else 1.
        ignore_index: pixels with this label are left out (default −100); None: no pixel is.

    >>> probs = [[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.7, 0.3, 0.0]]
    >>> found = iou(probs, [0, 1, 1])
    >>> found.per_class, found.mean
    (array([0.5, 0.5, nan]), 0.5)
    """
    rows = metric_rows(probs, labels, class_dim=class_dim, ignore_index=ignore_index)
    statistics = prediction_statistics(*rows)
    return iou_of(class_counts(statistics.predicted, statistics.labels, statistics.num_classes))


def class_counts(predicted: Any, labels: Any, num_classes: int) -> Array:
    """Return (3, C): right predictions, predictions and labels of each class. They add up over batches.

    Args:
        predicted: (N,) predicted classes, a tensor on any device or an array.
        labels: (N,) class numbers, of the same kind.
        num_classes: number of classes C.

    >>> class_counts(np.array([0, 1, 0]), np.array([0, 1, 1]), 2)
    array([[1., 1.],
           [2., 1.],
           [1., 2.]])
    """
    if isinstance(predicted, Tensor):
        parts = predicted[predicted == labels], predicted, labels
        return np.stack([part.bincount(minlength=num_classes).cpu().numpy() for part in parts]).astype(np.float64)
    parts = predicted[predicted == labels], predicted, labels
    return np.stack([np.bincount(part, minlength=num_classes) for part in parts]).astype(np.float64)


def iou_of(counts: Array) -> IoU:
    """Return the IoU from `class_counts`."""
    right, predicted, labelled = counts
    if not labelled.sum():
        raise InputError("iou: there is no labelled row; at least one is needed")
    union = predicted + labelled - right
    each = np.divide(right, union, out=np.full(len(union), np.nan), where=union > 0)
    return IoU(float(each[union > 0].mean()), each)
