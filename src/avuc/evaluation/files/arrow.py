"""Pyarrow for .parquet files: columns as NumPy arrays, and a trial read in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from avuc.core.errors import require
from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import EXACT_RANGE

LEAVE_OUT = "label every row, or leave out the rows without a label"
LABELS = "save class numbers 0 … C−1, or the names of the classes as text"
SCORES = "save one column of numbers for each class, or one list column"
# files up to this size are read as a whole, of larger ones the footer and the first rows
PROBE_WHOLE_BYTES = 64 * 2**20
PROBE_SECONDS = 120
# what Python and Arrow take themselves
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
        texts = [one.name for one in plain.schema_arrow if one.type in words]
    with parquet.ParquetFile(path, read_dictionary=texts, buffer_size=1 << 16, pre_buffer=False) as file:
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group)
            for place in range(rows.num_columns):
                column = rows.column(place)
                column.path_in_schema, column.num_values, column.total_uncompressed_size
        for place, batch in enumerate(file.iter_batches(batch_size=4096, use_threads=False)):
            if os.path.getsize(path) > {PROBE_WHOLE_BYTES} and place:
                break
except MemoryError:
    os._exit({OUT_OF_MEMORY})
except BaseException:
    pass  # the reader meets the same error and says it
os._exit(0)
"""


def arrow_modules() -> tuple[Any, Any]:
    return require("pyarrow", "cli", "a .parquet file"), require("pyarrow.parquet", "cli", "a .parquet file")


def stacked(path: Path, held: Any, names: Sequence[str]) -> np.ndarray:
    """Score columns as (N, C), or (S, N, C) from one column of lists of lists."""
    first = values(path, held, names[0])
    if len(names) == 1:
        # a row holds C numbers, or S lists of C numbers
        return first if first.ndim < 3 else first.transpose(1, 0, 2)
    scores = _filled(path, held, names, np.float32)
    if max(scores.max(initial=0), -scores.min(initial=0)) > EXACT_RANGE:  # float32 may not tell these numbers apart
        scores = _filled(path, held, names, np.float64)
    return scores


def _filled(path: Path, held: Any, names: Sequence[str], dtype: Any) -> np.ndarray:
    scores = np.empty((len(held), len(names)), dtype)
    for place, name in enumerate(names):
        part = values(path, held, name)
        if part.ndim > 1:
            raise file_error(path, f"more than one list column ({listing(names)})", "choose one with --scores-key")
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
            raise file_error(path, f"column {name!r} has empty cells", "give every row its scores")
        inner = column.flatten()
        length, rest = divmod(len(inner), max(len(column), 1))
        lengths = require("pyarrow.compute", "cli", "a .parquet file").list_value_length
        if rest or any(count != length for count in lengths(column).unique().to_pylist()):
            raise file_error(
                path, f"the lists of column {name!r} differ in length", "give every row one number per class"
            )
        shape.append(length)
        column = inner
    if column.null_count:
        remedy = LEAVE_OUT if label else "give every row a number for each class"
        raise file_error(path, f"column {name!r} has empty cells", remedy)
    if types.is_decimal(column.type):
        column = column.cast(arrow.float64())
    if not (types.is_floating(column.type) or types.is_integer(column.type)) or len(shape) > 3:
        raise file_error(
            path, f"column {name!r} has type {_kind(table, name)}, not numbers", LABELS if label else SCORES
        )
    return np.array(column.to_numpy(zero_copy_only=False)).reshape(shape)  # a copy: Arrow's own memory is read-only


def _kind(table: Any, name: str) -> str:
    """The type of a column in few words."""
    kind = table.schema.field(name).type
    return str(getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind)[:80]


def probe_parquet(path: Path, limit: int) -> str | None:
    """What is wrong with the file, if it ends the process that reads it or takes too much memory; else None."""
    if not sys.executable:
        return None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
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
        return None  # no other process can be started here
    if done.returncode == OUT_OF_MEMORY:
        return "it needs more memory than the limit; raise it with --max-gb or AVUC_MAX_GB"
    return f"reading it ends the process with signal {-done.returncode}" if done.returncode < 0 else None
