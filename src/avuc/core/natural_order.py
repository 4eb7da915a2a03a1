"""The order in which people expect names: 2 before 10, site-9 before site-10, dates by time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

# a minus sign after a letter or digit joins two parts, as in 10-19; the parts of 1.2.3 and v1.10 are separate numbers
_NUMBER = re.compile(r"(?:(?<![\w.)\]-])-)?(?:(?<![\d.vV])\d+\.\d+(?![\d.])|\d+)", re.ASCII)
_WHOLE = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_BOUND = re.compile(r"(<=|>=|[<>≤≥])\s*(.*)", re.DOTALL)
_DAY = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?!\d)(.*)", re.ASCII | re.DOTALL)

Key = tuple[int, tuple[tuple[int, float, str], ...], int, str]


def natural_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of the numbers in them; the empty name is last.

    Dates that end with the year, such as 31/12/2023, are in the order of time. With slashes the month is first, unless
    one of them has a first number above 12; with dots and hyphens the day is first, unless a second one is above 12.

    >>> natural_order(["10", "b", "2", "", "-1", "a10", "a9"])
    ['-1', '2', '10', 'a9', 'a10', 'b', '']
    >>> natural_order(["65+", "18-25", "<18", "31/12/2023"])
    ['<18', '18-25', '31/12/2023', '65+']
    >>> natural_order(["05.01.2024", "31.12.2023"])
    ['31.12.2023', '05.01.2024']
    """
    listed = list(names)
    dates = [_DAY.fullmatch(name.strip()) for name in listed if name.strip()]
    if not dates or not all(dates):
        return sorted(listed, key=_key)
    first, second = (max(int(date[part]) for date in dates if date) for part in (1, 3))
    month_first = first <= 12 and (second > 12 or all(date[2] == "/" for date in dates if date))

    def by_time(name: str) -> Key:
        date = _DAY.fullmatch(name.strip())
        if date is None:
            return _key(name)
        day, month = (date[3], date[1]) if month_first else (date[1], date[3])
        return _key(f"{date[4]}/{month}/{day}{date[5]}")

    return sorted(listed, key=by_time)


def _key(name: str) -> Key:
    text = name.strip()
    bound = _BOUND.fullmatch(text)
    side = 0 if bound is None else (-1 if bound[1][0] in "<≤" else 1)
    text = text if bound is None else bound[2]
    if _WHOLE.fullmatch(text) and math.isfinite(float(text)):
        return 0, ((0, float(text), ""),), side, name
    parts, end = [], 0
    for found in _NUMBER.finditer(text):
        if found.start() > end:
            parts.append((1, 0.0, text[end : found.start()].casefold()))
        parts.append((0, float(found[0]), ""))
        end = found.end()
    if end < len(text):
        parts.append((1, 0.0, text[end:].casefold()))
    return int(not text), tuple(parts), side, name
