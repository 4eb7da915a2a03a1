"""MOPED: an empirical-Bayes prior and a starting point from a trained deterministic network (arXiv 1906.05323)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from avuc.bayes.prior import inverse_softplus
from avuc.core.errors import InputError

__all__ = ["Moped"]


@dataclass(frozen=True)
class Moped:
    """Prior N(w_MLE, std²), posterior started at μ₀ = w_MLE and ρ₀ = log(e^{δ|w|} − 1), so that σ₀ = δ|w|.

    A weight that is exactly 0 (a fresh bias, a pruned weight) would start with σ₀ = 0 and an infinite KL;
    σ₀ is therefore at least `min_std`.

    >>> Moped(delta=0.5).delta
    0.5
    """

    delta: float = 0.5
    std: float = 1.0
    min_std: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("delta", "std", "min_std"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"Moped {name}: expected a finite number above 0, found {getattr(self, name)}")

    def rho(self, weights: Tensor) -> Tensor:
        """ρ₀ of trained weights."""
        return inverse_softplus((self.delta * weights.abs()).clamp_min(self.min_std))
