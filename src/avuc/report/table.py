"""A table that can be written as HTML, CSV, LaTeX and Markdown."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from avuc.core.text import visible

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # some spreadsheets treat full-width signs the same


@dataclass(frozen=True)
class Entry:
    """A number with its interval; `best` if it is printed in bold."""

    value: float
    low: float = math.nan
    high: float = math.nan
    best: bool = False

    @property
    def text(self) -> str:
        """The number and its interval, rounded; a dash if it is not defined."""
        if not math.isfinite(self.value):
            return "–"
        value = _short(self.value)
        return value if math.isnan(self.low) else f"{value} ({self.interval})"

    @property
    def interval(self) -> str:
        """Both bounds, with enough digits to look different."""
        return " … ".join(_bounds(self, _short))

    @property
    def html(self) -> str:
        """The number and, below it, the interval. A page has little room, so three digits; the exports have more."""
        if not math.isfinite(self.value):
            return self.text
        value = f"<b>{_three(self.value)}</b>" if self.best else _three(self.value)
        if math.isnan(self.low):
            return value
        low, high = _bounds(self, _three)
        return f"{value}<br><small>{low}\u2009…\u2009{high}</small>"


Cell = str | Entry


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows; `name` is its file name and its id on the page."""

    name: str
    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def html(self) -> str:
        """Return the table as HTML."""
        top = "".join(
            f'<th scope="col" class="{"n" if column and self._numbers(column) else ""}">{escape(visible(cell))}</th>'
            for column, cell in enumerate(self.head)
        )
        body = "".join(
            f'<tr><th scope="row">{escape(_text(row[0]))}</th>' + "".join(map(_td, row[1:])) + "</tr>"
            for row in self.rows
        )
        # tabindex: a region that scrolls must be reachable by keyboard
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(visible(self.title))}"><table>'
            f"<caption><span>{escape(visible(self.caption))}</span></caption>"
            f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _numbers(self, column: int) -> bool:
        return any(isinstance(row[column], Entry) for row in self.rows)

    def csv(self) -> str:
        """Return the table as CSV with full precision; intervals have columns of their own."""
        wide = [any(isinstance(r[c], Entry) and not math.isnan(r[c].low) for r in self.rows) for c in _columns(self)]  # type: ignore[union-attr]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([n for name, w in zip(self.head, wide, strict=True) for n in _names(name, w)])
        for row in self.rows:
            writer.writerow([v for cell, w in zip(row, wide, strict=True) for v in _values(cell, w)])
        return out.getvalue()

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [f"**{_md(self.title)}.** {_md(self.caption)}", "", _md_line(self.head)]
        lines.append(
            "|" + "|".join("---:" if column and self._numbers(column) else "---" for column in _columns(self)) + "|"
        )
        lines += [_md_line(row) for row in self.rows]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Return the table as LaTeX, for the booktabs package."""
        align = "".join("r" if column and self._numbers(column) else "l" for column in _columns(self))
        lines = [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_tex(self.title)}. {_tex(self.caption)}}}",
            f"\\label{{tab:{self.name}}}",
            f"\\begin{{tabular}}{{{align}}}",
            "\\toprule",
            _tex_line(self.head),
            "\\midrule",
            *(_tex_line(row) for row in self.rows),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
        ]
        return "\n".join(lines) + "\n"


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    if 0 < abs(value) < 0.00095:  # four decimals would lose most digits
        return f"{value:.2g}"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.3f}"


def _three(value: float) -> str:
    if 0.0995 <= abs(value) < 0.9995:  # above, an accuracy of 99.96 % would be 1.00
        return f"{value:.3f}"
    return f"{value:.2f}" if 1 <= abs(value) < 99.5 else _short(value)


def _bounds(entry: Entry, text: Callable[[float], str]) -> tuple[str, str]:
    """Return both bounds of the interval, with more digits if they would look the same."""
    low, high = text(entry.low), text(entry.high)
    for digits in range(3, 9):
        if low != high or entry.low == entry.high:
            break
        low, high = f"{entry.low:.{digits}g}", f"{entry.high:.{digits}g}"
    return low, high


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Entry) else visible(cell)


def _td(cell: Cell) -> str:
    return f'<td class="n">{cell.html if isinstance(cell, Entry) else escape(visible(cell))}</td>'


def _columns(table: Table) -> range:
    return range(len(table.head))


def _csv_text(text: str) -> str:
    """Return the text with an apostrophe before it if a spreadsheet would run it as a formula."""
    cell = visible(text)
    return f"'{cell}" if cell.lstrip()[:1] in FORMULA and cell.strip() else cell


def _names(name: str, wide: bool) -> list[str]:
    name = _csv_text(name)
    return [name, f"{name} low", f"{name} high"] if wide else [name]


def _values(cell: Cell, wide: bool) -> list[str]:
    if not isinstance(cell, Entry):
        text = _csv_text(cell)
        return [text, "", ""] if wide else [text]
    numbers = [cell.value, cell.low, cell.high] if wide else [cell.value]
    return [repr(float(number)) if math.isfinite(number) else "" for number in numbers]


def _md(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#&~$!])", r"\\\1", visible(" ".join(text.split())))


def _md_line(cells: Iterable[Cell]) -> str:
    texts = [(f"**{c.text}**" if c.best else c.text) if isinstance(c, Entry) else _md(c) for c in cells]
    return "| " + " | ".join(texts) + " |"


TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "…": r"\dots{}"}
TEX |= {"–": "--", "ρ": r"$\rho$", "β": r"$\beta$", "→": r"$\to$", "−": "$-$", "≤": r"$\le$", "≥": r"$\ge$"}
# in LaTeX's usual encoding of fonts these would be printed as ¡, ¿ and —
TEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}


def _tex(text: str) -> str:
    return "".join(TEX.get(c) or (f"\\{c}" if c in "&%$#_{}" else c) for c in visible(" ".join(text.split())))


def _tex_line(cells: Iterable[Cell]) -> str:
    texts = [f"\\textbf{{{_tex(c.text)}}}" if isinstance(c, Entry) and c.best else _tex(_text(c)) for c in cells]
    line = " & ".join(texts) + r" \\"
    # the \\ or \midrule of the line before would take "[…]" as its argument, and "*" as its own
    return "{}" + line if line.startswith(("[", "*")) else line
