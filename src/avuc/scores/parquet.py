"""Reading .parquet: a list column of scores, or one numeric column per class; and a label column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from avuc.errors import require
from avuc.scores.columns import LABEL_COLUMNS, index_labels, pick_columns
from avuc.scores.names import Found, Wanted, check_size, choose, listing, refuse

__all__ = ["labels_parquet", "read_parquet", "write_parquet"]


def read_parquet(path: Path, wanted: Wanted) -> Found:
    with _table(path) as file:
        names = file.schema_arrow.names
        columns = pick_columns(path, names, wanted)
        take = [*columns.scores, *([columns.label] if columns.label is not None else [])]
        table = _read(path, file, take, wanted)
        parts = [_values(path, table, name) for name in columns.scores]
    if len(parts) == 1 and parts[0].ndim > 1:
        # a row holds C numbers, or S lists of C numbers
        scores, classes = (parts[0] if parts[0].ndim == 2 else parts[0].transpose(1, 0, 2)), None
    elif any(part.ndim > 1 for part in parts):
        raise refuse(path, f"more than one list column ({listing(columns.scores)})", "choose one with --scores-key")
    else:
        scores, classes = np.stack(parts, axis=1), columns.class_names
    found = Found(scores, columns.scores_from, columns.name, columns.scores, None, None, classes, list(columns.notes))
    if columns.label is not None:
        found.labels_from = f"column {columns.label!r}"
        found.labels, found.labels_named = _labels(path, table, columns.label, columns.class_names, found.labels_from)
    return found


def labels_parquet(path: Path, wanted: Wanted) -> tuple[Any, str]:
    with _table(path) as file:
        names = file.schema_arrow.names
        key = choose(path, names, wanted.labels_key, LABEL_COLUMNS, "label column")
        if key is None:
            raise refuse(path, f"no label column (it has {listing(names)})", "name it with --labels-key")
        where = f"column {key!r} of {path.name!r}"
        return _labels(path, _read(path, file, [key], wanted), key, (), where)[0], where


def write_parquet(source: Path, destination: Path, found: Found, scores: Tensor) -> None:
    """The table again with new numbers in the score columns, of the same type; everything else as it was."""
    arrow, parquet = _arrow()
    with _table(source) as file:
        table = file.read()
    rows = (scores.transpose(0, 1) if scores.ndim == 3 else scores).numpy()
    for index, name in enumerate(found.keys):
        place = table.column_names.index(name)
        kind = table.schema.field(name).type
        values = rows[:, index] if len(found.keys) > 1 else rows
        column = arrow.array(values.tolist() if values.ndim > 1 else values, type=_floating(arrow, kind))
        table = table.set_column(place, arrow.field(name, column.type), column)
    parquet.write_table(table, destination)


def _floating(arrow: Any, kind: Any) -> Any:
    """The column's own type, with whole numbers widened: calibrated scores are not whole."""
    if arrow.types.is_fixed_size_list(kind):
        return arrow.list_(_floating(arrow, kind.value_type), kind.list_size)
    if arrow.types.is_list(kind) or arrow.types.is_large_list(kind):
        return arrow.list_(_floating(arrow, kind.value_type))
    return kind if arrow.types.is_float64(kind) else arrow.float32()


def _arrow() -> tuple[Any, Any]:
    return require("pyarrow", "cli", "a .parquet file"), require("pyarrow.parquet", "cli", "a .parquet file")


@contextmanager
def _table(path: Path) -> Iterator[Any]:
    arrow, parquet = _arrow()
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (arrow.ArrowException, OSError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise refuse(path, f"not a readable .parquet table ({reason[:160]})", "save the table again") from error


def _read(path: Path, file: Any, names: list[str], wanted: Wanted) -> Any:
    """Only these columns, and only when the counts in the footer stay under the limit (repeats pack to almost nothing,
    so the packed size says little)."""
    meta, size = file.metadata, 0
    for group in range(meta.num_row_groups):
        for place in range(meta.num_columns):
            column = meta.row_group(group).column(place)
            if column.path_in_schema.split(".")[0] in names or column.path_in_schema in names:
                size += max(column.num_values * 8, column.total_uncompressed_size)
    check_size(path, "the table", max(size, 8 * meta.num_rows), wanted.limit)
    return file.read(columns=names)


def _values(path: Path, table: Any, name: str) -> np.ndarray:
    """A numeric column as (N,), a list column as (N,C), a list of lists as (N,S,C)."""
    arrow, _ = _arrow()
    column = table.column(name).combine_chunks()
    if isinstance(column, arrow.ChunkedArray):  # how an empty table comes back
        column = arrow.concat_arrays(column.chunks) if column.num_chunks else arrow.array([], column.type)
    shape = [len(column)]
    while arrow.types.is_nested(column.type) and hasattr(column, "flatten") and not arrow.types.is_struct(column.type):
        if column.null_count:
            raise refuse(path, f"column {name!r} has empty cells", "give every row its scores")
        inner = column.flatten()
        length, rest = divmod(len(inner), max(len(column), 1))
        counts = require("pyarrow.compute", "cli", "a .parquet file").list_value_length(column)
        if rest or any(count != length for count in counts.unique().to_pylist()):
            raise refuse(path, f"the lists of column {name!r} differ in length", "give every row one number per class")
        shape.append(length)
        column = inner
    if column.null_count:
        raise refuse(path, f"column {name!r} has empty cells", "give every row a number for each class")
    if not (arrow.types.is_floating(column.type) or arrow.types.is_integer(column.type)) or len(shape) > 3:
        raise refuse(path, f"column {name!r} has type {table.schema.field(name).type}, not numbers", "leave it out")
    return np.array(column.to_numpy(zero_copy_only=False)).reshape(shape)  # a copy: Arrow's own memory is read-only


def _labels(path: Path, table: Any, name: str, classes: tuple[str, ...], where: str) -> tuple[np.ndarray, bool]:
    arrow, _ = _arrow()
    column = table.column(name)
    kind = column.type.value_type if arrow.types.is_dictionary(column.type) else column.type
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        if column.null_count:
            raise refuse(path, f"{where} has empty cells", "label every row")
        return index_labels(path, column.to_pylist(), classes, where)
    return _values(path, table, name), False
