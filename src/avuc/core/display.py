"""How results are displayed: one line in a terminal, a small table in a notebook, a pandas DataFrame on request."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from avuc.core.errors import require

# inherits the colours of the notebook, so that dark themes work
STYLE = "text-align:right;padding:2px 8px"


class Displayed:
    """Gives a class its `repr` and its HTML, from `_facts` and `_table`."""

    def _facts(self) -> Mapping[str, Any]:
        """Return the values that the one line shows, by name."""
        raise NotImplementedError

    def _table(self) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        """Return the header and the rows of the HTML table; by default the facts."""
        return ("", ""), list(self._facts().items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={text(value)}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), *self._table())


def text(value: Any) -> str:
    """Return a value as short text: four digits for numbers, a dash for NaN and None.

    >>> text(0.123456), text(12), text(math.nan), text(None), text("a")
    ('0.1235', '12', '–', '–', 'a')
    """
    if value is None:
        return "–"
    if isinstance(value, bool | int | str):
        return str(value)
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.4g}"
    return repr(value)


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table with a caption as HTML; every text is escaped.

    >>> html_table("<a>", ("name", "value"), [("x", 1)])[:46]
    '<table><caption>&lt;a&gt;</caption><thead><tr>'
    """

    def line(cells: Sequence[Any], tag: str) -> str:
        inside = (f'<{tag} style="{STYLE}">{html.escape(text(cell))}</{tag}>' for cell in cells)
        return f"<tr>{''.join(inside)}</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if any(header) else ""
    body = "".join(line(row, "td") for row in rows)
    return f"<table><caption>{html.escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def data_frame(columns: Mapping[str, Any], index: Any = None) -> Any:
    """Return a pandas DataFrame; `MissingExtra` if pandas is not installed."""
    return require("pandas", "pandas", "to_frame").DataFrame(dict(columns), index=index)
