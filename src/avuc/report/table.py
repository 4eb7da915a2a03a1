"""A table and its forms: HTML for the page; CSV, LaTeX and Markdown beside it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from avuc.core.text import visible

__all__ = ["Cell", "Entry", "Table"]

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # the wide ones are the same to some spreadsheets


@dataclass(frozen=True)
class Entry:
    """A number as it is printed, and whether it is the best of its group or not told from it."""

    value: float
    low: float = math.nan
    high: float = math.nan
    best: bool = False

    @property
    def text(self) -> str:
        if not math.isfinite(self.value):
            return "–"
        shown = _short(self.value)
        return shown if math.isnan(self.low) else f"{shown} ({self.interval})"

    @property
    def interval(self) -> str:
        """Both bounds, with as many digits as it takes to tell one from the other."""
        low, high = _short(self.low), _short(self.high)
        for digits in range(3, 9):
            if low != high or self.low == self.high:
                break
            low, high = f"{self.low:.{digits}g}", f"{self.high:.{digits}g}"
        return f"{low} … {high}"


Cell = str | Entry


@dataclass(frozen=True)
class Table:
    """The first column names the row; entries of `best` groups run along rows."""

    name: str
    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def html(self) -> str:
        top = "".join(
            f'<th scope="col" class="{"n" if place and self._numbers(place) else ""}">{escape(visible(cell))}</th>'
            for place, cell in enumerate(self.head)
        )
        body = "".join(
            f'<tr><th scope="row">{escape(_text(row[0]))}</th>' + "".join(map(_td, row[1:])) + "</tr>"
            for row in self.rows
        )
        # a region that scrolls must be reachable by keyboard
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(visible(self.title))}"><table>'
            f"<caption>{escape(visible(self.caption))}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _numbers(self, column: int) -> bool:
        return any(isinstance(row[column], Entry) for row in self.rows)

    def csv(self) -> str:
        """Full precision; intervals in columns of their own."""
        wide = [any(isinstance(r[c], Entry) and not math.isnan(r[c].low) for r in self.rows) for c in _columns(self)]  # type: ignore[union-attr]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([n for name, w in zip(self.head, wide, strict=True) for n in _names(name, w)])
        for row in self.rows:
            writer.writerow([v for cell, w in zip(row, wide, strict=True) for v in _values(cell, w)])
        return out.getvalue()

    def markdown(self) -> str:
        lines = [f"**{_md(self.title)}.** {_md(self.caption)}", "", _md_line(self.head)]
        lines.append(
            "|" + "|".join("---:" if place and self._numbers(place) else "---" for place in _columns(self)) + "|"
        )
        lines += [_md_line(row) for row in self.rows]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        align = "".join("r" if place and self._numbers(place) else "l" for place in _columns(self))
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
    if 0 < abs(value) < 0.00095:  # four digits behind the point would show little of it, or nothing
        return f"{value:.2g}"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.3f}"


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Entry) else visible(cell)


def _td(cell: Cell) -> str:
    if not isinstance(cell, Entry):
        return f'<td class="n">{escape(visible(cell))}</td>'
    if math.isnan(cell.low) or not math.isfinite(cell.value):
        inner = escape(cell.text)
        return f'<td class="n">{"<b>" + inner + "</b>" if cell.best else inner}</td>'
    shown = _short(cell.value)
    inner = f"<b>{shown}</b>" if cell.best else shown
    return f'<td class="n">{inner}<br><small>{cell.interval}</small></td>'


def _columns(table: Table) -> range:
    return range(len(table.head))


def _csv_text(text: str) -> str:
    """A spreadsheet would run a text that begins like a formula; an apostrophe before it says that it is text."""
    shown = visible(text)
    return f"'{shown}" if shown.lstrip()[:1] in FORMULA and shown.strip() else shown


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
    shown = [(f"**{c.text}**" if c.best else c.text) if isinstance(c, Entry) else _md(c) for c in cells]
    return "| " + " | ".join(shown) + " |"


TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "…": r"\dots{}"}
TEX |= {"–": "--", "ρ": r"$\rho$", "β": r"$\beta$", "→": r"$\to$"}


def _tex(text: str) -> str:
    return "".join(TEX.get(c) or (f"\\{c}" if c in "&%$#_{}" else c) for c in visible(" ".join(text.split())))


def _tex_line(cells: Iterable[Cell]) -> str:
    shown = [f"\\textbf{{{_tex(c.text)}}}" if isinstance(c, Entry) and c.best else _tex(_text(c)) for c in cells]
    return " & ".join(shown) + r" \\"
