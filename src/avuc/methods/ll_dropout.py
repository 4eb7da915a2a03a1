"""LL-Dropout: Monte Carlo dropout before the last layer only (Riquelme et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from avuc.methods.dropout import Dropout


@dataclass(frozen=True)
class LLDropout(Dropout):
    """Dropout before the last layer only.

    Args:
        rate: probability q that an input of the last layer is dropped (default 0.32, the tuned value of Ovadia et al.
            2019 for ResNet-20 on CIFAR-10).
        drop_input: not used by this method.
        own_layers: for `Dropout` only; True is refused.

    >>> from torch import Generator, nn, rand
    >>> method = LLDropout(rate=0.5)
    >>> posterior = method.posterior([method.build(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)))])
    >>> posterior.draw(Generator().manual_seed(0))(rand(4, 8)).shape
    torch.Size([4, 3])
    """

    name = "ll_dropout"
    last_only = True
    rate: float = 0.32
