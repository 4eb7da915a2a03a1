"""For the API reference: examples and lists in columns, in docstrings, are shown as they were typed."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


def fenced(lines: list[str], language: str) -> list[str]:
    indent = re.match(" *", lines[0])[0]  # type: ignore[index]
    return ["", f"{indent}```{language}", *lines, f"{indent}```"]


def with_fences(text: str) -> str:
    """Put the examples of a docstring (from `>>>` to the next empty line) and lists in columns into code blocks."""
    done = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        start = next((number for number, line in enumerate(lines) if line.lstrip().startswith(">>>")), None)
        columns = sum(bool(re.search(r"\S {2,}\S", line)) for line in lines)
        if start is not None:
            lines[start:] = fenced(lines[start:], "pycon")
        elif len(lines) > 1 and 2 * columns > len(lines) and not lines[0].startswith(" "):
            lines = fenced(lines, "text")
        done.append("\n".join(lines))
    return "\n\n".join(done)


class Doctests(Extension):
    """Griffe calls this for every object it reads."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)
