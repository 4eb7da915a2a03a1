"""The dropout layers of a network's own, at which a dropout posterior drops."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from avuc.core.caller import warn_caller
from avuc.core.errors import InputError

DROPOUT_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# they set what they drop to a value other than 0, which masks cannot do
ALPHA_LAYERS = (nn.AlphaDropout, nn.FeatureAlphaDropout)

FEW = 3  # layers that a message lists


class CalledLayers:
    """Notes which dropout layers of its own a network calls, to warn of those that samples leave out.

    Attention in Transformers reads the rate of such a layer and drops by a function, which masks do not reach. Layers
    in a part of the network that does not run in evaluation mode, such as an auxiliary head, change no prediction.

    Args:
        net: a network with hooks that drop; it gets further hooks. One that is compiled is not watched.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.called: set[str] = set()
        layers = [] if any(hasattr(layer, "_orig_mod") for layer in net.modules()) else list(net.named_modules())
        self.names: list[str] = [name for name, layer in layers if name and _drops(layer)]
        for watched in {*self.names, *map(_owner, self.names)}:
            net.get_submodule(watched).register_forward_pre_hook(lambda *_, name=watched: self.called.add(name))

    def warn(self) -> None:
        """Warn of layers that were not called although the module around them was."""
        missed = [name for name in self.names if name not in self.called and _owner(name) in self.called]
        if missed:
            more = f" and {len(missed) - FEW} more" if len(missed) > FEW else ""
            warn_caller(
                f"{type(self.net).__name__}: samples do not drop at {', '.join(map(repr, missed[:FEW]))}{more}, which "
                "the network does not call; if it drops there by a function, as attention of Transformers does in "
                "training, samples are less uncertain than Monte Carlo dropout would be: train with a rate of 0 there"
            )


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


def _drops(layer: nn.Module) -> bool:
    """Return whether samples drop at a dropout layer, or at what `Dropout.build` put in its place."""
    hooks = [hook for hook in layer._forward_pre_hooks.values() if hasattr(hook, "rate_before")]
    return isinstance(layer, (*DROPOUT_LAYERS, nn.Identity)) and any(hook.rate_before(layer) for hook in hooks)


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def own_dropout_layers(net: nn.Module, *, marked: bool) -> dict[str, _DropoutNd]:
    """Return the dropout layers by name; `InputError` if there are none, or others that would be ignored.

    Args:
        net: the network.
        marked: whether layers of rate 0 count as well, because they mark where to drop.
    """
    for name, layer in net.named_modules():
        if isinstance(layer, ALPHA_LAYERS) and (marked or layer.p):
            raise InputError(
                f"{type(net).__name__}: {name!r} is an nn.{type(layer).__name__}, which a dropout posterior cannot "
                "sample and would ignore; use nn.Dropout there and train again, or nn.Identity"
            )
    layers: dict[str, _DropoutNd] = {
        name: layer for name, layer in net.named_modules() if isinstance(layer, DROPOUT_LAYERS)
    }
    if not layers:
        raise no_layers(net)
    return layers


def no_layers(net: nn.Module) -> InputError:
    return InputError(
        f"{type(net).__name__} has no nn.Dropout layers (dropout inside a forward function cannot be found); "
        "Dropout().build(net) puts dropout before its weight layers"
    )
