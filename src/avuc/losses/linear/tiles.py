"""One linear layer followed by softmax, computed in tiles of the vocabulary with plain torch operations.

The logits z = softcap(scale·(h·Wᵀ + b)) of T tokens and V words are never held at once: a tile has all tokens and
`width` words. The forward pass keeps five numbers per token (an online softmax); the backward pass computes each tile
again. With m the largest logit the gradient in a logit is

    dz_j = exp(z_j − m)·(a + s·(z_j − m)) + 1[j = label]·b + 1[j = predicted]·c

where a, s, b and c are numbers of the token (`Coefficients`), whatever the loss is. Sums leave the predicted word out,
and z − m is exact, so that entropies near 0 and their gradients are no differences of large numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from avuc.losses.softmax_statistics import log_floor, row_max

# A tile of this many logits stays in the cache of a processor.
CPU_TILE = 1 << 20
# On a GPU tiles are wide, so that matrix products are fast: 2^27 logits are 256 MiB in bfloat16.
GPU_TILE = 1 << 27
# Tokens of a product that is added by itself: see `add_product`.
GPU_TOKENS = 1024


def adds_in_float32(version: str) -> bool:
    """Return whether that version of torch adds products of bfloat16 to float32 sums; 2.9 has the operator but refuses.

    >>> adds_in_float32("2.9.1+cu128"), adds_in_float32("2.10.0")
    (False, True)
    """
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= (2, 10)


# Adds products of bfloat16 or float16 to float32 sums, on NVIDIA GPUs.
ADD_IN_FLOAT32 = getattr(torch.ops.aten.addmm, "dtype_out", None) if adds_in_float32(torch.__version__) else None


class Options(NamedTuple):
    """How logits follow from h·Wᵀ + b, and how they are computed."""

    softcap: float | None = None
    scale: float | None = None
    width: int | None = None  # words in a tile; None: as many as are fast
    first: int = 0  # number of the first word of `weight` in the whole vocabulary
    backend: str = "chunked"  # "chunked" is this file; "auto" and "triton" ask for an accelerator


class Partial(NamedTuple):
    """The online softmax of some words of the vocabulary; each of shape (T)."""

    largest: Tensor  # m = max z
    rest: Tensor  # Σ exp(z − m) without the predicted word; −1 if there is no word yet
    spread: Tensor  # Σ exp(z − m)·(z − m)
    label_logit: Tensor  # z of the label; 0 if it is none of these words
    predicted: Tensor  # the first word with z = m


class Coefficients(NamedTuple):
    """The numbers of the gradient in a logit (see above), each of shape (T); `largest` is m of all words."""

    largest: Tensor
    constant: Tensor
    slope: Tensor
    at_label: Tensor
    at_predicted: Tensor


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type that sums and softmax are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def forward_tiles(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: Options) -> Partial:
    """Return the online softmax of the logits.

    Args:
        hidden: (T, D).
        weight: (V, D), words `options.first` … of the vocabulary.
        bias: (V) or None.
        labels: (T), numbers in the whole vocabulary; any other number has no label logit.
        options: how logits are computed.
    """
    tokens, dtype = len(hidden), accumulator(hidden.dtype)
    # the lowest finite number: −inf − (−inf) would be NaN if all words of the first tile are excluded
    largest = torch.full((tokens,), torch.finfo(dtype).min, dtype=dtype, device=hidden.device)
    spread, label_logit = torch.zeros_like(largest), torch.zeros_like(largest)
    rest = torch.full_like(largest, -1)
    predicted = torch.zeros(tokens, dtype=torch.long, device=hidden.device)
    width = _width(hidden, len(weight), options)
    buffer = hidden.new_empty(tokens * width, dtype=dtype)
    exponentials = torch.empty_like(buffer)
    for start, stop in spans(len(weight), width):
        z = _logits(hidden, weight[start:stop], None if bias is None else bias[start:stop], options, buffer)
        own, place = _within(labels, options.first + start, stop - start)
        label_logit = torch.where(own, z.gather(1, place).squeeze(1), label_logit)
        highest, index = row_max(z)
        found = highest > largest
        predicted = torch.where(found, index + (options.first + start), predicted)
        before, largest = largest, torch.maximum(largest, highest)
        # 0·(−inf) is NaN: the floor changes no exponential
        z = z.sub_(largest.unsqueeze(1)).clamp_(min=log_floor(dtype))
        e = torch.exp(z, out=exponentials[: z.numel()].view_as(z))
        shift = before - largest
        kept = shift.exp()
        spread = kept * torch.where(kept > 0, spread + (1 + rest) * shift, 0) + torch.linalg.vecdot(e, z)
        place = index.unsqueeze(1)
        e.scatter_(1, place, torch.where(found.unsqueeze(1), 0, e.gather(1, place)))
        rest = torch.where(found, kept * (1 + rest), rest) + e.sum(dim=1)
    return Partial(largest, rest, spread, label_logit, predicted)


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
    """Return the gradients in hidden, weight and bias; None where `needed` says so.

    Args:
        hidden, weight, bias, labels, options: as in `forward_tiles`.
        predicted: (T), numbers in the whole vocabulary.
        coefficients: the gradient in a logit.
        needed: whether the gradients in hidden, weight and bias are needed.
    """
    tokens, dtype = len(hidden), accumulator(hidden.dtype)
    largest, constant, slope, at_label, at_predicted = (column.unsqueeze(1) for column in coefficients)
    in_hidden = hidden.new_zeros(hidden.shape, dtype=dtype) if needed[0] else None
    in_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if needed[1] else None
    in_bias = bias.new_empty(bias.shape, dtype=dtype) if needed[2] and bias is not None else None
    width = _width(hidden, len(weight), options)
    buffer = hidden.new_empty(tokens * width, dtype=dtype)
    other = torch.empty_like(buffer)
    for start, stop in spans(len(weight), width):
        rows = weight[start:stop]
        z = _logits(hidden, rows, None if bias is None else bias[start:stop], options, buffer)
        factor = None if options.softcap is None else (z / options.softcap).square_().neg_().add_(1)
        z = z.sub_(largest).clamp_(min=log_floor(dtype))
        e = torch.exp(z, out=other[: z.numel()].view_as(z))
        dz = torch.addcmul(constant, z, slope, out=z).mul_(e)
        for where, amount in ((labels, at_label), (predicted, at_predicted)):
            own, place = _within(where, options.first + start, stop - start)
            dz.scatter_add_(1, place, torch.where(own.unsqueeze(1), amount, 0))
        if factor is not None:
            dz = dz.mul_(factor)
        if options.scale is not None:
            dz = dz.mul_(options.scale)
        if in_bias is not None:
            torch.sum(dz, dim=0, out=in_bias[start:stop])
        dz = dz.to(hidden.dtype)
        if in_weight is not None:
            torch.mm(dz.t(), hidden, out=in_weight[start:stop])
        if in_hidden is not None:
            add_product(in_hidden, dz, rows)
    return (
        None if in_hidden is None else in_hidden.to(hidden.dtype),
        in_weight,
        None if in_bias is None or bias is None else in_bias.to(bias.dtype),
    )


def add_product(sums: Tensor, dz: Tensor, rows: Tensor) -> None:
    """Add dz·rows to `sums`. If these are float32 and dz is not, no product of a tile is rounded to the type of dz."""
    if sums.dtype == dz.dtype:
        sums.addmm_(dz, rows)
    elif dz.is_cuda and not torch.version.hip:
        if ADD_IN_FLOAT32 is not None:
            ADD_IN_FLOAT32(sums, dz, rows, torch.float32, out=sums)
            return
        for block, part in zip(sums.split(GPU_TOKENS), dz.split(GPU_TOKENS), strict=True):
            block.add_(torch.mm(part, rows, out_dtype=torch.float32))
    else:
        words = max(1, CPU_TILE // rows.shape[1])  # a copy of all rows can be larger than the tile
        for part, of in zip(dz.split(words, dim=1), rows.split(words), strict=True):
            sums.addmm_(part.to(sums.dtype), of.to(sums.dtype))


def spans(words: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield the first word and the end of each tile."""
    for start in range(0, words, width):
        yield start, min(start + width, words)


def _logits(hidden: Tensor, rows: Tensor, bias: Tensor | None, options: Options, buffer: Tensor) -> Tensor:
    """Return the logits of a tile, (T, words), in the memory of `buffer`."""
    z = buffer[: len(hidden) * len(rows)].view(len(hidden), len(rows))
    if z.dtype == hidden.dtype:
        torch.mm(hidden, rows.t(), out=z)
    else:
        z.copy_(hidden @ rows.t())
    if bias is not None:
        z.add_(bias)
    if options.scale is not None:
        z.mul_(options.scale)
    if options.softcap is not None:
        z.div_(options.softcap).tanh_().mul_(options.softcap)
    return z


def _width(hidden: Tensor, words: int, options: Options) -> int:
    """Return the number of words in a tile."""
    room = (CPU_TILE if hidden.device.type == "cpu" else GPU_TILE) // max(len(hidden), 1)
    return min(options.width or max(128, room // 128 * 128), words)


def _within(words: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """Return which words are in a tile, (T), and the column of each, (T, 1); 0 if it is elsewhere."""
    place = words - first
    own = (place >= 0) & (place < width)
    return own, torch.where(own, place, 0).unsqueeze(1)
