"""The formats of saved predictions, and the way from a file's name to its arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from avuc.core.errors import InputError, out_of_memory
from avuc.core.files import check_regular, open_regular
from avuc.evaluation.files import csv, npy, parquet, tensors
from avuc.evaluation.files.label_file import add_labels
from avuc.evaluation.files.names import LABEL_NAMES, Found, Wanted, listing, refuse

__all__ = ["FORMATS", "TABLES", "HasKeys", "find_scores", "reading", "reads_also", "unlabelled"]

TABLES = (".parquet", ".csv")


@dataclass(frozen=True)
class Format:
    read: Callable[[Path, Wanted], Found]
    labels: Callable[[Path, Wanted], tuple[Any, str]] | None  # of a table: avuc.evaluation.files.label_file
    write: Callable[[Path, Path, Found, Any], None]


FORMATS: dict[str, Format] = {
    ".npz": Format(npy.read_npz, npy.labels_npz, npy.write_npz),
    ".npy": Format(npy.read_npy, npy.labels_npy, npy.write_npy),
    ".safetensors": Format(tensors.scores_tensors, tensors.labels_tensors, tensors.write_scores_tensors),
    ".parquet": Format(parquet.read_parquet, None, parquet.write_parquet),
    ".csv": Format(csv.read_csv, None, csv.write_csv),
}


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Say in one line that a file cannot be read, or that memory is short."""
    try:
        yield
    except OSError as error:
        where = Path(error.filename) if error.filename else file
        raise refuse(where, f"cannot be read ({error.strerror or error})", "check the file and its rights") from error
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise refuse(file, "there is not enough memory to hold it", "split it, or save float32 instead") from error


class HasKeys(Protocol):
    """What is used of a file of the same model."""

    @property
    def found(self) -> Found: ...


def find_scores(
    file: Path,
    *,
    labels: str | Path | None = None,
    scores_key: str | None = None,
    labels_key: str | None = None,
    max_gb: float | None = None,
    columns: str | Sequence[str] | None = None,
    like: HasKeys | None = None,
    needs_labels: bool = True,
    in_blocks: bool = False,
) -> Found:
    """The scores and the labels of a file, before anything is checked; `in_blocks`, they stay there."""
    wanted = Wanted(
        scores_key,
        labels_key if labels is None else None,
        max_gb,
        columns,
        prefer=() if like is None or scores_key is not None else like.found.keys,
        needs_labels=needs_labels and labels is None,
        in_blocks=in_blocks,
    )
    form = _format(file)
    if columns is not None and file.suffix.lower() not in TABLES:
        raise refuse(file, "has no columns with names", "leave out --columns, or name the scores with --scores-key")
    found = form.read(file, wanted)
    found.limit = wanted.limit
    if labels is not None:
        beside, other = Path(labels), Wanted(None, labels_key, max_gb, in_blocks=in_blocks)
        add_labels(file, found, beside, other, _format(beside).labels)
    return found


def unlabelled(path: Path) -> InputError:
    return refuse(
        path,
        f"no labels: none named {listing(LABEL_NAMES)}",
        "save them in the file, name them with --label, or give them with --labels FILE",
    )


def reads_also(path: str | Path) -> list[Path]:
    """The files beside it that are read with a file: the labels of a .npy."""
    file = Path(path)
    beside = npy.labels_beside(file)[1] if file.suffix.lower() == ".npy" else None
    return [] if beside is None else [beside]


def _format(path: Path) -> Format:
    """The file's format by its suffix, once it is known to be a file that can be opened and is not empty."""
    status = check_regular(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise refuse(path, f"unknown format {suffix!r}", f"save it as {', '.join(FORMATS)}")
    if status.st_size == 0:
        raise refuse(path, "is empty", "save the predictions again")
    with open_regular(path):
        return FORMATS[suffix]
