"""Names of methods and sets as names of files and folders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from avuc.core.text import mark

LONGEST = 60


def slug(name: str) -> str:
    """Return a name as part of a file name. Different names may have the same slug; see `slugs`.

    >>> slug("SVI-AvUC β=3")
    'svi-avuc-3'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def marked(name: str, otherwise: str = "row") -> str:
    """Return the slug with the beginning of the name's SHA-256, so that no other name has the same.

    >>> marked("方法一")
    'row-b6be1490'
    """
    return f"{slug(name)[:LONGEST].strip('-') or otherwise}-{mark(name)}"


def slugs(names: Iterable[str]) -> dict[str, str]:
    """Return a slug for each name; all are different, also on file systems that ignore case.

    Names with an empty, a long or a common slug get part of their SHA-256.

    >>> slugs(["SVI", "SVI-AvUC", "svi avuc", "方法一"])
    {'SVI': 'svi', 'SVI-AvUC': 'svi-avuc-dab26ef4', 'svi avuc': 'svi-avuc-2621fe3b', '方法一': 'row-b6be1490'}
    """
    plain = {name: slug(name) for name in names}
    counts = Counter(plain.values())
    unsure = {name for name, short in plain.items() if not short or len(short) > LONGEST or counts[short] > 1}
    return {name: marked(name) if name in unsure else short for name, short in plain.items()}
