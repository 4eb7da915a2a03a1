"""Pyarrow for .parquet files: columns as NumPy arrays, and a trial read in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from avuc.core.errors import require
from avuc.evaluation.files.messages import TOKENS_REMEDY, file_error, listing
from avuc.evaluation.files.names import EXACT_RANGE

LEAVE_OUT = "label every row, or remove the rows without a label"
LABEL_TYPES = "save class numbers 0 … C−1, or class names as text"
SCORE_TYPES = "save one column of numbers per class, or one list column"
# the trial reads files up to this size completely, and of larger files the footer and the first rows
PROBE_WHOLE_BYTES = 64 * 2**20
PROBE_SECONDS = 120
# memory of Python and Arrow themselves
PROBE_BASE_BYTES = 2 * 2**30
OUT_OF_MEMORY = 3
PROBE_CODE = f"""
import os, sys
path, limit = os.fsencode(sys.argv[1]).decode("utf-8", "surrogateescape"), int(sys.argv[2])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pyarrow, pyarrow.parquet as parquet
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
except (ImportError, ValueError, OSError):
    pass
try:
    with parquet.ParquetFile(path) as plain:
        words = (pyarrow.string(), pyarrow.large_string(), pyarrow.binary())
        texts = [field.name for field in plain.schema_arrow if field.type in words]
    with parquet.ParquetFile(path, read_dictionary=texts, buffer_size=1 << 16, pre_buffer=False) as file:
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group)
            for index in range(rows.num_columns):
                column = rows.column(index)
                column.path_in_schema, column.num_values, column.total_uncompressed_size
        for index, batch in enumerate(file.iter_batches(batch_size=4096, use_threads=False)):
            if os.path.getsize(path) > {PROBE_WHOLE_BYTES} and index:
                break
except MemoryError:
    os._exit({OUT_OF_MEMORY})
except BaseException:
    pass  # the reader gets the same error and reports it
os._exit(0)
"""


def arrow_modules() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet."""
    return require("pyarrow", "cli", "a .parquet file"), require("pyarrow.parquet", "cli", "a .parquet file")


def is_text(arrow: Any, kind: Any) -> bool:
    """Return whether a column of this type contains texts."""
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_binary(kind))


def with_bool_texts(table: Any, name: str) -> Any:
    """Return the table with a column of true and false as the texts True and False, as a .csv of pandas has them."""
    arrow, _ = arrow_modules()
    column = table.column(name)
    if not arrow.types.is_boolean(column.type):
        return table
    words, kind = arrow.array(["False", "True"]), arrow.dictionary(arrow.int8(), arrow.string())
    parts = [arrow.DictionaryArray.from_arrays(part.cast(arrow.int8()), words) for part in column.chunks]
    return table.set_column(table.schema.get_field_index(name), name, arrow.chunked_array(parts, kind))


def stacked(path: Path, held: Any, names: Sequence[str]) -> np.ndarray:
    """Return score columns as (N, C), or as (S, N, C) from one column of lists of lists."""
    first = values(path, held, names[0])
    if len(names) == 1:
        # each row contains C numbers, or S lists of C numbers
        return first if first.ndim < 3 else first.transpose(1, 0, 2)
    scores = _filled(path, held, names, np.float32)
    if max(scores.max(initial=0), -scores.min(initial=0)) > EXACT_RANGE:  # too large for float32
        scores = _filled(path, held, names, np.float64)
    return scores


def booleans_as_numbers(held: Any) -> Any:
    """Return the table with 1 and 0 in place of true and false."""
    arrow, _ = arrow_modules()
    for index, name in enumerate(held.column_names):
        if arrow.types.is_boolean(held.column(index).type):
            held = held.set_column(index, name, held.column(index).cast("int8"))
    return held


def _filled(path: Path, held: Any, names: Sequence[str], dtype: Any) -> np.ndarray:
    scores = np.empty((len(held), len(names)), dtype)
    for index, name in enumerate(names):
        part = values(path, held, name)
        if part.ndim > 1:
            raise file_error(path, f"several list columns ({listing(names)})", "choose one with --scores-key")
        with np.errstate(over="ignore"):  # infinite scores are refused later, with their row
            scores[:, index] = part
    return scores


def values(path: Path, table: Any, name: str, *, label: bool = False) -> np.ndarray:
    """Return a numeric column as (N,), a list column as (N,C), a list of lists as (N,S,C); `label` is for messages."""
    arrow, _ = arrow_modules()
    column = table.column(name).combine_chunks()
    if isinstance(column, arrow.ChunkedArray):  # of an empty table
        column = arrow.concat_arrays(column.chunks) if column.num_chunks else arrow.array([], column.type)
    shape, types = [len(column)], arrow.types
    while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        if column.null_count:
            raise file_error(path, f"column {name!r} has empty cells", "save scores for every row")
        inner = column.flatten()
        length, rest = divmod(len(inner), max(len(column), 1))
        lengths = require("pyarrow.compute", "cli", "a .parquet file").list_value_length
        if rest or any(count != length for count in lengths(column).unique().to_pylist()):
            raise file_error(path, f"the lists of column {name!r} have different lengths", TOKENS_REMEDY)
        shape.append(length)
        column = inner
    if column.null_count:
        remedy = LEAVE_OUT if label else "save a number for every class in every row"
        raise file_error(path, f"column {name!r} has empty cells", remedy)
    if types.is_decimal(column.type):
        column = column.cast(arrow.float64())
    if not (types.is_floating(column.type) or types.is_integer(column.type)) or len(shape) > 3:
        raise file_error(
            path, f"column {name!r} has type {_kind(table, name)}, not numbers", LABEL_TYPES if label else SCORE_TYPES
        )
    return np.array(column.to_numpy(zero_copy_only=False)).reshape(shape)  # a copy, because Arrow's memory is read-only


def column_of(values: np.ndarray, kind: Any) -> Any:
    """Return numbers (N,), lists (N, C) or lists of lists (N, S, C) as a column of this type."""
    arrow, _ = arrow_modules()
    if values.ndim == 1:
        return arrow.array(values, type=kind)
    length = values.shape[1]
    inner = column_of(values.reshape(-1, *values.shape[2:]), kind.value_type)
    if arrow.types.is_fixed_size_list(kind):
        return arrow.FixedSizeListArray.from_arrays(inner, length)
    ends = np.arange(len(values) + 1, dtype=np.int64) * length
    return arrow.ListArray.from_arrays(arrow.array(ends, type=arrow.int32()), inner)


def starts(path: str, depth: int) -> Iterator[str]:
    """Yield the parents of a nested column: a, a.b and a.b.c for `a.b.c`, with at most `depth` dots."""
    end = -1
    for _ in range(depth + 1):
        end = path.find(".", end + 1)
        yield path if end < 0 else path[:end]
        if end < 0:
            return


def _kind(table: Any, name: str) -> str:
    """Return the type of a column as a short text."""
    kind = table.schema.field(name).type
    return str(getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind)[:80]


def probe_parquet(path: Path, limit: int) -> str | None:
    """Read a file in another process, which a damaged file may kill. Return the problem, or None if there is none."""
    if not sys.executable:
        return None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-P", "-c", PROBE_CODE, str(path), str(min(limit, 2**42) + PROBE_BASE_BYTES)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"reading it takes more than {PROBE_SECONDS} s"
    except OSError:
        return None  # no other process can be started
    if done.returncode == OUT_OF_MEMORY:
        return "it needs more memory than the limit; raise the limit with --max-gb or AVUC_MAX_GB"
    return f"reading it kills the process with signal {-done.returncode}" if done.returncode < 0 else None
