"""One colour and one symbol for each method, everywhere: on the page, in the exported figures, on light and dark."""

from __future__ import annotations

__all__ = ["COLOURS", "SYMBOLS", "colour_of", "symbol_of"]

# (on a light page, on a dark page): Okabe & Ito's colours first, darkened or lightened to 3:1 against the page, then
# hues between them; neighbours in the list differ in lightness too, for readers who see no hue at all
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
# d3's names; a method keeps its own beyond the twelfth colour, so that no two look the same up to 84 of them
SYMBOLS = ("circle", "square", "triangle", "diamond", "star", "cross", "wye")


def colour_of(place: int) -> tuple[str, str]:
    """
    >>> colour_of(0) == colour_of(12)
    True
    """
    return COLOURS[place % len(COLOURS)]


def symbol_of(place: int) -> str:
    return SYMBOLS[(place + place // len(COLOURS)) % len(SYMBOLS)]
