"""Labels of a .parquet table, read in blocks: numbers stay unchanged, texts become class numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.evaluation.files.columns.columns import index_labels
from avuc.evaluation.files.formats.arrow import LEAVE_OUT, arrow_modules, is_text, values, with_bool_texts
from avuc.evaluation.files.messages import file_error
from avuc.evaluation.files.names import Named, check_size

# rows of a label column that are read at a time
BATCH_ROWS = 1 << 16
# memory of a short Python string
TEXT_BYTES = 100
# more distinct numbers than this are not classes
MOST_NUMBERS = 1 << 20

Open = Callable[[], AbstractContextManager[Any]]  # opens the `pyarrow.parquet.ParquetFile`


class LabelSource:
    """A source of labels; `numbers` maps each text to its class number, and is None for a column of numbers."""

    def __init__(
        self, path: Path, name: str, rows: int, dtype: Any, open_file: Open, numbers: dict[str, Any] | None
    ) -> None:
        self.path: Path = path
        self.shape: tuple[int] = (rows,)
        self.dtype: torch.dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._name, self._dtype, self._open, self._numbers = name, dtype, open_file, numbers

    def blocks(self, rows: int) -> Iterator[Tensor]:
        with self._open() as file:
            for batch in _batches(file, self._name, rows):
                if self._numbers is None:
                    yield torch.from_numpy(values(self.path, batch, self._name, label=True))
                    continue
                for codes, words in _coded(self.path, batch, self._name):
                    known = np.array([self._numbers.get(word, -1) for word in words], self._dtype)
                    yield torch.from_numpy(known[codes])


def label_source(
    path: Path, file: Any, name: str, classes: Sequence[str], where: str, limit: int, open_file: Open
) -> tuple[LabelSource, Named]:
    """Return the source of a label column, and whether its labels are class names.

    Args:
        path: the table, for messages.
        file: the open table.
        name: the label column.
        classes: names of the classes.
        where: what messages call the column.
        limit: memory limit in bytes for the distinct texts.
        open_file: opens the table again.
    """
    rows, numbers = file.metadata.num_rows, None
    named: Named = False
    if _has_text(file, name):
        words = distinct_texts(path, file, name, limit)
        codes, named = index_labels(path, words, classes, where)
        numbers, dtype = dict(zip(words, codes.tolist(), strict=True)), codes.dtype
    else:
        dtype = values(path, _head(file, name), name, label=True).dtype
    return LabelSource(path, name, rows, dtype, open_file, numbers), named


def distinct_labels(path: Path, file: Any, name: str, limit: int) -> list[Any]:
    """Return the distinct texts or numbers of a label column, of numbers at most `MOST_NUMBERS`."""
    if _has_text(file, name):
        return distinct_texts(path, file, name, limit)
    distinct = values(path, _head(file, name), name, label=True)
    for batch in _batches(file, name, BATCH_ROWS):
        distinct = np.union1d(distinct, values(path, batch, name, label=True))[:MOST_NUMBERS]
    return list(distinct.tolist())


def distinct_texts(path: Path, file: Any, name: str, limit: int) -> list[str]:
    """Return the distinct texts of a column; raises for empty cells, bytes, and texts above the memory limit."""
    known: dict[str, None] = {}
    room = limit // 2
    for batch in _batches(file, name, BATCH_ROWS):
        for _, words in _coded(path, batch, name, limit):
            for word in words:
                if word not in known:
                    known[word] = None
                    room -= TEXT_BYTES + 4 * len(word)
            if room < 0:
                check_size(path, f"column {name!r}", limit + 1, limit)
    return list(known)


def _has_text(file: Any, name: str) -> bool:
    arrow, _ = arrow_modules()
    kind = file.schema_arrow.field(name).type
    return bool(arrow.types.is_boolean(kind) or (arrow.types.is_dictionary(kind) and is_text(arrow, kind.value_type)))


def _batches(file: Any, name: str, rows: int) -> Iterator[Any]:
    arrow, _ = arrow_modules()
    for batch in file.iter_batches(batch_size=rows, columns=[name], use_threads=False):
        yield with_bool_texts(arrow.Table.from_batches([batch]), name)


def _head(file: Any, name: str) -> Any:
    """Return the first row, or no row of an empty table."""
    return next(_batches(file, name, 1), file.schema_arrow.empty_table().select([name]))


def _coded(path: Path, table: Any, name: str, limit: int | None = None) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yield the texts of a batch as indices into distinct texts, and these texts."""
    arrow, _ = arrow_modules()
    for column in table.column(name).chunks:
        if column.null_count:
            raise file_error(path, f"column {name!r} has empty cells", LEAVE_OUT)
        if limit is not None:
            check_size(path, f"column {name!r}", 4 * column.dictionary.nbytes, limit)
        used, codes = np.unique(column.indices.to_numpy(zero_copy_only=False), return_inverse=True)
        words = column.dictionary.take(arrow.array(used)).to_pylist()
        if not all(isinstance(word, str) for word in words):
            raise file_error(path, f"column {name!r} contains bytes, not text", "save the labels as text or numbers")
        yield codes, [word.strip() for word in words]  # spaces around cells do not count, as in a .csv
