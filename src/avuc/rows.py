"""Confidence and entropy of each row of logits, in one pass, with an analytic gradient.

With p = softmax(z), ŷ = argmax p, p̂ = p_ŷ and u = −Σ_k p_k log p_k:

    ∂p̂/∂z_k = p̂ (δ_kŷ − p_k)        ∂u/∂z_k = −p_k (log p_k + u)

Autograd would keep five N×C tensors for these two columns; here log p is the only one, as in cross-entropy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["RowStatistics", "row_statistics"]

# A block of rows should stay in a core's second-level cache between the passes below.
BLOCK_ELEMENTS = 1 << 17


class RowStatistics(NamedTuple):
    """What AvUC reads of a prediction: p̂, u and ŷ, each of shape (N)."""

    confidence: Tensor
    entropy: Tensor
    predicted: Tensor


def row_statistics(logits: Tensor) -> RowStatistics:
    """Statistics of `softmax(logits)` for logits (N, C), float32 or float64, differentiable once.

    A logit of −inf is a class ruled out; NaN or +inf gives NaN.

    >>> row_statistics(torch.zeros(1, 4)).entropy  # log 4
    tensor([1.3863])
    """
    if torch.compiler.is_compiling():
        return _traceable(logits)
    confidence, entropy, predicted = _RowStatistics.apply(logits)
    return RowStatistics(confidence, entropy, predicted)


def _log_floor(dtype: torch.dtype) -> float:
    """Below this exp() is exactly 0, so clamping log p here changes no p and turns 0·(−inf) into 0."""
    return -745.2 if dtype == torch.float64 else -104.0


def _traceable(logits: Tensor) -> RowStatistics:
    """The same from plain operations, for torch.compile to fuse."""
    log_probs = torch.log_softmax(logits, dim=-1).clamp(min=_log_floor(logits.dtype))
    log_confidence, predicted = log_probs.max(dim=-1)
    return RowStatistics(log_confidence.exp(), -(log_probs.exp() * log_probs).sum(dim=-1), predicted)


class _RowStatistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_probs, (confidence, entropy, predicted) = forward_rows(logits)
        ctx.save_for_backward(log_probs, confidence, entropy, predicted)
        ctx.mark_non_differentiable(predicted)
        return confidence, entropy, predicted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_confidence: Tensor, grad_entropy: Tensor, _: Tensor) -> Tensor:
        log_probs, confidence, entropy, predicted = ctx.saved_tensors
        rows = RowStatistics(confidence, entropy, predicted)
        return backward_rows(log_probs, predicted, backward_coefficients(rows, grad_confidence, grad_entropy))


def forward_rows(logits: Tensor) -> tuple[Tensor, RowStatistics]:
    """log p, kept for `backward_rows`, and the statistics."""
    n, step = logits.shape[0], _block_rows(logits)
    floor = _log_floor(logits.dtype)
    if step == n:
        log_probs = torch.log_softmax(logits, dim=-1).clamp_(min=floor)
        log_confidence, predicted = log_probs.max(dim=-1)
        return log_probs, RowStatistics(
            log_confidence.exp_(), log_probs.exp().mul_(log_probs).sum(-1).neg_(), predicted
        )
    log_probs = torch.empty_like(logits, memory_format=torch.contiguous_format)
    confidence, entropy = logits.new_empty(n), logits.new_empty(n)
    predicted = torch.empty(n, dtype=torch.long, device=logits.device)
    # one block to work in: a fresh one for each would cost more in page faults than the arithmetic in it
    scratch = logits.new_empty(step, logits.shape[1])
    for start in range(0, n, step):
        rows = slice(start, start + step)
        block = torch.log_softmax(logits[rows], dim=-1, out=log_probs[rows]).clamp_(min=floor)
        torch.max(block, dim=-1, out=(confidence[rows], predicted[rows]))
        terms = torch.exp(block, out=scratch[: len(block)]).mul_(block)
        torch.sum(terms, dim=-1, out=entropy[rows])
    return log_probs, RowStatistics(confidence.exp_(), entropy.neg_(), predicted)


def backward_coefficients(rows: RowStatistics, grad_confidence: Tensor | None, grad_entropy: Tensor) -> Tensor:
    """What `backward_rows` needs of the gradients in p̂ and u (each of shape (N)), stacked to (3, N); linear in both.

    The gradient in z_k is δ_kŷ·c₀ − p_k (g_u log p_k + g_u u + c₀) with c₀ = g_p p̂, all but log p_k constant in a row.
    """
    slope = grad_entropy.neg()
    if grad_confidence is None:
        return torch.stack((torch.zeros_like(slope), slope, slope * rows.entropy))
    through = grad_confidence * rows.confidence
    return torch.stack((through, slope, torch.addcmul(through, grad_entropy, rows.entropy).neg_()))


def backward_rows(log_probs: Tensor, predicted: Tensor, coefficients: Tensor) -> Tensor:
    """Gradient in the logits."""
    at_predicted, slope, offset = coefficients.unsqueeze(2).unbind()
    n, step = log_probs.shape[0], _block_rows(log_probs)
    if step == n:
        gradient = log_probs.exp().mul_(torch.addcmul(offset, log_probs, slope))
    else:
        gradient, scratch = torch.empty_like(log_probs), log_probs.new_empty(step, log_probs.shape[1])
        for start in range(0, n, step):
            rows = slice(start, start + step)
            block = log_probs[rows]
            factor = torch.addcmul(offset[rows], block, slope[rows], out=scratch[: len(block)])
            torch.exp(block, out=gradient[rows]).mul_(factor)
    return gradient.scatter_add_(1, predicted.unsqueeze(1), at_predicted)


def _block_rows(rows: Tensor) -> int:
    n, width = rows.shape
    return n if rows.is_cuda else min(n, max(1, BLOCK_ELEMENTS // width))
