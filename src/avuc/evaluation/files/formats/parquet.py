"""Read and write .parquet: one list column of scores or one numeric column per class, and a label column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.evaluation.files.columns.choose import choose_columns
from avuc.evaluation.files.columns.columns import index_labels
from avuc.evaluation.files.formats.arrow import (
    LEAVE_OUT,
    arrow_modules,
    column_of,
    is_text,
    probe_parquet,
    stacked,
    starts,
    values,
    with_bool_texts,
)
from avuc.evaluation.files.formats.parquet_labels import distinct_labels, label_source
from avuc.evaluation.files.messages import TOKENS_REMEDY, file_error
from avuc.evaluation.files.names import Named, RawScores, ReadOptions, check_size

# rows that are read to find out what a column contains
HEAD_ROWS = 256
# rows and bytes that are written at a time
BATCH_ROWS = 1 << 16
BATCH_BYTES = 1 << 26
# numbers of a list column that are read at a time
BATCH_NUMBERS = 1 << 20
# bytes of each column that are read ahead
BUFFER = 1 << 16


def read_parquet(path: Path, options: ReadOptions) -> RawScores:
    """Read scores and labels from the columns of a table."""
    with open_parquet(path, options) as table:
        columns = choose_columns(path, table.names, options, table)
        scores, classes = (_source if options.in_blocks else _scores)(table, columns.scores, columns.class_names)
        raw = RawScores(scores, columns.scores_from, columns.name, columns.scores, class_names=classes)
        raw.notes = list(columns.notes)
        if columns.label is not None:
            raw.labels_from = f"column {columns.label!r}"
            if options.needs_labels or options.only_mark:
                numbers = table.label_source if options.in_blocks else table.label_numbers
                with options.label_errors():
                    raw.labels, raw.labels_named = numbers(columns.label, columns.class_names, raw.labels_from)
    return raw


def write_parquet(source: Path, destination: Path, raw: RawScores, scores: Tensor) -> None:
    """Write the table again with new numbers of the same type in the score columns; the rest is copied.

    One batch of rows is in memory at a time, and repeated texts stay dictionary-encoded until their batch is written.
    """
    arrow, parquet = arrow_modules()
    with open_parquet(source, ReadOptions(max_gb=raw.limit / 1e9)) as table:
        schema, keys = table.file.schema_arrow, {name: index for index, name in enumerate(raw.keys)}
        kinds = [
            _floating(arrow, column.type) if column.name in keys else table.kinds[column.name] for column in schema
        ]
        schema = arrow.schema(
            [column.with_type(kind) for column, kind in zip(schema, kinds, strict=True)], schema.metadata
        )
        rows, done = (scores.transpose(0, 1) if scores.ndim == 3 else scores).numpy(), 0
        with parquet.ParquetWriter(destination, schema) as out:
            for batch in table.file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                for part in _slices(batch):
                    values = rows[done : done + len(part)]
                    done += len(part)
                    columns = [
                        column_of(values if len(keys) == 1 else values[:, keys[column.name]], column.type)
                        if column.name in keys
                        else part.column(index).cast(column.type)
                        for index, column in enumerate(schema)
                    ]
                    out.write_batch(arrow.RecordBatch.from_arrays(columns, schema=schema))


def _slices(batch: Any) -> Iterator[Any]:
    """Yield parts of a batch that stay small when their texts are decoded."""
    longest = 1
    for column in batch.columns:
        if hasattr(column, "dictionary"):
            words = column.dictionary
            longest = max(longest, words.nbytes if len(words) else 1)
    step = max(1, BATCH_BYTES // longest)
    yield from (batch.slice(start, step) for start in range(0, len(batch), step))


def _floating(arrow: Any, kind: Any) -> Any:
    """Return the type of a column for calibrated scores: floats keep theirs, integers become float32."""
    if arrow.types.is_fixed_size_list(kind):
        return arrow.list_(_floating(arrow, kind.value_type), kind.list_size)
    if arrow.types.is_list(kind) or arrow.types.is_large_list(kind):
        return arrow.list_(_floating(arrow, kind.value_type))
    return kind if arrow.types.is_float64(kind) else arrow.float32()


@contextmanager
def open_parquet(path: Path, options: ReadOptions, *, probe: bool = True) -> Iterator[_Table]:
    """Open the table, after a trial read in another process (`probe_parquet`)."""
    arrow, parquet = arrow_modules()
    problem = probe_parquet(path, options.limit) if probe else None
    if problem is not None:
        raise file_error(path, f"not a readable .parquet table ({problem})", "save the table again")
    try:
        with parquet.ParquetFile(path) as plain:
            kinds = {column.name: column.type for column in plain.schema_arrow}
        # repeated texts stay dictionary-encoded: decoded, a file of some kB may need many GB
        texts = [name for name, kind in kinds.items() if is_text(arrow, kind)]
        # with a buffer, pages are read one by one instead of all columns of a row group at once
        with parquet.ParquetFile(path, read_dictionary=texts, buffer_size=BUFFER, pre_buffer=False) as file:
            yield _Table(path, file, kinds, options)
    except InputError:
        raise
    except (arrow.ArrowException, OSError, EOFError, ValueError, LookupError, OverflowError) as error:
        if isinstance(error, MemoryError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise file_error(path, f"not a readable .parquet table ({reason[:160]})", "save the table again") from error


@dataclass
class _Table:
    """An open table. It is also the `TableSample` of the table."""

    path: Path
    file: Any
    kinds: dict[str, Any]
    options: ReadOptions
    known: dict[str, tuple[np.ndarray, list[str] | None]] = field(default_factory=dict)  # label columns read so far

    @cached_property
    def names(self) -> list[str]:
        return list(self.file.schema_arrow.names)

    def check(self, names: Iterable[str], *, whole: bool = False) -> None:
        """Raise if the columns need more memory than the limit, by the counts in the footer.

        The compressed size says little, because repeated values compress to almost nothing. In blocks, one row group is
        in memory at a time.
        """
        asked, meta, sizes = set(names), self.file.metadata, [0]
        depth = max((name.count(".") for name in asked), default=0)
        for group in range(meta.num_row_groups):
            rows, size = meta.row_group(group), 0
            for index in range(rows.num_columns):
                column = rows.column(index)
                if any(start in asked for start in starts(column.path_in_schema, depth)):
                    # 12 bytes for each number: 8 as it is read, 4 as it is kept
                    size += max(column.num_values * 12, column.total_uncompressed_size)
            sizes.append(size)
        if self.options.in_blocks and not whole:
            check_size(self.path, "a row group of the table", max(sizes), self.options.limit)
        else:
            check_size(self.path, "the table", max(sum(sizes), 12 * meta.num_rows), self.options.limit)

    def read(self, names: list[str]) -> Any:
        self.check(names, whole=True)
        return self.file.read(columns=names, use_threads=False)

    def label_numbers(self, name: str, classes: Sequence[str], where: str) -> tuple[np.ndarray, Named]:
        codes, words = self._label(name)
        if words is None:
            return codes, False
        values, named = index_labels(self.path, words, classes, where)
        return (values[codes] if len(values) else np.empty(0)), named

    def label_source(self, name: str, classes: Sequence[str], where: str) -> tuple[Any, Named]:
        """Return the same as a source that reads the file later."""
        self.check([name])
        reopen = partial(_reopened, self.path, self.options)
        return label_source(self.path, self.file, name, classes, where, self.options.limit, reopen)

    def _label(self, name: str) -> tuple[np.ndarray, list[str] | None]:
        """Return labels as numbers and None; or as indices into distinct texts, and these texts."""
        if name not in self.known:
            arrow, _ = arrow_modules()
            table = with_bool_texts(self.read([name]), name)
            column = table.column(name)
            if not arrow.types.is_dictionary(column.type) or not is_text(arrow, column.type.value_type):
                self.known[name] = values(self.path, table, name, label=True), None
                return self.known[name]
            if column.null_count:
                raise file_error(self.path, f"column {name!r} has empty cells", LEAVE_OUT)
            column = column.unify_dictionaries().combine_chunks()
            if isinstance(column, arrow.ChunkedArray):  # pyarrow returns this for an empty table
                self.known[name] = np.empty(0, np.int64), []
                return self.known[name]
            check_size(self.path, f"column {name!r}", 4 * column.dictionary.nbytes, self.options.limit)
            used = np.unique(codes := column.indices.to_numpy(zero_copy_only=False).astype(np.int64))
            words = column.dictionary.take(arrow.array(used)).to_pylist()
            if not all(isinstance(word, str) for word in words):
                raise file_error(
                    self.path, f"column {name!r} contains bytes, not text", "save the labels as text or numbers"
                )
            # spaces around cells do not count, as in a .csv
            self.known[name] = np.searchsorted(used, codes), [word.strip() for word in words]
        return self.known[name]

    def cells(self, name: str) -> list[str] | None:
        """Return the column as text, integers without a decimal point; None if it has empty cells or lists."""
        arrow, _ = arrow_modules()
        column = self.read([name]).column(name)
        text = arrow.types.is_dictionary(column.type) and is_text(arrow, column.type.value_type)
        if column.null_count or not (text or self.is_number(name)):
            return None
        codes, words = self._label(name)
        return [_number_text(number) for number in codes.tolist()] if words is None else [words[code] for code in codes]

    def is_number(self, name: str) -> bool:
        arrow, _ = arrow_modules()
        kind = self.kinds[name]
        return bool(arrow.types.is_floating(kind) or arrow.types.is_integer(kind) or arrow.types.is_decimal(kind))

    def is_list(self, name: str) -> bool:
        types = arrow_modules()[0].types
        kind = self.kinds[name]
        return bool(types.is_nested(kind) or types.is_fixed_size_list(kind))  # pyarrow 15 does not call these nested

    def text(self, name: str) -> str:
        return f"type {self.kinds[name]}"

    def rows(self, names: Sequence[str]) -> np.ndarray:
        self.check(names)
        for batch in self.file.iter_batches(batch_size=HEAD_ROWS, columns=list(names), use_threads=False):
            columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
            return np.stack([columns[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in names], axis=1)
        return np.empty((0, len(names)))

    def labels(self, name: str) -> frozenset[str]:
        if self.options.in_blocks:
            self.check([name])
            distinct = distinct_labels(self.path, self.file, name, self.options.limit)
            return frozenset(each if isinstance(each, str) else _number_text(each) for each in distinct)
        codes, words = self._label(name)
        if words is not None:
            return frozenset(words)
        return frozenset(_number_text(number) for number in np.unique(codes)[: 1 << 20].tolist())


@contextmanager
def _reopened(path: Path, options: ReadOptions) -> Iterator[Any]:
    with open_parquet(path, options, probe=False) as table:
        yield table.file


def _number_text(number: float) -> str:
    """Return a number as text, integers without a decimal point."""
    whole = isinstance(number, int) or (math.isfinite(number) and number == int(number) and abs(number) < 2**53)
    return str(int(number)) if whole else repr(number)


def _scores(table: _Table, names: tuple[str, ...], classes: tuple[str, ...]) -> tuple[np.ndarray, Any]:
    """Return scores (N, C), or (S, N, C) from one column of lists of lists; and the class names of several columns."""
    if len(names) > 1 or not table.is_list(names[0]):
        return stacked(table.path, table.read(list(names)), names), classes
    # in batches: as a whole, Arrow would hold the column once more, and keep that memory
    table.check(names, whole=True)
    source, _ = _source(table, names, classes)
    scores, done, axis = np.empty(source.shape, source.numpy_dtype), 0, 1 if len(source.shape) == 3 else 0
    for block in source.blocks(max(1, BATCH_NUMBERS * source.shape[axis] // max(1, scores.size))):
        part = scores[:, done : done + block.shape[axis]] if axis else scores[done : done + len(block)]
        part[:] = block.numpy()
        done += block.shape[axis]
    return scores, None


def _source(table: _Table, names: tuple[str, ...], classes: tuple[str, ...]) -> tuple[TableSource, Any]:
    """Return the same as a source that reads the file later."""
    arrow, _ = arrow_modules()
    table.check(names)
    batches = table.file.iter_batches(batch_size=1, columns=list(names), use_threads=False)
    empty = table.file.schema_arrow.empty_table().select(list(names))
    first = next((arrow.Table.from_batches([batch]) for batch in batches), empty)
    sample = stacked(table.path, first, names)
    rows = table.file.metadata.num_rows
    shape = (*sample.shape[:-2], rows, sample.shape[-1]) if sample.ndim > 1 else (rows,)
    source = TableSource(table.path, table.options, shape, sample.dtype, names)
    return source, None if len(names) == 1 and table.is_list(names[0]) else classes


class TableSource:
    """A source of score columns, read in batches of rows."""

    def __init__(
        self, path: Path, options: ReadOptions, shape: tuple[int, ...], dtype: np.dtype[Any], names: Sequence[str]
    ) -> None:
        self.path: Path = path
        self.shape: tuple[int, ...] = shape
        self.numpy_dtype: np.dtype[Any] = dtype
        self.dtype: torch.dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._wanted, self._names = options, list(names)

    def blocks(self, rows: int) -> Iterator[Tensor]:
        arrow, _ = arrow_modules()
        axis = 1 if len(self.shape) == 3 else 0
        with open_parquet(self.path, self._wanted, probe=False) as table:
            for batch in table.file.iter_batches(batch_size=rows, columns=self._names, use_threads=False):
                block = stacked(self.path, arrow.Table.from_batches([batch]), self._names)
                if block.shape != (*self.shape[:axis], block.shape[axis], *self.shape[axis + 1 :]):
                    raise file_error(
                        self.path,
                        f"the lists of column {self._names[0]!r} have different lengths",
                        TOKENS_REMEDY,
                    )
                yield torch.from_numpy(np.ascontiguousarray(block))
