"""One more column of a file: the group of each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from avuc.core.errors import NoColumnError
from avuc.evaluation.files.formats.csv import open_csv
from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import ReadOptions


def read_groups(path: str | Path, name: str, rows: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the group of each row: a column of a table, or an array of an .npz or .safetensors file.

    A missing group of a table is "". Spaces around texts do not count, as for labels.

    Args:
        path: the file of the predictions.
        name: name of the column or array.
        rows: number of rows that are needed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("site,label\\nnorth,0\\nsouth,1\\n")
    ...     read_groups(Path(folder, "a.csv"), "site", 2).tolist()
    ['north', 'south']
    """
    file = Path(path)
    values, names = _READERS.get(file.suffix.lower(), _nothing)(file, name)
    if values is None:
        problem = f"has no column {name!r}; it has {listing(names)}"
        raise NoColumnError(str(file_error(file, problem, "pass one of these to --group")))
    if values.shape != (rows,):
        problem = f"column {name!r} has the shape {values.shape}, but {rows:,} rows are evaluated"
        raise file_error(file, problem, "give one group for each row")
    column: np.ndarray[Any, np.dtype[Any]] = np.char.strip(values) if values.dtype.kind in "US" else values
    return column


def _table(file: Path, name: str) -> tuple[Any, list[str]]:
    with open_csv(file, ReadOptions(max_gb=2**30)) as table:
        known = name.strip() in table.names  # spaces around cells do not count
        return (np.array(table.texts(name.strip())) if known else None), table.names


def _npz(file: Path, name: str) -> tuple[Any, list[str]]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return (arrays.get(name, None)), list(arrays)
    except ValueError as error:
        raise file_error(file, f"{name!r} cannot be read ({error})", "save text or numbers, not objects") from error


def _parquet(file: Path, name: str) -> tuple[Any, list[str]]:
    from avuc.core.errors import require

    parquet = require("pyarrow.parquet", "cli", "reading .parquet")
    names = list(parquet.read_schema(file).names)
    if name not in names:
        return None, names
    values = parquet.read_table(file, columns=[name])[name].to_pylist()
    return np.array(["" if value is None or value != value else str(value) for value in values]), names


def _safetensors(file: Path, name: str) -> tuple[Any, list[str]]:
    from avuc.core.tensor_file import read_tensors

    tensors, _ = read_tensors(file)
    return (tensors[name].numpy() if name in tensors else None), list(tensors)


def _nothing(file: Path, name: str) -> tuple[Any, list[str]]:
    raise NoColumnError(f"{file}: has one array only, so no groups {name!r}; use .npz, .safetensors, .parquet or .csv")


_READERS = {".csv": _table, ".tsv": _table, ".npz": _npz, ".parquet": _parquet, ".safetensors": _safetensors}
