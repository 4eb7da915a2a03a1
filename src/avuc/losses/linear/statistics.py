"""Negative log-likelihood, confidence and entropy of each token, from hidden states and the weight of a linear layer.

With z = softcap(scale·(h·Wᵀ + b)), p = softmax(z), ŷ = argmax z and label y:

    nll = −log p_y        p̂ = p_ŷ        H = −Σ p log p

    dz_j = g_nll·(p_j − 1[j = y]) − g_H·p_j·(z_j − E) + g_p̂·p̂·(1[j = ŷ] − p_j)        with E = Σ p z

The logits are computed in tiles, twice: in the forward pass and again in the backward pass. A vocabulary that is split
over processes (tensor parallelism) needs three small sums over them, and the gradient in `hidden` one more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from avuc.core.accelerators import AcceleratedLinearTiles, LinearTiles, linear_tiles
from avuc.core.errors import InputError
from avuc.losses.linear import tiles
from avuc.losses.linear.tiles import Coefficients, Options, Partial

NO_SECOND_DERIVATIVE = "linear_avuc: a second derivative (create_graph=True) is not available; use avuc_loss on logits"


class TokenStatistics(NamedTuple):
    """What the losses need of each token, each of shape (T)."""

    nll: Tensor
    confidence: Tensor
    entropy: Tensor
    predicted: Tensor


def token_statistics(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    options: Options,
    vocab_group: dist.ProcessGroup | None = None,
) -> TokenStatistics:
    """Return the statistics of tokens (T), with first derivatives in hidden (T, D), weight (V, D) and bias (V).

    Args:
        hidden: (T, D), in the type of `weight`.
        weight: (V, D); with `vocab_group` the words of this process, from `options.first` on.
        bias: (V) or None.
        labels: (T); the nll of a label outside the vocabulary is meaningless and must not be used.
        options: how logits are computed.
        vocab_group: the processes over which the vocabulary is split.

    >>> options = Options(width=2)
    >>> rows = token_statistics(torch.zeros(1, 3), torch.ones(4, 3), None, torch.tensor([2]), options)
    >>> rows.entropy, rows.confidence  # log 4, 1/4
    (tensor([1.3863]), tensor([0.2500]))
    """
    return TokenStatistics(*_TokenStatistics.apply(hidden, weight, bias, labels, options, vocab_group))


class _TokenStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        options: Options,
        vocab_group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if torch.compiler.is_compiling():
            part = Partial(*_compiled_forward(hidden, weight, bias, labels, *options))
        else:
            part = _passes(options, hidden, weight).forward_tiles(hidden, weight, bias, labels, options)
        if vocab_group is not None:
            part = over_processes(part, vocab_group)
        log_total, confidence = part.rest.log1p(), 1 / (1 + part.rest)
        nll = log_total + (part.largest - part.label_logit)
        mean = part.spread * confidence  # of z − m
        entropy = log_total - mean
        ctx.save_for_backward(hidden, weight, bias, labels, part.predicted, part.largest, mean, confidence)
        ctx.options, ctx.vocab_group = options, vocab_group
        ctx.mark_non_differentiable(part.predicted)
        return nll, confidence, entropy, part.predicted

    @staticmethod
    def backward(
        ctx: Any, in_nll: Tensor, in_confidence: Tensor, in_entropy: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        if torch.is_grad_enabled():
            raise InputError(NO_SECOND_DERIVATIVE)
        hidden, weight, bias, labels, predicted, largest, mean, confidence = ctx.saved_tensors
        through = in_confidence * confidence
        constant = confidence * (in_nll + in_entropy * mean - through)
        columns = Coefficients(largest, constant, -confidence * in_entropy, -in_nll, through)
        needed = ctx.needs_input_grad[:3]
        found: tuple[Tensor | None, ...]
        if torch.compiler.is_compiling():
            all_three = _compiled_backward(
                hidden, weight, bias, labels, predicted, list(columns), *ctx.options, list(needed)
            )
            found = tuple(value if wanted else None for value, wanted in zip(all_three, needed, strict=True))
        else:
            passes = _passes(ctx.options, hidden, weight)
            found = passes.backward_tiles(hidden, weight, bias, labels, predicted, columns, ctx.options, needed)
        in_hidden, in_weight, in_bias = found
        if in_hidden is not None and ctx.vocab_group is not None:
            dist.all_reduce(in_hidden, group=ctx.vocab_group)
        return in_hidden, in_weight, in_bias, None, None, None


def _passes(options: Options, hidden: Tensor, weight: Tensor) -> LinearTiles:
    """Return the code for both passes that `options.backend` asks for."""
    return accelerated(options, hidden, weight) or tiles


def accelerated(options: Options, hidden: Tensor, weight: Tensor) -> AcceleratedLinearTiles | None:
    """Return the accelerator that `options.backend` allows for these tensors; None without one."""
    if options.backend == "chunked":
        return None
    accelerator = linear_tiles()
    if accelerator is None:
        reason: str | None = "the folder avuc/gpu is missing"
    else:
        reason = accelerator.unsupported_reason(hidden, weight)
    if reason is not None and options.backend == "triton":
        raise InputError(f"linear_avuc: backend 'triton' is not available, {reason}; use backend='auto'")
    return accelerator if reason is None else None


def over_processes(part: Partial, group: dist.ProcessGroup) -> Partial:
    """Return the online softmax of the whole vocabulary."""
    largest = part.largest.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    # the first of equal words, as in argmax
    none = torch.iinfo(torch.long).max
    predicted = torch.where(part.largest == largest, part.predicted, none)
    dist.all_reduce(predicted, dist.ReduceOp.MIN, group=group)
    shift = part.largest - largest
    kept = shift.exp()
    spread = kept * torch.where(kept > 0, part.spread + (1 + part.rest) * shift, 0)
    rest = torch.where(part.predicted == predicted, part.rest, kept * (1 + part.rest))
    rest, spread, label_logit = sums = torch.stack((rest, spread, part.label_logit))
    dist.all_reduce(sums, group=group)
    # NaN equals nothing: no process has claimed the row
    return Partial(largest, rest, spread, label_logit, torch.where(predicted == none, 0, predicted))


# The two passes as operators, which a compiler keeps as one call each.


@torch.library.custom_op("avuc::linear_forward", mutates_args=())
def _compiled_forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    softcap: float | None,
    scale: float | None,
    width: int | None,
    first: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = Options(softcap, scale, width, first, backend)
    largest, rest, spread, label_logit, predicted = _passes(options, hidden, weight).forward_tiles(
        hidden, weight, bias, labels, options
    )
    return largest, rest, spread, label_logit, predicted


@_compiled_forward.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    a, b, c, d = (hidden.new_empty(len(hidden), dtype=dtype) for _ in range(4))
    return a, b, c, d, labels.new_empty(len(hidden), dtype=torch.long)


@torch.library.custom_op("avuc::linear_backward", mutates_args=())
def _compiled_backward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    predicted: Tensor,
    coefficients: list[Tensor],
    softcap: float | None,
    scale: float | None,
    width: int | None,
    first: int,
    backend: str,
    needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    options = Options(softcap, scale, width, first, backend)
    wanted = needed[0], needed[1], needed[2]
    found = _passes(options, hidden, weight).backward_tiles(
        hidden, weight, bias, labels, predicted, Coefficients(*coefficients), options, wanted
    )
    in_hidden, in_weight, in_bias = (hidden.new_empty(0) if value is None else value for value in found)
    return in_hidden, in_weight, in_bias


@_compiled_backward.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    needed = rest[-1]
    shapes = [None if value is None else value.shape for value in (hidden, weight, bias)]
    a, b, c = (
        hidden.new_empty(shape if wanted and shape is not None else 0)
        for shape, wanted in zip(shapes, needed, strict=True)
    )
    return a, b, c
