r"""Fill generated parts into a hand-written Markdown text, between comments that the rendered page does not show.

    <!-- generated: NAME -->            a block: everything up to the end mark is replaced
    <!-- end: NAME -->

    ECE <!-- figure: best | SVI-AvUC | ece | 5 -->.097<!-- end -->            one number inside a sentence

In a row of a table, "\|" separates the parts of a mark: a plain "|" would end the cell. Text outside the marks is
not changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from avuc.core.errors import InputError

BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end: (?P=name) -->)", re.DOTALL)
BEGIN = re.compile(r"<!-- generated: ([\w-]+) -->")
FIGURE = re.compile(r"(<!-- figure: (?P<of>[^>]*?) -->).*?(<!-- end -->)")
FIGURE_BEGIN = "<!-- figure: "
CUT_BY_A_TABLE = re.compile(r"^\|.*<!-- figure: [^>]*?(?<!\\)\|", re.MULTILINE)


def block_names(text: str) -> list[str]:
    """Return the names of the blocks in a text, in order."""
    return BEGIN.findall(text)


def fill(text: str, blocks: Mapping[str, str], number: Callable[[Sequence[str]], str], source: str = "text") -> str:
    r"""Return the text with its blocks and numbers filled in.

    Args:
        text: Markdown with marks.
        blocks: content of each block, by name.
        number: function from the parts of a figure's mark (separated by "|" or "\|") to the number as text.
        source: name of the text in error messages.

    >>> fill("<!-- figure: a | b -->?<!-- end -->", {}, lambda parts: "+".join(parts))
    '<!-- figure: a | b -->a+b<!-- end -->'
    """
    for name in block_names(text):
        if name not in blocks:
            known = ", ".join(sorted(blocks)) or "none"
            raise InputError(f"{source}: no block {name!r} is generated; there are {known}")
        if text.count(f"<!-- generated: {name} -->") != 1 or text.count(f"<!-- end: {name} -->") != 1:
            raise InputError(f"{source}: block {name!r} needs one begin mark and one end mark")
    if len(FIGURE.findall(text)) != text.count(FIGURE_BEGIN):
        raise InputError(f"{source}: a figure's mark has no <!-- end --> in its line")
    if CUT_BY_A_TABLE.search(text):
        raise InputError(f'{source}: a figure\'s mark in a table needs "\\|" between its parts: "|" ends the cell')
    text = BLOCK.sub(lambda match: f"{match[1]}\n{blocks[match['name']].strip()}\n\n{match[3]}", text)
    return FIGURE.sub(
        lambda match: match[1] + number([part.strip() for part in re.split(r"\\?\|", match["of"])]) + match[3], text
    )
