"""One more column of a file: the group of each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from avuc.core.errors import NoColumnError
from avuc.evaluation.files.formats.csv import open_csv
from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import ReadOptions

Array = np.ndarray[Any, np.dtype[Any]]
# cells that are no names: what pandas, R, SQL and spreadsheets write for a missing value
MISSING = ("nan", "NaN", "-nan", "-NaN", "NaT", "<NA>", "#N/A", "#NA", "null", "NULL")
# the same, but names of countries, regions and categories, too
UNCLEAR = ("NA", "N/A", "n/a", "None")


def read_groups(path: str | Path, name: str, rows: int) -> Array:
    """Return the group of each row: a column of a table, or an array of an .npz or .safetensors file.

    A missing group is "": an empty cell, a null, NaN, and the text of one such as `nan` or `<NA>`. `NA` and `None`,
    which may be names, are refused. Spaces around texts do not count, as for labels.

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
    return _without_missing(file, name, values)


def _without_missing(file: Path, name: str, values: Array) -> Array:
    """Return the column with "" for every missing group, as texts if there are any."""
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind != "U":
        missing = values != values  # NaN and NaT
        return np.where(missing, "", values.astype(str)) if missing.any() else values
    values = np.char.strip(values)
    found = np.unique(values)
    unclear = found[np.isin(found, UNCLEAR)]
    if len(unclear):
        rows = int((values == unclear[0]).sum())
        raise file_error(
            file,
            f"column {name!r} has {str(unclear[0])!r} in {rows:,} rows, which may be a missing value or a name",
            "leave these cells empty if the rows have no group, or write another name",
        )
    return np.where(np.isin(values, MISSING), "", values) if np.isin(found, MISSING).any() else values


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
