"""Convert arrays, tensors, data frames and lists of numbers from users."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError

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
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of unequal length; tensors on a GPU or with gradients
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{name} must be an array or a tensor, found {type(values).__name__} ({reason})") from error


def as_tensor(values: Any, name: str) -> Tensor:
    """Return a tensor of `values`, without a copy if possible. Read-only, reversed and big-endian arrays are copied.

    >>> as_tensor([0.5, 1.5], "thresholds")
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        return values
    array = as_array(values, name)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must be numbers; found dtype {array.dtype}")
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # torch has no long double
        array = array.astype(np.float64)
    if array.dtype.byteorder not in "=|" or any(stride < 0 for stride in array.strides) or not array.flags.writeable:
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    return torch.from_numpy(array)
