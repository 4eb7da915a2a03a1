"""Vanilla: one deterministic network. Its only uncertainty is that of the softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from avuc.core.shared_functions import independent_copy
from avuc.methods.method import Method
from avuc.posterior import NetDraw, Posterior


@dataclass(frozen=True)
class Vanilla(Method):
    """One deterministic network.

    >>> method = Vanilla()
    >>> method.posterior([method.build(nn.Linear(2, 3))]).num_draws
    1
    """

    name = "vanilla"

    def build(self, net: nn.Module, *, generator: torch.Generator | None = None) -> nn.Module:
        return independent_copy(net)

    def posterior(self, models: Sequence[nn.Module], *, images: Tensor | None = None) -> Posterior:
        return DeterministicPosterior(self.one(models))


class DeterministicPosterior(nn.Module):
    """A posterior with one sample: the network itself, in evaluation mode.

    Args:
        net: any network from images to logits.

    >>> posterior = DeterministicPosterior(nn.Linear(2, 3))
    >>> posterior.num_draws, posterior.draw(torch.Generator())(torch.zeros(5, 2)).shape
    (1, torch.Size([5, 3]))
    """

    num_draws: int | None = 1
    takes_bytes = True  # uint8 images, scaled to [0, 1]

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def draw(self, generator: torch.Generator) -> NetDraw:
        return NetDraw(self.net, {})
