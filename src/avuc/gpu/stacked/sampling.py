"""One weight sample of several models and the KL of each, as one function of their stacked posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from avuc.bayes.module import POSTERIORS


class Kind(NamedTuple):
    """Models (`rows`) with the same kind of posterior over the weights `start` … `stop`."""

    posterior: str
    start: int
    stop: int
    sizes: tuple[int, ...]
    rows: tuple[int, ...]


def drawn_weights(
    mean: Tensor,
    rho: Tensor | None,
    noise: Tensor | None,
    order: Tensor,
    back: Tensor,
    kinds: tuple[Kind, ...],
    priors: Sequence[tuple[Tensor, Tensor]],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return one weight sample of all models, as `StackedResNet` takes it, and the KL of each (0 if not Bayesian)."""
    weights = mean if rho is None or noise is None else torch.addcmul(mean, softplus(rho), noise)
    flat: Tensor = _Arranged.apply(weights, order, back)
    return flat.to(dtype), _kl(mean, rho, kinds, priors)


def _kl(mean: Tensor, rho: Tensor | None, kinds: tuple[Kind, ...], priors: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    found: dict[int, Tensor] = {}
    for kind, prior in zip(kinds, priors, strict=True):
        assert rho is not None
        mu, spread = (_rows(tensor[:, kind.start : kind.stop], kind.rows) for tensor in (mean, rho))
        family, sizes = POSTERIORS[kind.posterior], kind.sizes
        each: Tensor = torch.vmap(lambda m, s, pm, ps, f=family, n=sizes: f.kl(m, s, pm, ps, n))(mu, spread, *prior)
        if len(kind.rows) == len(mean):
            return each
        found |= dict(zip(kind.rows, each.unbind(), strict=True))
    none = mean.new_zeros(())
    return torch.stack([found.get(row, none) for row in range(len(mean))])


def _rows(tensor: Tensor, rows: tuple[int, ...]) -> Tensor:
    if len(rows) == len(tensor):
        return tensor
    each = tensor.unbind()
    return torch.stack([each[row] for row in rows])


class _Arranged(torch.autograd.Function):
    """Reorders numbers. The backward pass is a gather too, where autograd would scatter."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return weights.reshape(-1).index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        found = grad.index_select(0, back.clamp_min(0).reshape(-1)).view_as(back)
        return torch.where(back < 0, 0, found), None, None
