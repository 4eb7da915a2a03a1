"""The two passes of `avuc.losses.linear.tiles` on an NVIDIA GPU: cuBLAS products and one Triton kernel per tile.

`avuc.gpu.linear_room` says where tiles are kept, `avuc.gpu.kernels.linear_loss` has the loss between the passes.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from avuc.gpu.kernels import linear_loss
from avuc.gpu.kernels.linear_softmax import available, gradient_writer, softmax_updater
from avuc.gpu.linear_room import ALIGNED, Room, aligned
from avuc.losses.linear.fused import Figures, Rows, Rule
from avuc.losses.linear.tiles import Coefficients, Options, Partial, add_product

# Most logits in a tile. In the forward pass a tile also has at most a half of the weight's size: it must not need more
# than the gradients of the backward pass.
FORWARD_TILE, FORWARD_SHARE = 1 << 27, 2
BACKWARD_TILE = 1 << 26
# Up to this many logits the backward pass has memory of its own for a tile of OWN_TILE logits and a float32 sum,
# instead of borrowed room: fewer, wider tiles, and no logits a third time.
FEW_LOGITS, OWN_TILE = 0, 1 << 25


def unsupported_reason(hidden: Tensor, weight: Tensor) -> str | None:
    """Return why these tensors cannot take this path, None if they can."""
    if not (hidden.is_cuda and weight.is_cuda):
        return "it needs an NVIDIA GPU"
    if not available():
        return "Triton is not installed"
    if hidden.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"it computes in bfloat16, float16 or float32, not in {hidden.dtype}"
    if _capability(hidden.device) < (8, 0):
        return "it needs compute capability 8.0"
    return None


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def forward_tiles(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: Options) -> Partial:
    """Return the online softmax of the logits; see `avuc.losses.linear.tiles.forward_tiles`."""
    tokens, words = hidden.shape[0], weight.shape[0]
    # the kernels read the next element, wherever the stride points
    hidden, labels, bias = hidden.contiguous(), labels.contiguous(), None if bias is None else bias.contiguous()
    # one allocation each: an operator of torch.compile may not return views of one
    largest, rest, spread, label_logit = (
        torch.empty(tokens, dtype=torch.float32, device=hidden.device) for _ in range(4)
    )
    part = Partial(largest, rest, spread, label_logit, torch.empty_like(labels))
    if not tokens:
        return part
    width = options.width or _even(words, min(FORWARD_TILE, weight.numel() // FORWARD_SHARE) // tokens)
    room = hidden.new_empty(tokens * aligned(min(words, width)))

    with torch.cuda.device_of(hidden):  # Triton starts kernels on the current device
        update, start = softmax_updater(hidden.dtype, bias, labels, part, options), 0
        for columns in weight.t().split(width, dim=1):
            wide = columns.shape[1]
            z = room.as_strided((tokens, wide), (aligned(wide), 1))
            update(torch.mm(hidden, columns, out=z), start)
            start += wide
    return part


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
    tokens, words = hidden.shape[0], weight.shape[0]
    hidden, labels, bias = hidden.contiguous(), labels.contiguous(), None if bias is None else bias.contiguous()
    in_hidden = torch.empty_like(hidden) if needed[0] else None
    in_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if needed[1] else None
    in_bias = torch.empty(words, device=weight.device) if needed[2] and bias is not None else None
    if not tokens:
        empty = None if in_bias is None or bias is None else torch.zeros_like(bias)
        return in_hidden, None if in_weight is None else in_weight.zero_(), empty
    if in_hidden is not None and in_hidden.element_size() >= 4:
        in_hidden.zero_()
    coefficients = Coefficients(*(column.contiguous() for column in coefficients))
    own = tokens * words <= FEW_LOGITS
    width = options.width or max(ALIGNED, (OWN_TILE if own else BACKWARD_TILE) // tokens // ALIGNED * ALIGNED)
    room = Room(hidden, in_hidden, in_weight, words, _even(words, width) if own else width, own)
    room.allocate()
    sums = in_hidden if room.sums is None else room.sums

    with torch.cuda.device_of(hidden):  # Triton starts kernels on the current device
        in_parts = room.parts(weight if in_weight is None else in_weight)
        tiles = zip(room.steps(), room.parts(weight), room.parts(weight.t(), dim=1), in_parts, strict=True)
        replace = gradient_writer(hidden.dtype, bias, labels, predicted, coefficients, options)
        for (start, stop, to_hidden, to_weight, z, completes), rows, columns, in_rows in tiles:
            torch.mm(hidden, columns, out=z)
            replace(z, start)
            if to_hidden and sums is not None:
                add_product(sums, z, rows)
            if to_weight and in_weight is not None:
                torch.mm(z.t(), hidden, out=in_rows)
            if in_bias is not None and (to_weight or in_weight is None):
                torch.sum(z, dim=0, dtype=torch.float32, out=in_bias[start:stop])
            if completes and in_hidden is not None and room.sums is not None:
                in_hidden.copy_(room.sums)
    return in_hidden, in_weight, None if in_bias is None or bias is None else in_bias.to(bias.dtype)


def token_sums(part: Partial, labels: Tensor, rule: Rule) -> tuple[Tensor, Rows]:
    """Return the sums over tokens and the statistics of each; see `avuc.losses.linear.fused`."""
    with torch.cuda.device_of(labels):
        return linear_loss.token_sums(part, labels, rule)


def loss_of_sums(sums: Tensor, rule: Rule, nll_weight: float, beta: float) -> tuple[Figures, Tensor]:
    """Return the loss of the sums, and the slopes of loss, nll and avuc."""
    with torch.cuda.device_of(sums):
        return linear_loss.loss_of_sums(sums, rule, nll_weight, beta)


def token_coefficients(part: Partial, labels: Tensor, in_sums: Tensor, rule: Rule) -> Coefficients:
    """Return the gradient in the logits, given the gradient in the sums."""
    with torch.cuda.device_of(labels):
        return linear_loss.token_coefficients(part, labels, in_sums, rule)


def _even(words: int, most: int) -> int:
    """Return the width of tiles of about one size, of at most `most` words (256 at least)."""
    tiles = -(-words // max(256, most))
    return -(-words // (tiles * 64)) * 64
