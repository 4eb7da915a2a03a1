"""The dropout layers of a network's own, at which a dropout posterior drops."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from avuc.core.errors import InputError

DROPOUT_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# they set what they drop to a value other than 0, which masks cannot do
ALPHA_LAYERS = (nn.AlphaDropout, nn.FeatureAlphaDropout)


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
