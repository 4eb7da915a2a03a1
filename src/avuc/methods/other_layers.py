"""Layers with weights that dropout before weight layers does not know."""

from __future__ import annotations

from torch import nn

from avuc.core.caller import warn_caller

FEW = 3  # layers that a message lists


def warn_other_layers(net: nn.Module) -> None:
    """Warn of layers with a matrix of weights that are no layers of torch, such as Conv1D of GPT-2 in Transformers.

    Dropout before weight layers knows those of torch; it passes over others.

    Args:
        net: the network.
    """
    others = []
    for name, layer in net.named_modules():
        weight = layer._parameters.get("weight")
        of_torch = any(kind.__module__.startswith("torch.") for kind in type(layer).__mro__ if kind is not nn.Module)
        if weight is not None and weight.ndim > 1 and not of_torch:
            others.append(f"{name!r} ({type(layer).__name__})")
    if others:
        more = f" and {len(others) - FEW} more" if len(others) > FEW else ""
        warn_caller(
            f"{type(net).__name__}: Dropout does not drop the inputs of {', '.join(others[:FEW])}{more}, because these "
            "are no linear or convolution layers of torch; use nn.Linear there, or dropout layers and own_layers=True"
        )
