"""The thinned networks of Monte Carlo dropout as one net with masks for weights.

`MaskDraw` multiplies through hooks, which hold a draw of their own: neither folding nor compiling sees through them.
Here the masks become buffers of a copy of the net, and a draw a set of values for them, as with any drawn weights.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from avuc.methods.dropout import DropoutHook, MaskDraw
from avuc.nets.masked import Masked

__all__ = ["dropout_hooks", "mask_shapes", "masked_net", "masks_of"]

Shapes = dict[str, tuple[int, ...]]


def dropout_hooks(net: nn.Module) -> dict[str, DropoutHook]:
    """The dropout hooks by the name of the layer they are put before."""
    return {
        name: hook
        for name, layer in net.named_modules()
        for hook in layer._forward_pre_hooks.values()
        if isinstance(hook, DropoutHook)
    }


def masked_net(net: nn.Module) -> nn.Module | None:
    """A copy of a net with dropout hooks that has `Masked` layers instead; None where that would not be the same."""
    names = dropout_hooks(net)
    layers = dict(net.named_modules(remove_duplicate=False))
    shared = any(layer is layers[name] and other != name for name in names for other, layer in layers.items())
    others = any(len(layers[name]._forward_pre_hooks) > 1 or layers[name]._forward_hooks for name in names)
    leaves = all(name and not list(layers[name].children()) for name in names)
    if shared or others or not leaves:
        return None
    made = copy.deepcopy(net).eval()
    for name in names:
        parent, _, leaf = name.rpartition(".")
        layer = made.get_submodule(name)
        layer._forward_pre_hooks.clear()
        setattr(made.get_submodule(parent), leaf, Masked(layer))
    return made


def mask_shapes(draw: MaskDraw, image: Tensor) -> Shapes | None:
    """The shape of each layer's mask for such an image, (1, …); None where a layer needs other than one mask."""
    draw(image)
    names = {hook.place: name for name, hook in dropout_hooks(draw.net).items()}
    # keys are (place, which call of the layer, *shape)
    if sorted(place for place, *_ in draw._made) != sorted(names):
        return None
    return {names[place]: tuple(shape) for place, _, *shape in draw._made}


def masks_of(draw: MaskDraw, shapes: Shapes, device: torch.device) -> dict[str, Tensor]:
    """The masks of a draw by their names in `masked_net`."""
    hooks = dropout_hooks(draw.net)
    draw = MaskDraw(draw.net, draw.masks, draw.seed)  # no layer has been called yet: each gets its first mask
    masks = {}
    for name, shape in shapes.items():
        hook, like = hooks[name], torch.empty(1, *shape, device=device)
        masks[f"{name}.mask"] = draw.mask(hook.place, hook.rate_before(draw.net.get_submodule(name)), like, False)
    return masks
