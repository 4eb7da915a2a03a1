"""Print text, paragraphs and tables that fit the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO

from avuc.core.text import visible

# replacements for terminals without Unicode
ASCII = str.maketrans(
    {"×": "x", "–": "-", "−": "-", "…": "...", "→": "->", "≤": "<=", "·": "*", "─": "-", "’": "'", "█": "#", "░": "."}
)
STYLES = {"bold": "1", "warn": "1;33", "good": "32", "bad": "31", "dim": "2"}
MIN_WIDTH, MAX_WIDTH = 60, 120


class Console:
    """Prints to standard output or another stream; colours only on a terminal.

    Args:
        stream: where to print (default: standard output).
        quiet: print nothing.
        aliases: paths and what to print instead of them.
    """

    def __init__(
        self, stream: TextIO | None = None, *, quiet: bool = False, aliases: Mapping[str, str] | None = None
    ) -> None:
        self.stream: TextIO = sys.stdout if stream is None else stream
        self.quiet: bool = quiet
        self.aliases: dict[str, str] = dict(aliases or {})
        self.encoding: str = getattr(self.stream, "encoding", None) or "utf-8"
        terminal = self.stream.isatty()
        self.colour: bool = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        columns = shutil.get_terminal_size((100, 24)).columns
        self.width: int = min(max(columns, MIN_WIDTH), MAX_WIDTH)

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line; control characters, which a file name may contain, become escapes."""
        if self.quiet:
            return
        for path, alias in self.aliases.items():
            text = text.replace(path, alias)
        text = visible(text)
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            text = text.translate(ASCII).encode(self.encoding, "backslashreplace").decode(self.encoding)
        if style and self.colour:
            text = f"\x1b[{STYLES[style]}m{text}\x1b[0m"
        self.stream.write(text + "\n")

    def paragraph(self, text: str, *, style: str = "", lead: str = "") -> None:
        """Print wrapped text; `lead` stands before the first line, and the others are indented."""
        for index, line in enumerate(_wrapped(text, self.width - len(lead)) or [""]):
            self.line((lead if index == 0 else " " * len(lead)) + line, style)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> None:
        """Print a table; the last column takes the remaining width and wraps. `align`: `<` or `>` for each column."""
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head) - 1)]
        left = sum(widths) + 2 * len(widths)
        last = max(self.width - left, 16)
        self._row(head, widths, last, align, "bold")
        self.line("─" * min(self.width, left + max((len(row[-1]) for row in [head, *rows]), default=0)), "dim")
        for row in rows:
            self._row(row, widths, last, align)

    def _row(self, row: Sequence[str], widths: Sequence[int], last: int, align: str, style: str = "") -> None:
        cells = [f"{cell:{side}{width}}" for cell, width, side in zip(row[:-1], widths, align, strict=False)]
        wrapped = _wrapped(row[-1], last) or [""]
        self.line(("  ".join(cells) + "  " + wrapped[0]).rstrip(), style)
        for more in wrapped[1:]:
            self.line(" " * (sum(widths) + 2 * len(widths)) + more, style)


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap without breaking words, because a broken path could not be copied, and keep a number with its %."""
    lines = textwrap.wrap(text.replace(" %", "\u00a0%"), width, break_on_hyphens=False, break_long_words=False)
    return [line.replace("\u00a0%", " %") for line in lines]
