"""Out-of-distribution data as a recipe names them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from avuc.core.errors import InputError
from avuc.study.own.code import is_path


@dataclass(frozen=True)
class OtherData:
    """One out-of-distribution data set.

    Args:
        name: its name in the results.
        path: a file or folder of images, or the import path of a function of your own that loads data; empty for the
            data set called `name`.
        first: use only this many images from the start; 0 for all.
    """

    name: str
    path: str = ""
    first: int = 0

    def __post_init__(self) -> None:
        if not self.name or self.first < 0:
            raise InputError(f"expected a name and first ≥ 0, found {self.name!r} and {self.first}")

    @staticmethod
    def of(entry: str | OtherData) -> OtherData:
        """Return the entry of `study.ood` as `OtherData`; a text is the name of a data set, or a path.

        >>> OtherData.of("data/svhn-test.npy").name
        'svhn-test'
        """
        if isinstance(entry, OtherData):
            return entry
        if is_path(entry):
            return OtherData(entry.partition(":")[2], entry)
        is_file = "." in Path(entry).name or "/" in entry
        return OtherData(Path(entry).stem, entry) if is_file else OtherData(entry)
