"""Numbers in the cells of a table. Python's `float` also reads class names such as 1_000."""

from __future__ import annotations

import math
import re

import numpy as np

FINITE = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.ASCII | re.IGNORECASE)


def is_number(text: str) -> bool:
    """Return whether the text is a number as tables write it, or NaN or infinity.

    >>> [is_number(text) for text in ("-1.5e-3", ".5", "inf", "1_000", "१२", "0x1", "")]
    [True, True, True, False, False, False, False]
    """
    return is_finite_number(text) or NOT_FINITE.fullmatch(text) is not None


def is_finite_number(text: str) -> bool:
    """Return whether the text is a number as tables write it; nan and inf, which may be words, are not."""
    return FINITE.fullmatch(text) is not None


def is_comma_number(text: str) -> bool:
    """Return whether the text is a number without a decimal point, with or without a decimal comma."""
    return "." not in text and is_number(text.replace(",", ".", 1))


def as_number(text: str, comma: bool = False) -> float:
    """Return the number, NaN for text; `comma`: with a decimal comma."""
    if comma:
        return float(text.replace(",", ".")) if is_comma_number(text) else np.nan
    return float(text) if is_number(text) else np.nan


def whole_text(text: str) -> str:
    """Return the text of a whole number as plain digits; other texts as they are.

    Digits are not read as a float, which would make ids of more than 15 digits equal.

    >>> whole_text("1.0"), whole_text("007"), whole_text("1800000000000000001"), whole_text("a1")
    ('1', '7', '1800000000000000001', 'a1')
    """
    match = re.fullmatch(r"([+-]?\d{1,99})(\.0*)?", text, re.ASCII)
    if match:
        return str(int(match[1]))
    number = float(text) if is_number(text) else math.inf
    return str(int(number)) if abs(number) < 2**53 and number == int(number) else text
