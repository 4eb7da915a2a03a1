"""`TrainSettings.freeze_trunk`: the last layer is trained, the layers before it stay as they are."""

from __future__ import annotations

from torch import nn

from avuc.bayes import BayesianModule
from avuc.bayes.layout import choose
from avuc.core.errors import InputError
from avuc.methods import Dropout, Method


def freeze_trunk(net: nn.Module, method: Method) -> None:
    """Make all weights constants but those of the last layer, which is the one of `to_bayesian(layers="last")`."""
    if isinstance(getattr(method, "member", method), Dropout):
        raise InputError("train: freeze_trunk cannot be combined with dropout, whose masks are in the trunk, too")
    trained = {
        id(net.get_parameter(slot.name)) for slot in choose(net, "last").slots
    }  # a weight may have several names
    for parameter in net.parameters():
        parameter.requires_grad_(id(parameter) in trained)


def untrained_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that own no trained weight: also one with layers inside may drop values or use batch statistics."""
    places = {place for part in model.modules() if isinstance(part, BayesianModule) for place in _layers(part)}
    return [
        module
        for module in model.modules()
        if module not in places and not any(p.requires_grad for p in module.parameters(recurse=False))
    ]


def _layers(bayesian: BayesianModule) -> list[nn.Module]:
    """The layers whose weights are sampled."""
    places = (place for slot in bayesian.layout.slots for place in slot.places)
    return [bayesian.module.get_submodule(place.rpartition(".")[0]) for place in places]
