"""Confidence and entropy of softmax(logits) for each prediction, with an analytic gradient.

With p = softmax(z), ŷ = argmax p, p̂ = p_ŷ and u = −Σ_k p_k log p_k:

    ∂p̂/∂z_k = p̂ (δ_kŷ − p_k)        ∂u/∂z_k = −p_k (log p_k + u)

Forward and backward pass need one exponential per logit: u = log Σe^{z−m} − Σ p (z − m) with m the row's largest logit,
and the gradient uses log p = z − m + log p̂. Autograd needs four exponentials and keeps five N×C tensors; this code
keeps only p.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avuc.losses.inputs import transforming

# A block of this size stays in the processor's cache between the passes below.
BLOCK_ELEMENTS = 1 << 19
# Above this the backward pass uses z − m, which is exact, instead of z: z·slope and m·slope would cancel badly. Below
# it the cancellation is no worse than the rounding of the other terms, and z saves one pass.
LARGE_LOGIT = 32.0


class SoftmaxStatistics(NamedTuple):
    """Confidence p̂, entropy u and predicted class ŷ, each of shape (N)."""

    confidence: Tensor
    entropy: Tensor
    predicted: Tensor


def softmax_statistics(logits: Tensor) -> SoftmaxStatistics:
    """Return the statistics of `softmax(logits)` for logits (N, C), float32 or float64; all derivatives exist.

    A logit of −inf excludes a class; NaN or +inf gives NaN. Adding a constant to a row changes nothing.

    >>> softmax_statistics(torch.zeros(1, 4)).entropy  # log 4
    tensor([1.3863])
    """
    if torch.compiler.is_compiling() or transforming():
        return traceable(logits)
    confidence, entropy, predicted = _SoftmaxStatistics.apply(logits)
    return SoftmaxStatistics(confidence, entropy, predicted)


def log_floor(dtype: torch.dtype) -> float:
    """Return the number below which exp() is exactly 0; clamping log p there changes no p and turns 0·(−inf) into 0."""
    return -745.2 if dtype == torch.float64 else -104.0


def traceable(logits: Tensor) -> SoftmaxStatistics:
    """Compute the same with plain operations, for torch.compile, torch.func and second derivatives.

    With s = Σ e^{z − m} over all classes but ŷ: p̂ = 1/(1 + s) and u = log(1 + s) − Σ e^{z − m}(z − m)/(1 + s). Near
    p̂ = 1 these are sums of small numbers, so that neither u nor its gradient is a difference of large ones.
    """
    largest, predicted = logits.max(dim=-1)
    centred = (logits - largest.unsqueeze(-1)).clamp(min=log_floor(logits.dtype))
    others = centred.exp().scatter(-1, predicted.unsqueeze(-1), 0.0)
    rest = others.sum(dim=-1)
    return SoftmaxStatistics(1 / (1 + rest), torch.log1p(rest) - (others * centred).sum(dim=-1) / (1 + rest), predicted)


class _SoftmaxStatistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept, rows = forward_rows(logits)
        if kept.shift is None and not logits.is_cuda:
            # Losses with log u have a gradient of 1/u in u, which makes any cancellation large: always use z − m.
            kept = kept._replace(largest=torch.zeros_like(kept.largest), shift=kept.largest)
        ctx.save_for_backward(logits, *rows, *kept)
        ctx.mark_non_differentiable(rows.predicted)
        return rows.confidence, _exact_entropy(kept.probs, rows), rows.predicted

    @staticmethod
    def backward(ctx: Any, grad_confidence: Tensor, grad_entropy: Tensor, _: Tensor) -> Tensor:
        logits, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient itself must have a gradient
            again = traceable(logits)
            outputs = [again.confidence, again.entropy]
            upstream = [grad_confidence, grad_entropy]
            gradient: Tensor = torch.autograd.grad(outputs, logits, upstream, create_graph=True)[0]
            return gradient
        rows, kept = SoftmaxStatistics(*saved[:3]), ForwardPass(*saved[3:])
        coefficients = backward_coefficients(kept.largest, rows, grad_confidence, grad_entropy)
        return backward_rows(kept, rows.predicted, coefficients)


class ForwardPass(NamedTuple):
    """What the forward pass keeps for the backward pass."""

    probs: Tensor
    logits: Tensor
    largest: Tensor  # largest logit of each row; 0 if it is already subtracted, or stored in `shift`
    shift: Tensor | None = None  # `backward_rows` subtracts this from the logits


def forward_rows(logits: Tensor) -> tuple[ForwardPass, SoftmaxStatistics]:
    """Return what `backward_rows` needs, and the statistics."""
    # 0·(−inf) is NaN: an excluded class needs a floor, which changes no p. On a GPU a check would cost more.
    if logits.is_cuda:
        return _forward_blocks(_centred(logits))
    kept, rows = _forward_blocks(logits)
    if math.isnan(rows.entropy.sum().item()):
        return _forward_blocks(_centred(logits))
    if np.abs(kept.largest.numpy()).max(initial=0) > LARGE_LOGIT:
        kept = kept._replace(largest=torch.zeros_like(kept.largest), shift=kept.largest)
    return kept, rows


def _exact_entropy(probs: Tensor, rows: SoftmaxStatistics) -> Tensor:
    """Return the entropy with −log p̂ = log(1 + Σ p_k/p̂) over all classes but ŷ, which is exact also near p̂ = 1."""
    index = rows.predicted.unsqueeze(1)
    rest = probs.scatter_(1, index, 0.0).sum(dim=-1)
    probs.scatter_(1, index, rows.confidence.unsqueeze(1))
    return rows.entropy + rows.confidence.log() + torch.log1p(rest / rows.confidence)


def _centred(logits: Tensor) -> Tensor:
    """Return z − m, floored where the probability is 0. The floor applies to the difference: m − 104 may round to m."""
    if not logits.numel():
        return logits
    return (logits - logits.amax(dim=-1, keepdim=True)).clamp_(min=log_floor(logits.dtype))


def _forward_blocks(logits: Tensor) -> tuple[ForwardPass, SoftmaxStatistics]:
    n, step = logits.shape[0], _block_rows(logits)
    if step == n:
        largest, predicted = row_max(logits)
        shifted = logits - largest.unsqueeze(1)
        probs = shifted.softmax(dim=-1)
        spread = shifted.mul_(probs).sum(dim=-1)
    else:
        probs = torch.empty_like(logits, memory_format=torch.contiguous_format)
        largest, spread = logits.new_empty(n), logits.new_empty(n)
        predicted = torch.empty(n, dtype=torch.long, device=logits.device)
        # one buffer for all blocks: page faults of new buffers would cost more than the arithmetic
        scratch = logits.new_empty(step, logits.shape[1])
        for start in range(0, n, step):
            rows = slice(start, start + step)
            block = logits[rows]
            largest[rows], predicted[rows] = row_max(block)
            shifted = torch.sub(block, largest[rows].unsqueeze(1), out=scratch[: len(block)])
            torch.softmax(shifted, dim=-1, out=probs[rows])
            torch.sum(shifted.mul_(probs[rows]), dim=-1, out=spread[rows])
    confidence = probs.gather(1, predicted.unsqueeze(1)).squeeze(1)
    entropy = spread.add_(confidence.log()).neg_()
    return ForwardPass(probs, logits, largest), SoftmaxStatistics(confidence, entropy, predicted)


def row_max(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest value of each row and its first index."""
    if rows.device.type != "cpu" or not rows.numel():
        largest, index = rows.max(dim=-1)
        return largest, index
    # NumPy's argmax uses the processor's vector units; torch's takes six times as long
    index = torch.from_numpy(rows.detach().numpy().argmax(axis=1))
    return rows.detach().gather(1, index.unsqueeze(1)).squeeze(1), index


def backward_coefficients(
    largest: Any, rows: SoftmaxStatistics, grad_confidence: Any, grad_entropy: Any, xp: Any = torch
) -> Any:
    """Return the coefficients (3, N) that `backward_rows` needs, from the gradients g_p in p̂ and g_u in u.

    The gradient in z_k is δ_kŷ c − p_k (g_u z_k + g_u (u − m + log p̂) + c) with c = g_p p̂; only z_k and p_k differ
    within a row. `largest` is 0 if `backward_rows` uses z − m. Takes tensors with `xp=torch`, arrays with `xp=numpy`;
    `grad_confidence` is None if there is no gradient in p̂.
    """
    slope = -grad_entropy
    offset = slope * (rows.entropy - largest + xp.log(rows.confidence))
    if grad_confidence is None:
        return xp.stack((xp.zeros_like(slope), slope, offset))
    through = grad_confidence * rows.confidence
    return xp.stack((through, slope, offset - through))


def backward_rows(forward: ForwardPass, predicted: Tensor, coefficients: Tensor) -> Tensor:
    """Return the gradient in the logits."""
    at_predicted, slope, offset = coefficients.unsqueeze(2).unbind()
    probs, logits, _, shift = forward
    n, step = probs.shape[0], _block_rows(probs)
    if step == n:
        logits = logits if shift is None else logits - shift.unsqueeze(1)
        gradient = torch.addcmul(offset, logits, slope).mul_(probs)
    else:
        gradient = torch.empty_like(probs)
        for start in range(0, n, step):
            rows = slice(start, start + step)
            block, out = logits[rows], gradient[rows]
            if shift is not None:
                block = torch.sub(block, shift[rows].unsqueeze(1), out=out)
            torch.addcmul(offset[rows], block, slope[rows], out=out).mul_(probs[rows])
    return gradient.scatter_add_(1, predicted.unsqueeze(1), at_predicted)


def _block_rows(rows: Tensor) -> int:
    n, width = rows.shape
    return n if rows.is_cuda else min(n, max(1, BLOCK_ELEMENTS // width))
