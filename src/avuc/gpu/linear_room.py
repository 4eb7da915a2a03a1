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

import functools
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
    """One tile: words `start` … `stop`, which gradients it adds to, (T, words), and whether S is complete after it."""

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

    @functools.cached_property
    def sizes(self) -> Sizes:
        """What the places of tiles depend on."""
        return Sizes(
            self.tokens, self.depth, self.words, self.width, self.tail, self.kept,
            self.rows is not None, self.aside is not None, 0 if self.private is None else self.private.numel(),
            self.to_hidden, self.to_weight,
        )  # fmt: skip

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        return len(_planned(self.sizes))

    def allocate(self) -> None:
        """Take the memory that tiles need besides the gradients."""
        if self.private is None and _needs_own(self.sizes):
            self.private = self.hidden.new_empty(self.tokens * aligned(_private_words(self.sizes)))

    def steps(self) -> Iterator[Step]:
        """Yield the tiles in the order of the three steps above."""
        self.allocate()
        wholes = [self.rows, self.aside, self.private]
        for start, stop, to_hidden, to_weight, where, offset, stride, completes in _planned(self.sizes):
            whole = wholes[where]
            assert whole is not None
            tile = whole.as_strided((self.tokens, stop - start), (stride, 1), whole.storage_offset() + offset)
            yield Step(start, stop, to_hidden, to_weight, tile, completes)

    def parts(self, tensor: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """Return the words of each step, of a tensor that has all words in `dim`: views, made in one go."""
        first, others = _lengths(self.sizes)
        again = tensor.narrow(dim, self.kept, sum(first)).split_with_sizes(first, dim) if first else ()
        return (*again, *tensor.split_with_sizes(others, dim))


# Where a tile is: in the rows of the gradient in the weight, in the gradient in `hidden`, or in memory of its own.
ROWS, ASIDE, PRIVATE = range(3)


class Sizes(NamedTuple):
    """What the places of tiles depend on; see `Room`."""

    tokens: int
    depth: int
    words: int
    width: int
    tail: int
    kept: int
    rows: bool
    aside: bool
    private: int  # numbers in memory of its own that is there from the start
    to_hidden: bool
    to_weight: bool


class Place(NamedTuple):
    """A `Step` before its memory is known: rows of `stride` numbers from `offset` on."""

    start: int
    stop: int
    to_hidden: bool
    to_weight: bool
    where: int
    offset: int
    stride: int
    completes: bool = False


def _private_words(sizes: Sizes) -> int:
    return min(sizes.tail if sizes.rows else sizes.width, sizes.words)


@functools.lru_cache(maxsize=64)
def _planned(sizes: Sizes) -> tuple[Place, ...]:
    """Return the places of all tiles: steps of training repeat them, and Python is slower than a GPU here."""
    return tuple(_places(sizes))


@functools.lru_cache(maxsize=64)
def _needs_own(sizes: Sizes) -> bool:
    """Return whether a tile is in memory of its own."""
    return any(place.where == PRIVATE for place in _planned(sizes))


@functools.lru_cache(maxsize=64)
def _lengths(sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of words of the tiles of step 1, and of the other tiles, which have all words in order."""
    lengths = [place.stop - place.start for place in _planned(sizes)]
    others = next(number for number, place in enumerate(_planned(sizes)) if not place.start)
    return tuple(lengths[:others]), tuple(lengths[others:])


def _places(sizes: Sizes) -> Iterator[Place]:
    depth, words, kept, private = sizes.depth, sizes.words, sizes.kept, sizes.private
    start = kept
    while start < words and sizes.to_hidden:
        stop, where, offset, stride, private = _next(sizes, start, words, kept * depth, 0, sizes.aside, private)
        yield Place(start, stop, True, False, where, offset, stride)
        start = stop
    start = 0
    while start < kept:
        room = kept * depth if sizes.to_weight else 0
        stop, where, offset, stride, private = _next(sizes, start, kept, room, depth, sizes.aside, private)
        yield Place(start, stop, sizes.to_hidden, sizes.to_weight, where, offset, stride, stop == kept)
        start = stop
    while start < words:
        room = words * depth if sizes.to_weight else 0
        stop, where, offset, stride, private = _next(sizes, start, words, room, depth, False, private)
        yield Place(start, stop, False, True, where, offset, stride)
        start = stop


def _next(
    sizes: Sizes, start: int, end: int, room: int, written: int, has_aside: bool, private: int
) -> tuple[int, int, int, int, int]:
    """Return the end of the next tile, where it is, its offset and stride there, and the size of memory of its own.

    Args:
        sizes: of the layer.
        start: the first word that is left.
        end: the word after the last one that is left.
        room: numbers of the rows in which the words before `start` are final.
        written: numbers that each word of the tile adds to them; 0 if all of `room` is free.
        has_aside: whether the gradient in `hidden` is free.
        private: numbers in memory of its own so far.
    """
    left, tokens = end - start, sizes.tokens
    room = room if sizes.rows else 0
    in_rows = (room - start * written) // (written + tokens) if room else 0
    aside = sizes.depth if has_aside else 0
    if max(in_rows, aside) < min(sizes.tail, left) and not private:
        private = tokens * aligned(_private_words(sizes))
    own = private // tokens
    most = max(1, min(sizes.width, max(in_rows, aside, own)))
    grain = 8 * ALIGNED if most >= 64 * ALIGNED else ALIGNED
    if most < left:
        most = max(most // grain * grain, min(most, ALIGNED))
        if in_rows < aside or own > in_rows:  # room that does not shrink: tiles of one size
            even = -(-left // -(-left // most))
            most = min(most, -(-even // ALIGNED) * ALIGNED)
    words = min(most, left)
    stride = aligned(words)
    if words <= in_rows:
        free = room - (start + words) * written
        stride = stride if stride * tokens <= free else words
        return start + words, ROWS, room - stride * tokens, stride, private
    if words <= aside:
        return start + words, ASIDE, 0, stride if stride <= sizes.depth else words, private
    return start + words, PRIVATE, 0, stride if stride * tokens <= private else words, private
