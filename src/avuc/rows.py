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
        n = logits.shape[0]
        log_probs = torch.empty_like(logits, memory_format=torch.contiguous_format)
        confidence, entropy = logits.new_empty(n), logits.new_empty(n)
        predicted = torch.empty(n, dtype=torch.long, device=logits.device)
        floor = _log_floor(logits.dtype)
        for rows in _blocks(logits):
            block = torch.log_softmax(logits[rows], dim=-1, out=log_probs[rows]).clamp_(min=floor)
            torch.max(block, dim=-1, out=(confidence[rows], predicted[rows]))
            torch.sum(block.exp().mul_(block), dim=-1, out=entropy[rows])
        confidence.exp_()
        entropy.neg_()
        ctx.save_for_backward(log_probs, confidence, entropy, predicted)
        ctx.mark_non_differentiable(predicted)
        return confidence, entropy, predicted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_confidence: Tensor, grad_entropy: Tensor, _: Tensor) -> Tensor:
        log_probs, confidence, entropy, predicted = ctx.saved_tensors
        through_confidence = grad_confidence * confidence
        # −p_k (g_u log p_k + g_u u + g_p p̂), the last two constant along a row
        slope = grad_entropy.neg().unsqueeze(1)
        offset = -torch.addcmul(through_confidence, grad_entropy, entropy).unsqueeze(1)
        gradient = torch.empty_like(log_probs)
        for rows in _blocks(log_probs):
            block = torch.exp(log_probs[rows], out=gradient[rows])
            block.mul_(torch.addcmul(offset[rows], log_probs[rows], slope[rows]))
        gradient.scatter_add_(1, predicted.unsqueeze(1), through_confidence.unsqueeze(1))
        return gradient


def _blocks(rows: Tensor) -> list[slice]:
    n, width = rows.shape
    step = n if rows.is_cuda else max(1, BLOCK_ELEMENTS // max(width, 1))
    return [slice(start, start + step) for start in range(0, n, max(step, 1))]
