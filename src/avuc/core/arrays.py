"""Convert arrays, tensors, data frames and lists of numbers from users."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.frames import check_column_order, numbers_of, unpack_remedy

Array = np.ndarray[Any, np.dtype[Any]]


def as_array(values: Any, name: str) -> Array:
    """Return a NumPy array of `values`, without a copy if possible; masked entries are refused.

    >>> as_array([[1, 2], [3, 4]], "logits").shape
    (2, 2)
    """
    if values is None:
        raise InputError(f"{name} are missing; give an array or a tensor")
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise InputError(f"{name} hold masked entries, which would be read like all others; leave these rows out")
    check_column_order(values, name)
    try:
        array = numbers_of(values, np.asarray(values))
    except (ValueError, TypeError, RuntimeError) as error:  # rows of unequal length; tensors on a GPU or with gradients
        if isinstance(values, list | tuple) and "inhomogeneous" in str(error):
            if hasattr(values, "label_ids"):  # PredictionOutput of Transformers
                raise InputError(
                    f"{name} are the output of Trainer.predict; give output.predictions, and output.label_ids as labels"
                ) from error
            if len({np.ndim(part) for part in values if hasattr(part, "shape")}) > 1:
                raise InputError(
                    f"{name} are {len(values)} arrays of different dimensions, such as logits and hidden states; give "
                    f"the one that holds the {name}, often {name}[0]"
                ) from error
            raise InputError(
                f"{name} are a list of {len(values):,} parts of unequal length; join them by np.concatenate({name}), "
                "or pad them to one length and give the padding the label -100"
            ) from error
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{name} must be an array or a tensor, found {type(values).__name__} ({reason})") from error
    if array.dtype == object and array.ndim == 0:
        found = f"{type(values).__name__}{unpack_remedy(values)}"
        raise InputError(f"{name} must be an array or a tensor, found {found}")
    return array


def as_tensor(values: Any, name: str) -> Tensor:
    """Return a tensor of `values`, without a copy if possible. Read-only, reversed and big-endian arrays are copied.

    >>> as_tensor([0.5, 1.5], "thresholds")
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        return values
    array = as_array(values, name)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must be numbers; found {_described(array)}{text_remedy(array, name)}")
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # torch has no long double
        array = array.astype(np.float64)
    if array.dtype.byteorder not in "=|" or any(stride < 0 for stride in array.strides) or not array.flags.writeable:
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    return torch.from_numpy(array)


def text_remedy(array: Array, name: str) -> str:
    """Return advice for class names that are passed as labels; "" for other arrays."""
    if name != "labels" or not all(isinstance(value, str) for value in array.reshape(-1)[:100].tolist()):
        return ""
    return "; give class numbers in the order of the scores, for scikit-learn np.searchsorted(model.classes_, labels)"


def range_remedy(low: float, high: float, classes: int) -> str:
    """Return advice for labels that are out of range in one of the two usual ways; "" for others.

    >>> range_remedy(1, 3, 3), range_remedy(0, 255, 3)
    ('; labels that start at 1 need labels - 1', '; if 255 means no label, pass ignore_index=255 or make it -100')
    """
    if low == 1 and high == classes:
        return "; labels that start at 1 need labels - 1"
    return "; if 255 means no label, pass ignore_index=255 or make it -100" if high == 255 else ""


def _described(array: Array) -> str:
    first = array.reshape(-1)[:1].tolist()
    if first and isinstance(first[0], str):
        return repr(first[0])
    if array.dtype != object or array.ndim != 1:
        return f"dtype {array.dtype}"
    for row, value in enumerate(array.tolist()):  # a column of a table, such as whole numbers and <NA>
        if not isinstance(value, Number | np.bool_):
            return f"{value!r} in row {row}"
    return "dtype object; convert them with .astype(float)"
