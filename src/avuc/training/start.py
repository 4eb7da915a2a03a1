"""The network that a training starts from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from avuc.bayes import BayesianModule
from avuc.core.errors import InputError
from avuc.core.private_copy import changed_by_eval
from avuc.core.shared_functions import independent_copy
from avuc.methods import Method, Objective
from avuc.training.settings import TrainSettings

Net = nn.Module | Callable[[torch.Generator], nn.Module]
_EXAMPLE = "pass a network, or a function of a torch.Generator that returns one, for example lambda generator: MyNet()"


def starting_net(net: Net, generator: torch.Generator) -> nn.Module:
    """Return a copy of a network, or the network that a function makes.

    Most layers of torch take their initial weights from its global generator. It is seeded here and put back, so that a
    function that ignores `generator` has the same start for the same seed, and another one for another seed.

    Args:
        net: as in `fit`.
        generator: what the function gets.
    """
    if isinstance(net, nn.Module):
        return independent_copy(_checked(net))
    _check_call(net, generator)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed((generator.initial_seed() + 1) % 2**63)  # of the CPU only
        try:
            made = net(generator)
        except TypeError as error:  # `make_net(num_classes)` takes the generator for a number
            raise InputError(f"fit: net, called with a torch.Generator: {error}; {_EXAMPLE}") from error
        # it may be the same network each time, or one that the user still needs
        return independent_copy(_checked(made))


def check_arguments(method: object, net: object, objective: object, settings: object) -> None:
    """Raise `InputError` for arguments of `fit` of a wrong type, such as a name or a class instead of an instance."""
    wanted: list[tuple[str, object, type, str]] = [
        ("method", method, Method, "avuc.methods.SVI()"),
        ("objective", objective, Objective, 'avuc.methods.Objective("avuc")'),
        ("settings", settings, TrainSettings, "avuc.train.TrainSettings(epochs=10)"),
    ]
    for name, value, kind, example in wanted:
        if not isinstance(value, kind) and (value is not None or name == "method"):
            found = f"the class {value.__name__}" if isinstance(value, type) else repr(value)[:60]
            raise InputError(f"fit: {name} must be an instance, such as {example}; found {found}")
    if not callable(net):
        raise InputError(f"fit: net must be a network, or a function that makes one; found {type(net).__name__}")


def _check_call(net: Callable[[torch.Generator], nn.Module], generator: torch.Generator) -> None:
    """Raise if a function cannot be called with a generator, or would take it for something else."""
    try:
        bound = inspect.signature(net).bind(generator)
    except TypeError as error:
        raise InputError(f"fit: net cannot be called with a torch.Generator ({error}); {_EXAMPLE}") from error
    except ValueError:  # a function of C has no signature
        return
    name = next(iter(bound.arguments))
    default = bound.signature.parameters[name].default
    for_anything = default is None or default is inspect.Parameter.empty or isinstance(default, torch.Generator)
    if name != "generator" and not for_anything:
        kind = "class" if isinstance(net, type) else "function"
        called = getattr(net, "__name__", type(net).__name__)
        raise InputError(f"fit: net: the first argument of the {kind} {called} is {name}={default!r}; {_EXAMPLE}")


def _checked(net: Any) -> nn.Module:
    """Raise for a network with a posterior inside: methods would train without its KL, and predict at random."""
    if not isinstance(net, nn.Module):
        raise InputError(f"fit: net must return a network (nn.Module), found {type(net).__name__}")
    for module in net.modules():
        if isinstance(module, BayesianModule):
            raise InputError(
                f"fit: net is or holds a posterior ({type(module).__name__}), such as the model of an earlier fit; "
                "give a plain network: mean_module() of that posterior starts from its means"
            )
    refuse_lazy(net, net.named_buffers())  # which torch cannot copy
    changed = changed_by_eval(net, from_training=True)
    if changed:  # in each validation, and again in prediction
        raise InputError(
            f"fit: eval() changes the network's {changed!r}, as if adapters are merged into the weights; switch that "
            "off, for example with merge_weights=False of loralib"
        )
    return net


def refuse_lazy(net: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise if a tensor of a network is lazy: it has no shape before the first batch.

    Args:
        net: the network.
        tensors: the tensors that need a shape, by name.
    """
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if lazy:
        raise InputError(
            f"fit: {type(net).__name__}: {lazy[0]!r} is lazy and has no shape yet; run one batch through the network "
            "first, for example net(inputs[:2])"
        )
