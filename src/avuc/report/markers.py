"""Generated parts of a hand-written text, between marks that a reader of the rendered page does not see.

    <!-- generated: NAME -->            a block: everything up to the end mark is replaced
    <!-- end: NAME -->

    ECE <!-- figure: best | SVI-AvUC | ece | 5 -->.097<!-- end -->            one number inside a sentence

Everything outside the marks stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from avuc.core.errors import InputError

__all__ = ["block_names", "fill"]

BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end: (?P=name) -->)", re.DOTALL)
BEGIN = re.compile(r"<!-- generated: ([\w-]+) -->")
FIGURE = re.compile(r"(<!-- figure: (?P<of>[^>]*?) -->).*?(<!-- end -->)")
FIGURE_BEGIN = "<!-- figure: "


def block_names(text: str) -> list[str]:
    """The blocks a text asks for, in order."""
    return BEGIN.findall(text)


def fill(text: str, blocks: Mapping[str, str], number: Callable[[Sequence[str]], str], source: str = "text") -> str:
    """The text with its blocks and figures filled in. `number` gets the words between the bars of a figure's mark.

    >>> fill("<!-- figure: a | b -->?<!-- end -->", {}, lambda words: "+".join(words))
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
    text = BLOCK.sub(lambda found: f"{found[1]}\n{blocks[found['name']].strip()}\n\n{found[3]}", text)
    return FIGURE.sub(lambda it: it[1] + number([word.strip() for word in it["of"].split("|")]) + it[3], text)
