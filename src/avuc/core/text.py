"""Names from files as safe text: visible control characters, shortened names, hashes, and the most similar name."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable
from itertools import takewhile

JOINERS = "\u200c\u200d"  # part of words in Persian, Hindi and others


def visible(text: str) -> str:
    r"""Return the text with escapes for control characters, so that different texts look different.

    >>> visible("a\nb\x1b[31m")
    'a\\nb\\x1b[31m'
    """
    return "".join(sign if sign.isprintable() or sign in JOINERS else repr(sign)[1:-1] for sign in text)


def short(text: str, most: int) -> str:
    """Return at most `most` characters; a shortened text ends with a hash of the whole.

    >>> short("abc", 9), short("a" * 10_000, 12)
    ('abc', 'aaaaaa…27dd1')
    """
    text = visible(text)
    if len(text) <= most:
        return text
    return f"{text[: most - 6]}…{mark(text, 5)}"


def mark(name: str, digits: int = 8) -> str:
    """Return the first digits of the name's SHA-256, which differ for names that look alike.

    >>> mark("a"), mark("A")
    ('ca978112', '559aead0')
    """
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint: the most similar known name, and all known names.

    >>> did_you_mean("vanila", ["vanilla", "svi"])
    "did you mean 'vanilla'? There are vanilla, svi"
    """
    names = list(known)
    if not names:
        return "there are none"

    def nearness(known: str) -> tuple[float, int]:
        begins = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(str(name), known, strict=False)))
        return difflib.SequenceMatcher(None, str(name), known).ratio(), begins

    return f"did you mean {max(names, key=nearness)!r}? There are {', '.join(names)}"
