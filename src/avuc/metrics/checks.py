"""What may come in: probabilities and labels that every metric can read, or an error that says which row is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from avuc.errors import InputError

__all__ = ["check_rows", "checked_inputs"]

Array = np.ndarray[Any, np.dtype[Any]]
# how far a row's sum may be from 1: bfloat16 probabilities of any number of classes stay within 0.4 %
SUM_TOLERANCE = 1e-2


def checked_inputs(probs: Any, labels: Any) -> tuple[Any, Array]:
    matrix = probs.detach() if isinstance(probs, Tensor) else np.asarray(probs)
    shape = tuple(matrix.shape)
    if len(shape) != 2 or shape[1] == 0:
        hint = "average the draws first (Predictions.from_samples)" if len(shape) == 3 else "one row a sample"
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
    targets = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if targets.shape != (rows,):
        hint = "; one-hot labels need .argmax(1)" if targets.ndim == 2 else ""
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
        raise InputError(f"labels must be in 0…{classes - 1} for {classes} classes, found {bad}")
    return targets.astype(np.int64, copy=False)


def check_rows(block: Tensor, totals: Tensor, start: int) -> None:
    # NaN and infinity survive a sum, so the sums alone find them
    if not bool(((totals - 1).abs() <= SUM_TOLERANCE).all()):
        bad = int(((totals - 1).abs() <= SUM_TOLERANCE).logical_not().nonzero()[0, 0])
        row = block[bad]
        if row.isnan().any():
            raise InputError(f"probabilities contain NaN (row {start + bad}): remove or repair these rows")
        if row.isinf().any():
            raise InputError(f"probabilities contain infinity (row {start + bad}): remove or repair these rows")
        raise InputError(
            f"rows of probabilities must sum to 1 (within {SUM_TOLERANCE}), row {start + bad} sums to "
            f"{float(totals[bad]):.6g}: apply softmax if these are logits"
        )
    if bool(block.min() < 0):
        bad = int((block < 0).any(1).nonzero()[0, 0])
        raise InputError(f"probabilities must not be negative (row {start + bad}): apply softmax if these are logits")
