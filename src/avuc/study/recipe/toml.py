"""Write TOML: Python reads it but does not write it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")


def document(tables: Mapping[str, Any]) -> str:
    """Return tables as TOML text: lists of tables as [[name]], and each value on one line.

    >>> print(document({"train": {"epochs": 2}, "methods": [{"name": "SVI"}]}), end="")
    [train]
    epochs = 2
    <BLANKLINE>
    [[methods]]
    name = "SVI"
    """
    parts = []
    for name, content in tables.items():
        for table in content if isinstance(content, list) else [content]:
            head = f"[[{key(name)}]]" if isinstance(content, list) else f"[{key(name)}]"
            parts.append("\n".join([head, *(f"{key(k)} = {value(v)}" for k, v in table.items())]) + "\n")
    return "\n".join(parts)


def value(item: Any) -> str:
    """Return one value as TOML.

    >>> value({"a": [1, 0.5, True], "b": "x"})
    '{a = [1, 0.5, true], b = "x"}'
    """
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, str):
        return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(item, float) and not math.isfinite(item):
        return "nan" if math.isnan(item) else "inf" if item > 0 else "-inf"
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{key(k)} = {value(v)}" for k, v in item.items()) + "}"
    if isinstance(item, list | tuple):
        return "[" + ", ".join(value(element) for element in item) + "]"
    return repr(item)


def key(name: str) -> str:
    return name if BARE.fullmatch(name) else value(name)
