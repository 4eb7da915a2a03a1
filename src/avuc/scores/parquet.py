"""Reading .parquet: a list column of scores, or one numeric column per class; and a label column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.errors import require
from avuc.scores.columns import LABEL_COLUMNS, Columns, index_labels, pick_columns
from avuc.scores.names import Found, Wanted, check_size, choose, listing, refuse
from avuc.scores.sources import ArraySource

__all__ = ["labels_parquet", "read_parquet", "write_parquet"]

# bytes of each column that are read ahead
BUFFER = 1 << 16


def read_parquet(path: Path, wanted: Wanted) -> Found:
    with _table(path) as file:
        names = file.schema_arrow.names
        columns = pick_columns(path, names, wanted)
        if wanted.in_blocks:
            return _in_blocks(path, file, columns, wanted)
        take = [*columns.scores, *([columns.label] if columns.label is not None else [])]
        table = _read(path, file, take, wanted)
    scores, classes = _scores(path, table, columns)
    found = Found(scores, columns.scores_from, columns.name, columns.scores, None, None, classes, list(columns.notes))
    if columns.label is not None:
        found.labels_from = f"column {columns.label!r}"
        found.labels, found.labels_named = _labels(path, table, columns.label, columns.class_names, found.labels_from)
    return found


def _in_blocks(path: Path, file: Any, columns: Columns, wanted: Wanted) -> Found:
    """The same with arrays that stay in the file; only labels that are names are read at once."""
    meta = file.metadata
    groups = [meta.row_group(index).total_byte_size for index in range(meta.num_row_groups)]
    check_size(path, "a row group", max(groups, default=0), wanted.limit)
    first = _first_row(file, list(columns.scores))
    sample, classes = _scores(path, first, columns)
    shape = (*sample.shape[:-2], meta.num_rows, sample.shape[-1])
    source = TableSource(path, shape, sample.dtype, columns.scores, lambda table: _scores(path, table, columns)[0])
    found = Found(source, columns.scores_from, columns.name, columns.scores, None, None, classes, list(columns.notes))
    if columns.label is not None:
        found.labels_from = f"column {columns.label!r}"
        found.labels, found.labels_named = _label_source(path, file, columns.label, columns.class_names, wanted)
    return found


def _label_source(path: Path, file: Any, name: str, classes: tuple[str, ...], wanted: Wanted) -> tuple[Any, bool]:
    where = f"column {name!r}"
    first = _first_row(file, [name])
    sample, named = (None, True) if _is_text(first.column(name).type) else _labels(path, first, name, classes, where)
    if sample is None:
        numbers, named = _labels(path, _read(path, file, [name], wanted), name, classes, where)
        return ArraySource(numbers), named
    shape = (file.metadata.num_rows, *sample.shape[1:])
    return TableSource(path, shape, sample.dtype, (name,), lambda table: _values(path, table, name)), named


def _first_row(file: Any, names: list[str]) -> Any:
    arrow, _ = _arrow()
    batches = file.iter_batches(batch_size=1, columns=names)
    empty = file.schema_arrow.empty_table().select(names)
    return next((arrow.Table.from_batches([batch]) for batch in batches), empty)


def _scores(path: Path, table: Any, columns: Columns) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """(N, C) or (S, N, C) scores, and the names of the classes where each has a column."""
    parts = [_values(path, table, name) for name in columns.scores]
    if len(parts) == 1 and parts[0].ndim > 1:
        # a row holds C numbers, or S lists of C numbers
        return (parts[0] if parts[0].ndim == 2 else parts[0].transpose(1, 0, 2)), None
    if any(part.ndim > 1 for part in parts):
        raise refuse(path, f"more than one list column ({listing(columns.scores)})", "choose one with --scores-key")
    return np.stack(parts, axis=1), columns.class_names


class TableSource:
    """Columns of a table, read in batches of rows."""

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        names: tuple[str, ...],
        convert: Callable[[Any], np.ndarray],
    ) -> None:
        self.path, self.shape = path, shape
        self.dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._names, self._convert = list(names), convert

    def blocks(self, rows: int) -> Iterator[Tensor]:
        arrow, _ = _arrow()
        axis = 1 if len(self.shape) == 3 else 0
        with _table(self.path) as file:
            for batch in file.iter_batches(batch_size=rows, columns=self._names):
                block = self._convert(arrow.Table.from_batches([batch]))
                expected = (*self.shape[:axis], block.shape[axis], *self.shape[axis + 1 :])
                if block.shape != expected:
                    raise refuse(
                        self.path,
                        f"the lists of column {self._names[0]!r} differ in length",
                        "give every row one number per class",
                    )
                yield torch.from_numpy(block)


def labels_parquet(path: Path, wanted: Wanted) -> tuple[Any, str]:
    with _table(path) as file:
        names = file.schema_arrow.names
        key = choose(path, names, wanted.labels_key, LABEL_COLUMNS, "label column")
        if key is None:
            raise refuse(path, f"no label column (it has {listing(names)})", "name it with --labels-key")
        where = f"column {key!r} of {path.name!r}"
        if wanted.in_blocks:
            return _label_source(path, file, key, (), wanted)[0], where
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
        # a buffer makes the reader go through the pages one by one, instead of holding all columns of a row group
        with parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
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


def _is_text(kind: Any) -> bool:
    arrow, _ = _arrow()
    kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


def _labels(path: Path, table: Any, name: str, classes: tuple[str, ...], where: str) -> tuple[np.ndarray, bool]:
    column = table.column(name)
    if _is_text(column.type):
        if column.null_count:
            raise refuse(path, f"{where} has empty cells", "label every row")
        return index_labels(path, column.to_pylist(), classes, where)
    return _values(path, table, name), False
