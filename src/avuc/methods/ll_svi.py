"""LL-SVI: mean-field variational inference over the last layer only (Riquelme et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from avuc.methods.svi import SVI


@dataclass(frozen=True)
class LLSVI(SVI):
    """SVI on the last registered layer that has a weight matrix; all other layers are deterministic.

    Args:
        prior_std: standard deviation of the prior (default 1): N(0, prior_std²), or with `moped` N(w, prior_std²)
            around the weights w of a trained net.
        initial_std: σ of every weight at the start (default 0.05); with `moped`, σ = delta·|w| instead.
        moped: whether prior and start come from the net's own, trained weights (default False).
        delta: δ of MOPED (default 0.5).
        estimator: "weight" (default), one sample of the weights for a batch, as in the paper; or "flipout".
        train_draws: samples in each training step (default 1).

    >>> from torch import nn
    >>> LLSVI().build(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))).mu.shape  # 8·3 weights and 3 biases
    torch.Size([27])
    """

    name = "ll_svi"
    layers = "last"
