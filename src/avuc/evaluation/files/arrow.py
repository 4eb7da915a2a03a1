"""Columns of an Arrow table as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from avuc.core.errors import require
from avuc.evaluation.files.names import FAR, listing, refuse

__all__ = ["LEAVE_OUT", "arrow_modules", "stacked", "values"]

LEAVE_OUT = "label every row, or leave out the rows without a label"
LABELS = "save class numbers 0 … C−1, or the names of the classes as text"
SCORES = "save one column of numbers for each class, or one list column"


def arrow_modules() -> tuple[Any, Any]:
    return require("pyarrow", "cli", "a .parquet file"), require("pyarrow.parquet", "cli", "a .parquet file")


def stacked(path: Path, held: Any, names: Sequence[str]) -> np.ndarray:
    """Score columns as (N, C), or (S, N, C) from one column of lists of lists."""
    first = values(path, held, names[0])
    if len(names) == 1:
        # a row holds C numbers, or S lists of C numbers
        return first if first.ndim < 3 else first.transpose(1, 0, 2)
    scores = _filled(path, held, names, np.float32)
    if max(scores.max(initial=0), -scores.min(initial=0)) > FAR:  # float32 may not tell these numbers apart
        scores = _filled(path, held, names, np.float64)
    return scores


def _filled(path: Path, held: Any, names: Sequence[str], dtype: Any) -> np.ndarray:
    scores = np.empty((len(held), len(names)), dtype)
    for place, name in enumerate(names):
        part = values(path, held, name)
        if part.ndim > 1:
            raise refuse(path, f"more than one list column ({listing(names)})", "choose one with --scores-key")
        with np.errstate(over="ignore"):  # an infinite score is refused with its place
            scores[:, place] = part
    return scores


def values(path: Path, table: Any, name: str, *, label: bool = False) -> np.ndarray:
    """A numeric column as (N,), a list column as (N,C), a list of lists as (N,S,C); `label` says it for messages."""
    arrow, _ = arrow_modules()
    column = table.column(name).combine_chunks()
    if isinstance(column, arrow.ChunkedArray):  # how an empty table comes back
        column = arrow.concat_arrays(column.chunks) if column.num_chunks else arrow.array([], column.type)
    shape, types = [len(column)], arrow.types
    while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        if column.null_count:
            raise refuse(path, f"column {name!r} has empty cells", "give every row its scores")
        inner = column.flatten()
        length, rest = divmod(len(inner), max(len(column), 1))
        lengths = require("pyarrow.compute", "cli", "a .parquet file").list_value_length
        if rest or any(count != length for count in lengths(column).unique().to_pylist()):
            raise refuse(path, f"the lists of column {name!r} differ in length", "give every row one number per class")
        shape.append(length)
        column = inner
    if column.null_count:
        remedy = LEAVE_OUT if label else "give every row a number for each class"
        raise refuse(path, f"column {name!r} has empty cells", remedy)
    if types.is_decimal(column.type):
        column = column.cast(arrow.float64())
    if not (types.is_floating(column.type) or types.is_integer(column.type)) or len(shape) > 3:
        raise refuse(path, f"column {name!r} has type {_kind(table, name)}, not numbers", LABELS if label else SCORES)
    return np.array(column.to_numpy(zero_copy_only=False)).reshape(shape)  # a copy: Arrow's own memory is read-only


def _kind(table: Any, name: str) -> str:
    """The type of a column in few words."""
    kind = table.schema.field(name).type
    return str(getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind)[:80]
