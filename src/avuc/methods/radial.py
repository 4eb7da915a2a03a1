"""Radial BNN (Farquhar, Osborne & Gal 2020, arXiv:1907.00865): a random direction times a normal radius.

For each weight tensor, w = μ + σ ∘ r·ε/‖ε‖ with ε ~ N(0, I) and r ~ N(0, 1). Samples stay near the mean, where a
Gaussian in many dimensions has hardly any mass.
"""

from __future__ import annotations

from dataclasses import dataclass

from avuc.methods.svi import SVI


@dataclass(frozen=True)
class Radial(SVI):
    """SVI with the radial posterior: w = μ + σ ∘ r·ε/‖ε‖ for each weight tensor.

    Args:
        prior_std: standard deviation of the prior (default 1): N(0, prior_std²), or with `moped` N(w, prior_std²)
            around the weights w of a trained net.
        initial_std: σ of every weight at the start (default 0.05); with `moped`, σ = delta·|w| instead.
        moped: whether prior and start come from the net's own, trained weights (default False).
        delta: δ of MOPED (default 0.5).
        estimator: "weight" (default), one sample of the weights for a batch, as in the paper; or "flipout".
        train_draws: samples in each training step (default 1).

    >>> from torch import nn
    >>> Radial().build(nn.Linear(8, 3)).posterior
    'radial'
    """

    name = "radial"
    family = "radial"
