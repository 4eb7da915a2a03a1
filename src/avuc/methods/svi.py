"""SVI: mean-field stochastic variational inference (Graves 2011; Blundell et al. 2015, arXiv:1505.05424).

The weights are Gaussian, w = μ + softplus(ρ)·ε. Training minimises the negative ELBO per training example,

    E_q[cross-entropy] + kl_weight·KL(q ‖ prior)/num_train.

With β·AvUC added this is the paper's SVI-AvUC (Algorithm 1, Eq. 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule, Moped, Normal, to_bayesian
from avuc.core.errors import InputError
from avuc.core.numbers import check_settings
from avuc.methods.method import Method, call
from avuc.posterior import Posterior


@dataclass(frozen=True)
class SVI(Method):
    """Mean-field variational inference over all weights except those of normalisation layers.

        w = μ + softplus(ρ)·ε        loss = E_q[cross-entropy] + kl_weight·KL(q ‖ prior)/num_train

    Args:
        prior_std: standard deviation of the prior (default 1): N(0, prior_std²), or with `moped` N(w, prior_std²)
            around the weights w of a trained net.
        initial_std: σ of every weight at the start (default 0.05); with `moped`, σ = delta·|w| instead.
        moped: whether prior and start come from the net's own, trained weights (default False).
        delta: δ of MOPED (default 0.5).
        estimator: "weight" (default), one sample of the weights for a batch, as in the paper; or "flipout".
        train_draws: samples in each training step (default 1).

    >>> method = SVI(prior_std=0.5)
    >>> model = method.build(nn.Linear(4, 3))
    >>> method.logits(model, torch.zeros(8, 4)).shape, method.posterior([model]).num_draws is None
    (torch.Size([8, 3]), True)
    """

    name = "svi"
    layers: ClassVar[str] = "all"
    family: ClassVar[str] = "mean_field"
    prior_std: float = 1.0
    initial_std: float = 0.05
    moped: bool = False
    delta: float = 0.5
    estimator: Literal["weight", "flipout"] = "weight"
    train_draws: int = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if self.train_draws < 1:
            raise InputError(f"train_draws must be at least 1, found {self.train_draws}")

    def build(self, net: nn.Module, *, generator: torch.Generator | None = None) -> BayesianModule:
        model = to_bayesian(
            net,
            posterior=self.family,
            estimator=self.estimator,
            prior=Moped(self.delta, self.prior_std) if self.moped else Normal(0.0, self.prior_std),
            layers=self.layers,
            initial_std=self.initial_std,
        )
        model.generator = generator
        model.takes_bytes = True  # methods train with uint8 images, scaled to [0, 1]
        return model

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        logits: Tensor = call(model, images, **({} if self.train_draws == 1 else {"samples": self.train_draws}))
        return logits

    def kl(self, model: nn.Module) -> Tensor:
        return _bayesian(model).kl()

    def posterior(self, models: Sequence[nn.Module], *, images: Tensor | None = None) -> Posterior:
        return _bayesian(self.one(models))


def _bayesian(model: nn.Module) -> BayesianModule:
    if not isinstance(model, BayesianModule):
        raise InputError(f"expected the BayesianModule that build made, found {type(model).__name__}")
    return model
