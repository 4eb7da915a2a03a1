"""The two passes of `avuc.losses.linear.tiles` on an NVIDIA GPU: cuBLAS products and one Triton kernel per tile.

The backward pass needs room for a tile of logits and, in bfloat16 and float16, for the gradient in `hidden` in float32.
If there are many logits it takes that room from the gradient in `weight`, which it fills from the first word on: the
last words' rows are free until it gets there.

    1  words whose rows are not used as room: both gradients
    2  the other words: the gradient in `hidden`, which is then complete, and its room is free again
    3  the same words once more: the gradient in `weight`, in tiles that shrink with the room that is left

So memory above inputs and gradients is a few numbers per token and one small tile. The price: the logits of step 3 are
computed a third time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from avuc.gpu.kernels.linear_softmax import available, replace_by_gradient, update_softmax
from avuc.losses.linear.tiles import Coefficients, Options, Partial, spans

# Most logits in a tile, and the share of the weight's size that a tile may have: the forward pass must not need more
# than the gradients of the backward pass.
FORWARD_TILE, FORWARD_SHARE = 1 << 27, 2
BACKWARD_TILE, BACKWARD_SHARE = 1 << 26, 8
# With fewer logits than these, memory matters less than the time that a processor takes to start many kernels: the
# backward pass then has room of its own, for a few wide tiles, and computes no logits a third time.
FEW_LOGITS, FEW_TILE = 1 << 28, 1 << 25
# Tiles start at multiples of this word, and the last ones have this width: no rows are left behind them to keep a wider
# one in.
ALIGNED = 16


def unsupported_reason(hidden: Tensor, weight: Tensor) -> str | None:
    """Return why these tensors cannot take this path, None if they can."""
    if not (hidden.is_cuda and weight.is_cuda):
        return "it needs an NVIDIA GPU"
    if not available():
        return "Triton is not installed"
    if hidden.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it computes in bfloat16, float16 or float32, not in {hidden.dtype}"
    if torch.cuda.get_device_capability(hidden.device) < (8, 0):
        return "it needs compute capability 8.0"
    return None


def forward_tiles(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: Options) -> Partial:
    """Return the online softmax of the logits; see `avuc.losses.linear.tiles.forward_tiles`."""
    tokens = len(hidden)
    # the kernels read the next element, wherever the stride points
    hidden, labels, bias = hidden.contiguous(), labels.contiguous(), None if bias is None else bias.contiguous()
    largest = torch.full((tokens,), torch.finfo(torch.float32).min, device=hidden.device)
    rest, spread, label_logit = torch.full_like(largest, -1), torch.zeros_like(largest), torch.zeros_like(largest)
    part = Partial(largest, rest, spread, label_logit, torch.zeros_like(labels))
    if not tokens:
        return part
    width = min(len(weight), options.width or _width(hidden, weight, FORWARD_TILE, FORWARD_SHARE))
    room = hidden.new_empty(tokens * width)
    for start, stop in spans(len(weight), width):
        z = _logits(hidden, weight[start:stop], room)
        update_softmax(z, _slice(bias, start, stop), labels, part, options._replace(first=options.first + start))
    return part


class Step(NamedTuple):
    """One tile of the backward pass: words `start` … `stop`, and which gradients it adds to."""

    start: int
    stop: int
    to_hidden: bool
    to_weight: bool


def backward_tiles(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    predicted: Tensor,
    coefficients: Coefficients,
    options: Options,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients in hidden, weight and bias; see `avuc.losses.linear.tiles.backward_tiles`."""
    words = len(weight)
    hidden, labels, bias = hidden.contiguous(), labels.contiguous(), None if bias is None else bias.contiguous()
    in_hidden = torch.zeros_like(hidden) if needed[0] else None
    in_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if needed[1] else None
    in_bias = torch.empty(words, device=weight.device) if needed[2] and bias is not None else None
    if not len(hidden):
        return (
            in_hidden,
            None if in_weight is None else in_weight.zero_(),
            None if bias is None else torch.zeros_like(bias),
        )
    coefficients = Coefficients(*(column.contiguous() for column in coefficients))
    few = len(hidden) * words <= FEW_LOGITS
    width = _width(hidden, weight, *((FEW_TILE, 1) if few else (BACKWARD_TILE, BACKWARD_SHARE)))
    width = min(words, options.width or width)
    room = Room(None if few else in_weight, hidden, width, needed[0])
    for step in room.steps(words, width, needed):
        rows = weight[step.start : step.stop]
        z = _logits(hidden, rows, room.tile(step))
        place = options._replace(first=options.first + step.start)
        replace_by_gradient(z, _slice(bias, step.start, step.stop), labels, predicted, coefficients, place)
        if step.to_hidden and in_hidden is not None:
            _add_product(in_hidden if room.sums is None else room.sums, z, rows)
        if step.to_weight and in_weight is not None:
            torch.mm(z.t(), hidden, out=in_weight[step.start : step.stop])
        if in_bias is not None and (step.to_weight or in_weight is None):
            torch.sum(z, dim=0, dtype=torch.float32, out=in_bias[step.start : step.stop])
        if step.stop == words and in_hidden is not None and room.sums is not None:
            in_hidden.copy_(room.sums)
            room.sums = None
    return in_hidden, in_weight, None if in_bias is None or bias is None else in_bias.to(bias.dtype)


class Room:
    """Where tiles and float32 sums are kept: in the rows of `in_weight` that are not final yet, if there are enough.

    Args:
        in_weight: the gradient in the weight, (V, D), or None.
        hidden: (T, D).
        width: words of a full tile.
        with_sums: whether the gradient in `hidden` is needed.
    """

    def __init__(self, in_weight: Tensor | None, hidden: Tensor, width: int, with_sums: bool) -> None:
        self.hidden, self.flat, self.sums = hidden, None, None
        self.borrowed = 0  # elements at the end of `in_weight` that steps 1 and 2 use
        sums = hidden.numel() * 4 // hidden.element_size() if with_sums and hidden.element_size() < 4 else 0
        tile = len(hidden) * width
        room = 0 if in_weight is None or (in_weight.numel() | hidden.numel()) % ALIGNED else in_weight.numel()
        if in_weight is not None and sums + tile <= room // 2:
            self.flat, self.borrowed = in_weight.view(-1), sums + tile
            self.full = self.flat[room - sums - tile : room - sums]
            if sums:
                self.sums = self.flat[room - sums :].view(torch.float32).view_as(hidden).zero_()
        else:
            self.full = hidden.new_empty(tile)
            if sums:
                self.sums = torch.zeros_like(hidden, dtype=torch.float32)

    def steps(self, words: int, width: int, needed: tuple[bool, bool, bool]) -> Iterator[Step]:
        """Yield the tiles in the order of the three steps above."""
        to_hidden, to_weight, _ = needed
        depth, tokens = self.hidden.shape[1], len(self.hidden)
        # words whose rows are not borrowed
        kept = words if not self.borrowed else (words - -(-self.borrowed // depth)) // ALIGNED * ALIGNED
        for start, stop in spans(kept, width):
            yield Step(start, stop, to_hidden, to_weight)
        if kept == words:
            return
        if to_hidden:
            for start, stop in spans(words - kept, width):
                yield Step(kept + start, kept + stop, True, False)
        self.last = self.hidden.new_empty(tokens * ALIGNED)
        start = kept
        while start < words:
            # the rows behind the tile hold its logits
            fits = (words - start) * depth // (depth + tokens) // ALIGNED * ALIGNED
            stop = min(words, start + max(ALIGNED, min(width, fits)))
            yield Step(start, stop, False, True)
            start = stop

    def tile(self, step: Step) -> Tensor:
        """Return memory for the logits of a tile."""
        if step.to_hidden or self.flat is None or not self.borrowed or self._before_borrowed(step):
            return self.full
        size = (step.stop - step.start) * len(self.hidden)
        return self.last[:size] if size <= len(self.last) else self.flat[len(self.flat) - size :]

    def _before_borrowed(self, step: Step) -> bool:
        assert self.flat is not None
        return step.stop * self.hidden.shape[1] <= len(self.flat) - self.borrowed


def _logits(hidden: Tensor, rows: Tensor, room: Tensor) -> Tensor:
    z = room[: len(hidden) * len(rows)].view(len(hidden), len(rows))
    return torch.mm(hidden, rows.t(), out=z)


def _add_product(sums: Tensor, dz: Tensor, rows: Tensor) -> None:
    """Add dz·rows to `sums`, in float32 if `sums` is."""
    if sums.dtype == dz.dtype:
        sums.addmm_(dz, rows)
    elif dz.is_cuda and hasattr(torch.ops.aten.addmm, "dtype_out"):
        torch.ops.aten.addmm.dtype_out(sums, dz, rows, torch.float32, out=sums)
    else:  # torch before 2.8: the product of a block of tokens is rounded before it is added
        for block, part in zip(sums.split(1024), dz.split(1024), strict=True):
            block.add_(part @ rows)


def _width(hidden: Tensor, weight: Tensor, most: int, share: int) -> int:
    """Return the number of words in a tile."""
    fits = min(most, weight.numel() // share) // len(hidden)
    return min(len(weight), max(256, fits // 256 * 256))


def _slice(bias: Tensor | None, start: int, stop: int) -> Tensor | None:
    return None if bias is None else bias[start:stop]
