"""Shifts of sentences: typing errors and missing words. Each sentence is changed independently of the others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

Changed = TypeVar("Changed")
# the letter keys of a QWERTY keyboard
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
TYPO_RATES = (0.02, 0.05, 0.1, 0.15, 0.25)  # share of letters, severities 1 to 5
DROP_RATES = (0.1, 0.2, 0.3, 0.4, 0.6)  # share of words
WORD = re.compile(r"\S+")  # the words of str.split


def _neighbours() -> dict[str, str]:
    # each row of keys is shifted by half a key against the one above
    positions = {key: (column + row / 2, row) for row, keys in enumerate(ROWS) for column, key in enumerate(keys)}
    return {
        key: "".join(o for o, (a, b) in positions.items() if o != key and abs(a - x) <= 1 and abs(b - y) <= 1)
        for key, (x, y) in positions.items()
    }


NEIGHBOURS = _neighbours()


def typos(texts: Sequence[str], severity: int, generator: torch.Generator) -> list[str]:
    """Return sentences in which some letters are replaced by a key next to them on a QWERTY keyboard.

    Args:
        texts: the sentences.
        severity: 1 to 5: 2, 5, 10, 15 or 25 % of the letters a–z.
        generator: of the random choices.

    >>> typos(["a short sentence"], 5, torch.Generator().manual_seed(0))
    ['a short sdntencw']
    """

    def change(text: str, chance: np.random.Generator) -> str:
        wrong = chance.random(len(text)) < TYPO_RATES[severity - 1]
        return "".join(_typo(letter, chance) if miss else letter for letter, miss in zip(text, wrong, strict=True))

    return _each(texts, change, generator)


def word_dropout(texts: Sequence[str], severity: int, generator: torch.Generator) -> list[str]:
    """Return sentences without some of their words; at least one word stays.

    Words stand between any white space, as for `str.split`. The space between two words that stay is kept if it is more
    than ASCII, such as a no-break space; ASCII white space becomes one space.

    Args:
        texts: the sentences.
        severity: 1 to 5: a word is dropped with probability 0.1, 0.2, 0.3, 0.4 or 0.6.
        generator: of the random choices.

    >>> word_dropout(["one two three four five six"], 3, torch.Generator().manual_seed(0))
    ['one two three four six']
    """
    return only_words(texts, kept_words(texts, severity, generator))


def kept_words(texts: Sequence[str], severity: int, generator: torch.Generator) -> list[list[int]]:
    """Return the indices of the words that `word_dropout` keeps, for each sentence; same arguments.

    >>> kept_words(["one two three four five six"], 3, torch.Generator().manual_seed(0))
    [[0, 1, 2, 3, 5]]
    """

    def choose(text: str, chance: np.random.Generator) -> list[int]:
        count = len(text.split())
        kept = chance.random(count) >= DROP_RATES[severity - 1]
        if count and not kept.any():
            kept[chance.integers(count)] = True
        return np.flatnonzero(kept).tolist()

    return _each(texts, choose, generator)


def only_words(texts: Sequence[str], indices: Sequence[Sequence[int]]) -> list[str]:
    """Return sentences that have only the words at these indices, which ascend; white space as in `word_dropout`.

    >>> only_words(["one two three"], [[0, 2]])
    ['one three']
    """
    return [_with_spaces(text, chosen) for text, chosen in zip(texts, indices, strict=True)]


def _with_spaces(text: str, chosen: Sequence[int]) -> str:
    words = text.split()
    if text.isascii() or not chosen:
        return " ".join(words[index] for index in chosen)
    first, *between, last = ("" if space.isascii() else space for space in WORD.split(text))
    parts = [first if chosen[0] == 0 else ""]
    for index, following in zip(chosen, [*chosen[1:], None], strict=True):
        parts.append(words[index])
        if following is not None:  # where words are missing, a plain space wins
            gap = between[index:following]
            parts.append(gap[0] if all(gap) else " ")
        elif index == len(words) - 1:
            parts.append(last)
    return "".join(parts)


TEXT_SHIFTS: dict[str, Callable[[Sequence[str], int, torch.Generator], list[str]]] = {
    "typos": typos,
    "word_dropout": word_dropout,
}


def _typo(letter: str, chance: np.random.Generator) -> str:
    keys = NEIGHBOURS.get(letter.lower(), "")
    if not keys:
        return letter
    key = keys[int(chance.integers(len(keys)))]
    return key.upper() if letter.isupper() else key


def _each(
    texts: Sequence[str], change: Callable[[str, np.random.Generator], Changed], generator: torch.Generator
) -> list[Changed]:
    """Change each sentence with its own random numbers, which depend on the generator and on the sentence."""
    key = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return [change(text, np.random.default_rng([key, _number(text)])) for text in texts]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little")
