"""The names of shifts in a report: avuc's own in words, functions without their module, files without their folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from avuc.study.own.code import is_path
from avuc.study.own.text_file import is_text_file

OUTSIDE = "ood:"


def shift_names(shifts: Iterable[str]) -> dict[str, str]:
    """Return the name of each shift in texts, tables and charts; a name that several would have is left in full.

    >>> shift_names(["gaussian_noise", "my_package.shifts:heavy_rain", "texts/other_reviews.csv", "ood:svhn"]).values()
    dict_values(['gaussian noise', 'heavy rain', 'other_reviews.csv', 'svhn'])
    >>> shift_names(["fog", "my_package:fog"])["my_package:fog"]
    'my_package:fog'
    """
    short = {shift: _short(shift) for shift in shifts}
    several = {name for name, count in Counter(short.values()).items() if count > 1}
    return {
        shift: shift if name in several and (is_path(shift) or is_text_file(shift)) else name
        for shift, name in short.items()
    }


def _short(shift: str) -> str:
    if shift.startswith(OUTSIDE):
        return shift.removeprefix(OUTSIDE).replace("_", " ")
    if is_text_file(shift):
        return Path(shift).name
    function = shift.partition(":")[2] if is_path(shift) else shift
    return function.replace("_", " ")
