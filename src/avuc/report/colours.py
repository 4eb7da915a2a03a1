"""One colour and one symbol for each method, the same on the page and in the exported figures."""

from __future__ import annotations

# (on a light page, on a dark page). First the colours of Okabe and Ito, with a contrast of at least 3:1 to the page;
# then hues between them. Neighbours in the list also differ in lightness, for readers who cannot see hues.
COLOURS = (
    ("#0072b2", "#5ab4ea"),
    ("#c77700", "#f0a830"),
    ("#00805d", "#34c99f"),
    ("#b3478d", "#e79ac9"),
    ("#d55e00", "#ff8a3d"),
    ("#3a3f8f", "#9aa0f0"),
    ("#6b7480", "#aab4bf"),
    ("#7a5c00", "#d6b84a"),
    ("#16191d", "#f4f6f8"),
    ("#8b1a1a", "#f08080"),
    ("#5a8f00", "#a5d84a"),
    ("#6a3d9a", "#c9a3f2"),
)
# names of d3; combined with the colours, up to 84 methods look different
SYMBOLS = ("circle", "square", "triangle", "diamond", "star", "cross", "wye")


def colour_of(index: int) -> tuple[str, str]:
    """Return the colours of method number `index` on light and on dark pages.

    >>> colour_of(0) == colour_of(12)
    True
    """
    return COLOURS[index % len(COLOURS)]


def symbol_of(index: int) -> str:
    """Return the symbol of method number `index`."""
    return SYMBOLS[(index + index // len(COLOURS)) % len(SYMBOLS)]
