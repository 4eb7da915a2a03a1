"""MOPED: prior and starting point from a trained deterministic network (Krishnan et al. 2020, arXiv 1906.05323)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from avuc.bayes.prior import inverse_softplus
from avuc.core.errors import InputError
from avuc.core.numbers import check_settings


@dataclass(frozen=True)
class Moped:
    """Prior and initial posterior around the weights w of a trained network.

        prior N(w, std²)        μ₀ = w        ρ₀ = log(e^{δ|w|} − 1), so that σ₀ = δ|w|

    Args:
        delta: δ, the initial standard deviation relative to the weight (default 0.5).
        std: standard deviation of the prior (default 1).
        min_std: least σ₀ (default 1e-6). A weight of exactly 0, such as a new bias, would otherwise have σ₀ = 0 and an
            infinite KL.

    >>> import torch
    >>> from avuc.bayes import to_bayesian
    >>> net = to_bayesian(torch.nn.Linear(4, 3), prior=Moped(delta=0.2))
    >>> torch.allclose(torch.nn.functional.softplus(net.rho), 0.2 * net.mu.abs(), atol=1e-5)
    True
    """

    delta: float = 0.5
    std: float = 1.0
    min_std: float = 1e-6

    def __post_init__(self) -> None:
        check_settings(self, "Moped")
        for name in ("delta", "std", "min_std"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"Moped {name}: expected a finite number above 0, found {getattr(self, name)}")

    def rho(self, weights: Tensor) -> Tensor:
        """Return ρ₀ for trained weights."""
        return inverse_softplus((self.delta * weights.abs()).clamp_min(self.min_std))
