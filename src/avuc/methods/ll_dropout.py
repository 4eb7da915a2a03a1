"""LL-Dropout: Monte Carlo dropout before the last layer only (Riquelme et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from avuc.methods.dropout import Dropout


@dataclass(frozen=True)
class LLDropout(Dropout):
    """rate: the UQ benchmark's tuned rate for CIFAR-10/ResNet-20, 0.32, whose LL-Dropout row the paper shows."""

    name = "ll_dropout"
    last_only = True
    rate: float = 0.32
