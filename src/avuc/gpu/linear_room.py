"""Where the backward pass of `linear_avuc` keeps its tiles: in gradients that are not written yet.

A tile of w words is T·w numbers. In bfloat16 and float16 there is also a sum S, the gradient in `hidden` in float32, of
the size of 2·T·D numbers. The gradient in `weight` has V·D numbers, which become final from the first word on. While S
is elsewhere, the gradient in `hidden` has room for a tile of D words. So:

    1  the last words, whose rows hold S: the gradient in `hidden`. All other rows are free for the tile.
    2  the other words: both gradients. The tile is in the rows behind it, before S, or in the gradient in `hidden`.
    3  S becomes the gradient in `hidden`. The last words again: the gradient in `weight`. The tile is in the rows
       behind it: each has D/(D + T) of the words that are left, and the last TAIL words have memory of their own.

The price: the logits of the last words, 2·T of V, are computed once more. If these are more than a half, S has memory
of its own. If the gradient in `hidden` is summed in place (float32) or not needed, step 2 has all words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Tiles start at multiples of this word.
ALIGNED = 16
# Words of a tile with memory of its own, for the end, where no rows are left behind it. With more than MANY tokens per
# feature, tiles in rows are narrow from the start, and the wider one of the two is used.
TAIL, WIDE_TAIL, MANY = 32, 256, 8


def aligned(words: int) -> int:
    """Return the width of a tile in memory: products are slow if its rows start at odd places."""
    return -(-words // ALIGNED) * ALIGNED


class Step(NamedTuple):
    """One tile: words `start` … `stop`, which gradients it adds to, its memory, and whether S is complete after it."""

    start: int
    stop: int
    to_hidden: bool
    to_weight: bool
    tile: Tensor
    completes: bool = False


class Room:
    """Memory for tiles and for the float32 sum of the gradient in `hidden`.

    Args:
        hidden: (T, D).
        in_hidden: its gradient, (T, D), or None.
        in_weight: the gradient in the weight, (V, D), or None.
        words: V.
        width: most words of a tile.
        own: whether a tile of `width` words and the sum have memory of their own.
    """

    def __init__(
        self, hidden: Tensor, in_hidden: Tensor | None, in_weight: Tensor | None, words: int, width: int, own: bool
    ) -> None:
        tokens, depth = hidden.shape
        self.tokens: int = tokens
        self.depth: int = depth
        self.words: int = words
        self.width: int = min(width, words)
        self.hidden: Tensor = hidden
        self.to_hidden: bool = in_hidden is not None
        self.to_weight: bool = in_weight is not None
        self.sums: Tensor | None = None
        fits = not (hidden.numel() % ALIGNED or words * self.depth % ALIGNED)
        self.rows: Tensor | None = None if own or in_weight is None or not fits else in_weight.view(-1)
        self.kept: int = words  # words before the rows that hold the sum
        self.aside: Tensor | None = None  # the gradient in `hidden`, while it is summed elsewhere
        self.private: Tensor | None = hidden.new_empty(self.tokens * aligned(self.width)) if own else None
        self.tail: int = TAIL if self.tokens <= MANY * self.depth else WIDE_TAIL
        if self.rows is None and not own:  # nothing shrinks: one width for all tiles
            self.tail = WIDE_TAIL
            self.width = min(self.width, max(WIDE_TAIL, words * self.depth // (8 * max(self.tokens, 1))))
        if in_hidden is None or hidden.element_size() >= 4:
            return
        size = hidden.numel() * 4 // hidden.element_size()
        kept = (words - -(-size // self.depth)) // ALIGNED * ALIGNED
        if self.rows is not None and 2 * kept >= words:
            self.kept, end = kept, self.rows[len(self.rows) - size :]
            self.sums = end.view(torch.float32).view_as(hidden).zero_()
        else:
            self.sums = torch.zeros_like(hidden, dtype=torch.float32)
        self.aside = None if own or not fits else in_hidden.view(-1)

    def steps(self) -> Iterator[Step]:
        """Yield the tiles in the order of the three steps above."""
        start = self.kept
        while start < self.words and self.to_hidden:
            room = self.rows[: self.kept * self.depth] if self.rows is not None else None
            stop, tile = self._next(start, self.words, room, 0)
            yield Step(start, stop, True, False, tile)
            start = stop
        start = 0
        while start < self.kept:
            stop, tile = self._next(start, self.kept, self._behind(self.kept), self.depth)
            yield Step(start, stop, self.to_hidden, self.to_weight, tile, completes=stop == self.kept)
            start = stop
        self.aside = None
        while start < self.words:
            stop, tile = self._next(start, self.words, self._behind(self.words), self.depth)
            yield Step(start, stop, False, True, tile)
            start = stop

    def _behind(self, end: int) -> Tensor | None:
        return None if self.rows is None or not self.to_weight else self.rows[: end * self.depth]

    def _next(self, start: int, end: int, room: Tensor | None, written: int) -> tuple[int, Tensor]:
        """Return the end of the next tile and its memory: the end of `room`, the gradient in `hidden`, or its own.

        Args:
            start, end: the words that are left.
            room: memory in which the words before `start` are final.
            written: numbers that each word of the tile adds to them; 0 if all of `room` is free.
        """
        left, tokens = end - start, self.tokens
        in_rows = 0 if room is None else (len(room) - start * written) // (written + tokens)
        aside = 0 if self.aside is None else len(self.aside) // tokens
        if max(in_rows, aside) < min(self.tail, left) and self.private is None:
            words = min(self.tail if self.rows is not None else self.width, self.words)
            self.private = self.hidden.new_empty(tokens * aligned(words))
        own = 0 if self.private is None else len(self.private) // tokens
        most = max(1, min(self.width, max(in_rows, aside, own)))
        grain = 8 * ALIGNED if most >= 64 * ALIGNED else ALIGNED
        if most < left:
            most = max(most // grain * grain, min(most, ALIGNED))
            if in_rows < aside or own > in_rows:  # room that does not shrink: tiles of one size
                even = -(-left // -(-left // most))
                most = min(most, -(-even // ALIGNED) * ALIGNED)
        words = min(most, left)
        padded = aligned(words)
        if words <= in_rows and room is not None:
            free = len(room) - (start + words) * written
            tile = room[len(room) - (padded if padded * tokens <= free else words) * tokens :]
        elif words <= aside and self.aside is not None:
            tile = self.aside[: padded * tokens]
        else:
            assert self.private is not None
            tile = self.private[: padded * tokens]
        return start + words, tile
