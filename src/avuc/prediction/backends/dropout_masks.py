"""Samples of Monte Carlo dropout as one network whose masks are weights.

`MaskDraw` applies its masks in hooks, which prevent folding and compiling. Here the masks become buffers of a copy of
the network. A sample is then a set of values for these buffers, and runs like any other with replaced weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from avuc.core.private_copy import deep_copy
from avuc.methods.dropout import MaskDraw
from avuc.methods.dropout_hooks import DropoutHook
from avuc.nets.calls import call_every_layer
from avuc.nets.masked import Masked

Shapes = dict[str, tuple[int, ...]]


def dropout_hooks(net: nn.Module) -> dict[str, DropoutHook]:
    """Return the dropout hooks by the name of the layer whose input they change."""
    return {
        name: hook
        for name, layer in net.named_modules()
        for hook in layer._forward_pre_hooks.values()
        if isinstance(hook, DropoutHook)
    }


def masked_net(net: nn.Module) -> nn.Module | None:
    """Return a copy of a network with `Masked` layers instead of dropout hooks; None if the result could differ."""
    names = dropout_hooks(net)
    layers = dict(net.named_modules(remove_duplicate=False))
    shared = any(layer is layers[name] and other != name for name in names for other, layer in layers.items())
    others = any(len(layers[name]._forward_pre_hooks) > 1 or layers[name]._forward_hooks for name in names)
    leaves = all(name and not list(layers[name].children()) for name in names)
    if shared or others or not leaves:
        return None
    masked = call_every_layer(deep_copy(net).eval())
    for name in names:
        parent, _, leaf = name.rpartition(".")
        layer = masked.get_submodule(name)
        layer._forward_pre_hooks.clear()
        setattr(masked.get_submodule(parent), leaf, Masked(layer))
    return masked


@torch.no_grad()
def runs(masked: nn.Module, *args: Any, **kwargs: Any) -> bool:
    """Return whether a network of `masked_net` runs: code that reads other attributes of a layer may fail."""
    try:
        masked(*args, **kwargs)
    except Exception:  # whatever the user's network raises; it then runs with hooks
        return False
    return True


def mask_shapes(sample: MaskDraw, *args: Any, **kwargs: Any) -> Shapes | None:
    """Return the shape of each layer's mask for an image (1, …); None if a layer is not called exactly once."""
    sample(*args, **kwargs)
    names = {hook.place: name for name, hook in dropout_hooks(sample.net).items()}
    # keys of `_drawn` are (position of the hook, number of the call, *shape)
    if sorted(position for position, *_ in sample._drawn) != sorted(names):
        return None
    return {names[position]: tuple(shape) for position, _, *shape in sample._drawn}


def masks_of(sample: MaskDraw, shapes: Shapes, device: torch.device) -> dict[str, Tensor]:
    """Return the masks of a sample by their names in `masked_net`."""
    hooks = dropout_hooks(sample.net)
    # the same sample before its first call: each layer gets its first mask
    fresh = MaskDraw(sample.net, sample.masks, sample.seed)
    masks = {}
    for name, shape in shapes.items():
        hook, like = hooks[name], torch.empty(1, *shape, device=device)
        masks[f"{name}.mask"] = fresh.mask(hook.place, hook.rate_before(fresh.net.get_submodule(name)), like, False)
    return masks
