"""Checks of the probabilities and labels that are passed to a metric."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from avuc.core.arrays import as_array
from avuc.core.errors import InputError
from avuc.core.probabilities import BOTH_COLUMNS
from avuc.metrics.arrays import Array


def checked_inputs(probs: Any, labels: Any) -> tuple[Any, Array]:
    """Return probabilities (N, C), unchanged, and labels (N,) as an int64 array.

    Checks shapes, dtypes and labels. The values of the probabilities are checked later, block by block
    (`avuc.core.probabilities.check_probs`).
    """
    matrix = probs.detach() if isinstance(probs, Tensor) else as_array(probs, "probabilities")
    shape = tuple(matrix.shape)
    if len(shape) != 2 or shape[1] == 0:
        hints = {1: BOTH_COLUMNS, 3: "average the draws first (Predictions.from_samples)"}
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
        raise InputError(f"labels must be class numbers, found dtype {targets.dtype}")
    low, high = targets.min(), targets.max()
    if low < 0 or high >= classes:
        bad = low if low < 0 else high
        if classes == 1 and low >= 0 and high == 1:
            raise InputError(f"the probabilities have one column, but some labels are 1: {BOTH_COLUMNS}")
        raise InputError(f"labels must be in 0…{classes - 1} for {classes} classes, found {bad}")
    return targets.astype(np.int64, copy=False)
