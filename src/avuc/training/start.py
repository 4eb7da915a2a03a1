"""The network that a training starts from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from avuc.bayes import BayesianModule
from avuc.core.errors import InputError
from avuc.core.private_copy import deep_copy

Net = nn.Module | Callable[[torch.Generator], nn.Module]


def starting_net(net: Net, generator: torch.Generator) -> nn.Module:
    """Return a copy of a network, or the network that a function makes.

    Most layers of torch take their initial weights from its global generator. It is seeded here and put back, so that a
    function that ignores `generator` has the same start for the same seed, and another one for another seed.

    Args:
        net: as in `fit`.
        generator: what the function gets.
    """
    if isinstance(net, nn.Module):
        return deep_copy(_checked(net))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed((generator.initial_seed() + 1) % 2**63)  # of the CPU only
        # the function may return the same network each time, or one that the user still needs
        return deep_copy(_checked(net(generator)))


def _checked(net: nn.Module) -> nn.Module:
    """Raise for a network with a posterior inside: methods would train without its KL, and predict at random."""
    for module in net.modules():
        if isinstance(module, BayesianModule):
            raise InputError(
                f"fit: net is or holds a posterior ({type(module).__name__}), such as the model of an earlier fit; "
                "give a plain network: mean_module() of that posterior starts from its means"
            )
    return net
