"""`TrainSettings.freeze_trunk`: the last layer is trained, the layers before it stay as they are."""

from __future__ import annotations

from torch import nn

from avuc.bayes import BayesianModule
from avuc.bayes.layout import choose
from avuc.core.errors import InputError
from avuc.methods import Dropout, Method

# where a model of a method has its network: itself, a posterior, SWAG
PLACES = ("", "module.", "net.")


def freeze_trunk(net: nn.Module, method: Method) -> set[str]:
    """Freeze all weights except those of the last layer, the same layer as in `to_bayesian(layers="last")`.

    Returns the names of the weights that could be trained before.
    """
    if isinstance(getattr(method, "member", method), Dropout):
        raise InputError("train: freeze_trunk cannot be combined with dropout, whose masks are in the trunk, too")
    # by id, because a weight may have several names
    trained = {id(net.get_parameter(slot.name)) for slot in choose(net, "last").slots}
    frozen = {name for name, one in net.named_parameters() if one.requires_grad and id(one) not in trained}
    for parameter in net.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    return frozen


def unfreeze(model: nn.Module, names: set[str]) -> None:
    """Let the weights that `freeze_trunk` named be trained again: the result of a training may be the start of another.

    Args:
        model: the trained model.
        names: names of the weights in its network.
    """
    for name, parameter in model.named_parameters():
        if any(name.startswith(place) and name.removeprefix(place) in names for place in PLACES):
            parameter.requires_grad_(True)


def untrained_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules that own no trained weight, containers included: they may use dropout or batch statistics."""
    sampled = {layer for part in model.modules() if isinstance(part, BayesianModule) for layer in _layers(part)}
    return [
        module
        for module in model.modules()
        if module not in sampled and not any(p.requires_grad for p in module.parameters(recurse=False))
    ]


def _layers(bayesian: BayesianModule) -> list[nn.Module]:
    """Return the layers whose weights are sampled."""
    names = (name for slot in bayesian.layout.slots for name in slot.places)
    return [bayesian.module.get_submodule(name.rpartition(".")[0]) for name in names]
