"""The layers at which a dropout posterior drops: before weight layers, or at dropout layers of the network's own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from avuc.core.caller import warn_caller
from avuc.core.errors import InputError

WEIGHT_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
DROPOUT_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# they set what they drop to a value other than 0, which masks cannot do
ALPHA_LAYERS = (nn.AlphaDropout, nn.FeatureAlphaDropout)


def own_dropout_layers(net: nn.Module, *, marked: bool) -> dict[str, _DropoutNd]:
    """Return the dropout layers by name; `InputError` if there are none, or others that would be ignored.

    Dropout inside layers of torch, which masks do not reach, gives a warning: a transformer would have no samples at
    all without its other layers.

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
    inside = dropout_inside_layers(net)
    if inside:
        warn_caller(
            f"{type(net).__name__}: samples do not drop inside {_listing(inside)}, whose dropout= acts in training "
            "only, so they are less uncertain than Monte Carlo dropout would be; use nn.Dropout between layers of your "
            "own, or train with dropout=0 there"
        )
    return layers


def dropout_inside_layers(net: nn.Module) -> dict[str, str]:
    """Return the layers of torch whose own function drops in training: for each name, its class and rate.

    Recurrent layers drop between their layers, so one with a single layer drops nothing.
    """
    inside = {}
    for name, layer in net.named_modules():
        recurrent = isinstance(layer, nn.RNNBase) and layer.num_layers > 1
        if (recurrent or isinstance(layer, nn.MultiheadAttention)) and layer.dropout:
            inside[name] = f"nn.{type(layer).__name__}, {layer.dropout:g}"
    return inside


def warn_of_skipped(net: nn.Module, names: Sequence[str]) -> None:
    """Warn of dropout layers that the network does not call, as where its code reads their rate only (F.dropout)."""
    if names:
        warn_caller(
            f"{type(net).__name__}: prediction does not call the dropout layers {_listed(list(map(repr, names)))}, so "
            "samples do not drop there; unless they are for training only, call them in forward (F.dropout with their "
            "rate cannot be sampled), or train with rate 0 there"
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
        warn_caller(
            f"{type(net).__name__}: Dropout does not drop the inputs of {_listed(others)}, because these "
            "are no linear or convolution layers of torch; use nn.Linear there, or dropout layers and own_layers=True"
        )


def _listing(inside: dict[str, str]) -> str:
    return _listed([f"{name!r} ({text})" if name else text for name, text in inside.items()])


def _listed(texts: Sequence[str], most: int = 3) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def no_layers(net: nn.Module) -> InputError:
    inside = dropout_inside_layers(net)
    where = (
        f"that of {_listing(inside)} cannot be sampled"
        if inside
        else "dropout inside a forward function cannot be found"
    )
    return InputError(
        f"{type(net).__name__} has no nn.Dropout layers ({where}); "
        "Dropout().build(net) puts dropout before its weight layers"
    )
