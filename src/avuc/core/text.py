"""Names from files as text for people and for file names: control characters shown, long names shortened, marks."""

from __future__ import annotations

import hashlib

JOINERS = "\u200c\u200d"  # part of words in Persian, Hindi and others


def visible(text: str) -> str:
    r"""The text with every control character as its escape, so that no two texts look the same for one.

    >>> visible("a\nb\x1b[31m")
    'a\\nb\\x1b[31m'
    """
    return "".join(sign if sign.isprintable() or sign in JOINERS else repr(sign)[1:-1] for sign in text)


def short(text: str, most: int) -> str:
    """At most `most` characters; the end of a shortened text tells it from others that begin like it.

    >>> short("abc", 9), short("a" * 10_000, 12)
    ('abc', 'aaaaaa…27dd1')
    """
    text = visible(text)
    if len(text) <= most:
        return text
    return f"{text[: most - 6]}…{mark(text, 5)}"


def mark(name: str, digits: int = 8) -> str:
    """The beginning of the name's SHA-256, which tells it from names that look like it.

    >>> mark("a"), mark("A")
    ('ca978112', '559aead0')
    """
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
