"""The rough Hessian of the likelihood of softmax(W x + b), with which L-BFGS needs few steps.

With the probabilities p of a row and v = (x, 1), the second derivative in W_ka and W_lb is
(p_k 1[k = l] − p_k p_l) v_a v_b.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# up to this many classes the Hessian of a matrix is computed in full
MOST_FULL_CLASSES = 12
# up to this many it has a block for each row of the matrix; above, one block for all scales and biases
MOST_BLOCK_CLASSES = 32
# up to this many classes the Hessian of all scales and biases is computed in full, above a block for each class
MOST_VECTOR_CLASSES = 512

Solve = Callable[[Tensor], Tensor]


def vector_solver(x: Tensor, probs: Tensor, weight: Tensor, ridge: Tensor) -> Solve:
    """Return g ↦ H⁻¹ g for one scale and one bias of each class, g (2, C).

    Args:
        x: (N, C) log-probabilities.
        probs: (N, C) probabilities.
        weight: (N, 1) weights with the sum 1.
        ridge: (2, C) that is added to the diagonal.
    """
    pairs = scales_and_biases(x, probs, weight, ridge[0], ridge[1])
    return lambda g: torch.stack(pairs(g[0], g[1]))


def matrix_solver(x: Tensor, probs: Tensor, weight: Tensor, ridge: Tensor) -> Solve:
    """Return g ↦ H⁻¹ g for a matrix and a bias, g (C, C + 1); parts of H may be left out.

    Args:
        x: (N, C) log-probabilities.
        probs: (N, C) probabilities.
        weight: (N, 1) weights with the sum 1.
        ridge: (C, C + 1) that is added to the diagonal.
    """
    classes, wide = x.shape[-1], torch.cat((x, torch.ones_like(x[:, :1])), dim=1)
    if classes > MOST_BLOCK_CLASSES:
        diagonal = (probs * (1 - probs) * weight).T @ (wide * wide) + ridge
        pairs = scales_and_biases(x, probs, weight, ridge.diagonal(), ridge[:, -1])

        def solve(g: Tensor) -> Tensor:
            result = g / diagonal
            scale, bias = pairs(g.diagonal(), g[:, -1])
            result.diagonal().copy_(scale)
            result[:, -1] = bias
            return result

        return solve
    full = classes <= MOST_FULL_CLASSES
    own = (probs if full else probs * (1 - probs)) * weight
    blocks = torch.stack([(wide * own[:, k : k + 1]).T @ wide for k in range(classes)]) + torch.diag_embed(ridge)
    if not full:
        lower = _cholesky(blocks)
        return lambda g: torch.cholesky_solve(g.unsqueeze(-1), lower).squeeze(-1)
    products = (probs.unsqueeze(-1) * wide.unsqueeze(1)).flatten(1)
    hessian = torch.block_diag(*blocks).sub_((products * weight).T @ products)
    lower = _cholesky(hessian)
    return lambda g: torch.cholesky_solve(g.reshape(-1, 1), lower).reshape(g.shape)


def scales_and_biases(
    x: Tensor, probs: Tensor, weight: Tensor, ridge: Tensor, bias_ridge: Tensor
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (g, h) ↦ H⁻¹ (g, h) for the scales and the biases of all classes."""
    classes = x.shape[-1]
    if classes > MOST_VECTOR_CLASSES:
        q = probs * (1 - probs) * weight
        return _inverse_of_pairs((q * x * x).sum(0) + ridge, (q * x).sum(0), q.sum(0) + bias_ridge)
    both = torch.cat((probs * x, probs), dim=1)
    hessian = -((both * weight).T @ both)
    own = probs * weight
    first, mixed, second = (own * x * x).sum(0) + ridge, (own * x).sum(0), own.sum(0) + bias_ridge
    hessian.diagonal().add_(torch.cat((first, second)))
    hessian[:classes, classes:].diagonal().add_(mixed)
    hessian[classes:, :classes].diagonal().add_(mixed)
    lower = _cholesky(hessian)

    def solve(g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        solution = torch.cholesky_solve(torch.cat((g, h)).unsqueeze(-1), lower)[:, 0]
        return solution[:classes], solution[classes:]

    return solve


def _cholesky(hessian: Tensor) -> Tensor:
    """Return the Cholesky factor; where the Hessian is singular, more is added to its diagonal."""
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    for share in (1e-12, 1e-9, 1e-6, 1e-3):
        diagonal.add_(share * diagonal)
        factorisation = torch.linalg.cholesky_ex(hessian)
        if not bool(factorisation.info.any()):
            lower: Tensor = factorisation.L
            return lower
    return torch.diag_embed(diagonal.clamp(min=1e-300).sqrt())


def _inverse_of_pairs(
    first: Tensor, mixed: Tensor, second: Tensor
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the product with the inverses of the matrices [[first, mixed], [mixed, second]]."""
    scale = 1 / (first * second - mixed * mixed).clamp(min=1e-300)
    return lambda a, b: ((second * a - mixed * b) * scale, (first * b - mixed * a) * scale)
