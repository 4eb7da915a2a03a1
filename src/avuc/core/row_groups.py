"""Rows that belong together: pixels of an image, tokens of a sentence, rows of a group. They are not independent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from avuc.core.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]


# what `str` makes of a missing value; rows with such a name would be one large group
MISSING = ("", "nan", "NaN", "NaT", "None", "<NA>")


def group_array(groups: Any, name: str = "groups") -> Array:
    """Return groups as an array. NaN among texts stays NaN, of which NumPy would make the text "nan".

    >>> group_array(["a", float("nan")]).tolist()
    ['a', nan]
    """
    if isinstance(groups, np.ma.MaskedArray) and np.ma.getmaskarray(groups).any():
        raise InputError(f"{name}: some are missing (masked); give every row a group")
    values = np.asarray(groups.cpu() if isinstance(groups, Tensor) else groups)
    if values.dtype.kind in "US" and isinstance(groups, (list, tuple)):
        objects = np.asarray(groups, dtype=object)
        if not all(isinstance(value, (str, bytes)) for value in objects.reshape(-1)):
            return objects
    return values


def group_numbers(groups: Any, name: str = "groups") -> Array:
    """Return names or numbers of groups as numbers 0, 1, …, in the same shape; missing ones are refused.

    >>> group_numbers(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    values = group_array(groups, name)
    if values.dtype.kind == "O":
        if any(_is_missing(value) for value in values.reshape(-1)):
            raise InputError(f"{name}: some are missing (None or NaN); give every row a group")
        values = np.array(list(map(str, values.reshape(-1)))).reshape(values.shape)
    elif values.dtype.kind in "fcmM" and bool((values != values).any()):
        raise InputError(f"{name}: some are missing (NaN or NaT); give every row a group")
    names, numbers = np.unique(values, return_inverse=True)
    if values.dtype.kind in "US":
        missing = names[np.isin(names, np.array(MISSING, dtype=values.dtype.kind))].tolist()
        if missing:
            raise InputError(
                f"{name}: some are {missing[0]!r}, like missing values; give every row a group, and rename this group "
                "if it is one"
            )
    return numbers.reshape(values.shape)


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # NA of pandas is neither equal to itself nor not
        return True


def images_or_groups(
    shape: tuple[int, ...], positions: Tensor | None, rows: int, groups: Any = None, *, name: str = "groups"
) -> Array | None:
    """Return the group number of each row, or its image number if `groups` is None; None if rows are independent.

    Args:
        shape: of the labels, (N,) or (N, *spatial).
        positions: (M,) flat indices of the rows into `shape`; None: all.
        rows: number of rows M.
        groups: one name or number for each row, (M,); for each position of `shape`; or for each image, (N,).
        name: what error messages call `groups`.

    >>> images_or_groups((2, 2), None, 4).tolist(), images_or_groups((3,), None, 3, ["b", "a", "b"]).tolist()
    ([0, 0, 1, 1], [1, 0, 1])
    """
    pixels = math.prod(shape[1:])
    flat_indices: Array = np.arange(rows) if positions is None else positions.cpu().numpy()
    if groups is None:
        # images without labels get no number
        return None if pixels == 1 else np.unique(flat_indices // pixels, return_inverse=True)[1]
    values = group_array(groups, name)
    if values.shape in (shape, (math.prod(shape),)):
        values = values.reshape(-1)[flat_indices]
    elif values.shape == shape[:1]:
        if len(values) == rows and not np.array_equal(flat_indices // pixels, np.arange(rows)):
            raise InputError(
                f"{name}: {rows} values can be of {rows} labelled rows or of {rows} images; give one for each "
                f"position, the shape {shape}"
            )
        values = values[flat_indices // pixels]
    elif values.shape != (rows,):
        raise InputError(f"{name} must have one value for each of {rows} rows, found shape {values.shape}")
    numbers = group_numbers(values, name)
    return None if not rows or int(numbers.max()) + 1 == rows else numbers
