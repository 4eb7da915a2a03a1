"""What data frames and series say besides their numbers: names of rows and of columns. pandas is not imported."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from avuc.core.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]
# what to do with objects that np.asarray does not unpack, by an attribute; the last two are of Transformers
UNPACK = {
    "toarray": ": give .toarray()",
    "collect": ": give .collect()",
    "logits": ": give .logits",
    "label_ids": ": give .predictions, and .label_ids as labels",
}


def numbers_of(values: Any, array: Array) -> Array:
    """Return the numbers that `np.asarray` left as Python objects, else the array as it is.

    These are columns of pandas' own types (`Float64`, `double[pyarrow]`), where a missing value becomes NaN, and series
    with one list or array for each row.

    Args:
        values: what a user gave.
        array: `np.asarray(values)`.
    """
    if array.dtype != object or not hasattr(values, "to_numpy"):
        return array
    try:
        if array.ndim == 1 and len(array) and isinstance(array[0], np.ndarray | list | tuple):
            return np.stack([np.asarray(row, dtype=np.float64) for row in array])
        if array.ndim == 2 and not any(isinstance(value, str) for value in array[:1].flat):
            return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    except (ValueError, TypeError):
        return array  # rows of unequal length, or text: refused later
    return array


def unpack_remedy(values: Any) -> str:
    """Return what to do with sparse matrices, lazy tables and outputs of Transformers; "" for anything else.

    >>> unpack_remedy(np.zeros(3))
    ''
    """
    return next((remedy for method, remedy in UNPACK.items() if hasattr(values, method)), "")


def check_column_order(values: Any, name: str) -> None:
    """Raise for a data frame whose columns are class numbers in another order: 1, 0 or prob_0, prob_1, prob_10, prob_2.

    Scores are read by position, so each number would be that of another class.
    """
    if hasattr(values, "collect"):  # a lazy table
        return
    columns: Any = getattr(values, "column_names", None) or getattr(values, "columns", None)
    if not hasattr(columns, "__iter__") or not all(isinstance(column, str | int | np.integer) for column in columns):
        return
    names = [str(column) for column in columns]
    matches = [re.fullmatch(r"(.*?)(\d{1,9})", column, re.DOTALL | re.ASCII) for column in names]
    numbers = [int(match[2]) for match in matches if match]
    if len(numbers) < max(len(names), 2) or len({match[1] for match in matches if match}) > 1:
        return
    first = min(numbers)
    if numbers != sorted(numbers) and first <= 1 and sorted(numbers) == list(range(first, first + len(numbers))):
        few = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        raise InputError(
            f"the columns of {name} are numbered in another order than the classes ({few}), and scores are read by "
            "position; sort the columns by number, or give values.to_numpy() if they are in class order"
        )


def check_same_rows(scores: Any, labels: Any, names: tuple[str, str] = ("scores", "labels")) -> None:
    """Raise if scores and labels are of pandas and have the same index in another order, as after a shuffle of one.

    The same holds for the columns of multi-label scores and labels.

    Args:
        scores: anything; only data frames and series of pandas have an index.
        labels: anything.
        names: what the message calls them.
    """
    if not hasattr(getattr(scores, "index", None), "sort_values"):
        return
    for part, at in (("index", ".loc[{}.index]"), ("columns", "[{}.columns]")):
        if _reordered(getattr(scores, part, None), getattr(labels, part, None)):
            raise InputError(
                f"{names[0]} and {names[1]} have the same {part} in another order, and are matched by position; give "
                f"{names[1]}{at.format(names[0])}, or .to_numpy() of both if their order is the same"
            )


def check_all_rows(values: Any, name: str, **others: Any) -> None:
    """Raise as `check_same_rows` does if weights or groups are in another order than one of the others.

    Args:
        values: weights or groups of the rows; anything.
        name: what the message calls them.
        others: scores, labels or other arrays of the same rows, by the names that the message has.
    """
    for other, rows in others.items():
        check_same_rows(rows, values, (other, name))


def _reordered(first: Any, second: Any) -> bool:
    """Return whether two indexes of pandas are the same in another order; a default one, 0, 1, 2, …, says nothing."""
    if not (hasattr(first, "sort_values") and hasattr(second, "sort_values")) or len(first) != len(second):
        return False
    if first.equals(second) or not (first.is_unique and second.is_unique):
        return False
    if any(np.array_equal(index, np.arange(len(index))) for index in (first, second)):
        return False
    try:
        return bool(first.sort_values().equals(second.sort_values()))
    except TypeError:  # numbers and text cannot be sorted
        return False
