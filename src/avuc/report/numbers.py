"""Numbers as text: shares, changes and metrics, rounded so that the text is still true."""

from __future__ import annotations

import math

# a change below this is printed as 0: values have four digits, percentage points two
SMALLEST = 0.5e-4


def number(value: float, *, percent: bool = False) -> str:
    """Return a value with four digits, or in percent; a dash if it is not defined.

    >>> number(0.12344), number(0.5, percent=True), number(math.nan)
    ('0.1234', '50.00 %', '–')
    """
    if not math.isfinite(value):
        return "–"
    if percent:
        return f"{100 * value:.2f} %"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def percent(value: float) -> str:
    """Return a share as text, with more digits if rounding would give 0 % or 100 %.

    >>> percent(0.874), percent(0.9962), percent(0.99996)
    ('87 %', '99.6 %', '99.996 %')
    """
    points = 100 * value
    if 1 <= points <= 99 or value in (0, 1):
        return f"{points:.0f} %"
    texts = [f"{points:.{digits}f}" for digits in range(1, 7)]
    return next((text for text in texts if float(text) not in (0, 100)), texts[-1]) + " %"


def signed(change: float, *, percent: bool) -> str:
    """Return a change with its sign; in percentage points (pp) if the values themselves are in percent.

    >>> signed(-0.0123, percent=True), signed(0.0123, percent=False), signed(-0.00001, percent=False)
    ('-1.23 pp', '+0.0123', '0.0000')
    """
    if abs(change) < SMALLEST:
        change, sign = 0.0, ""
    else:
        sign = "+"
    return f"{100 * change:{sign}.2f} pp" if percent else f"{change:{sign}.4f}"


def distinct(first: float, second: float) -> tuple[str, str]:
    """Return two shares as text, with one more digit if they would look the same.

    >>> distinct(0.871, 0.874), distinct(0.99971, 0.99974)
    (('87.1 %', '87.4 %'), ('99.97 %', '99.97 %'))
    """
    texts = percent(first), percent(second)
    alike = texts[0] == texts[1] and first != second and "." not in texts[0]
    return (f"{100 * first:.1f} %", f"{100 * second:.1f} %") if alike else texts
