"""For the API reference: examples in docstrings are shown as code, and the formulas above them as they were typed."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


def with_fences(text: str) -> str:
    """Put the examples of a docstring, from `>>>` to the next empty line, into code blocks."""
    lines, inside = [], False
    for line in text.split("\n"):
        if not inside and line.lstrip().startswith(">>>"):
            indent = line[: len(line) - len(line.lstrip())]
            lines += ["", f"{indent}```pycon"]
            inside = True
        elif inside and not line.strip():
            lines.append(f"{indent}```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, f"{indent}```"] if inside else lines)


class Doctests(Extension):
    """Griffe calls this for every object it reads."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)
