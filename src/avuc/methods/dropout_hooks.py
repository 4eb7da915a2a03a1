"""Hooks that drop the inputs of layers, for dropout.py: new masks in training, those of a sample in prediction."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.core.random_numbers import noise_source
from avuc.methods.dropout_layers import DROPOUT_LAYERS


class MaskSource(Protocol):
    """A sample, which has a mask for every layer."""

    def mask(self, hook_index: int, rate: float, x: Tensor, channels: bool) -> Tensor: ...


class Masks:
    """The state that the hooks of one net share: the source of training masks, and the sample that is evaluated."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self.generator = generator
        self.draw: MaskSource | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Masks:
        return Masks(None)  # a generator belongs to one net: the copy uses torch's own


class DropoutHook:
    """Drops inputs of its layer: in training, unless the layer does so itself, and when a sample is evaluated."""

    def __init__(
        self, masks: Masks, index: int, rate: float, *, channels: bool = False, in_training: bool = True
    ) -> None:
        self.masks: Masks = masks
        self.place: int = index  # keeps this name, because networks pickled by earlier versions have it
        self.rate: float = rate
        self.channels: bool = channels
        self.in_training: bool = in_training

    def rate_before(self, layer: nn.Module) -> float:
        """Return the current rate: that of a dropout layer, which may have changed, otherwise the hook's."""
        return float(layer.p) if isinstance(layer, DROPOUT_LAYERS) else self.rate

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if not inputs:
            raise InputError(
                f"the network calls a layer {type(layer).__name__} with keyword arguments only, and dropout does not "
                "see its input; give it as the first argument, layer(x)"
            )
        x, *rest = inputs
        draw = self.masks.draw
        if draw is not None:
            return (x * draw.mask(self.place, self.rate_before(layer), x, self.channels), *rest)
        if not (layer.training and self.in_training):
            return inputs
        generator = noise_source(self.masks.generator, x.device)
        if generator is None and not self.channels:
            return (F.dropout(x, self.rate), *rest)
        # empty_like keeps the memory order of x: noise is filled in that order, and stacked networks do the same
        kept = torch.empty_like(x[(slice(None), slice(None), *[slice(1)] * (x.ndim - 2))] if self.channels else x)
        kept.bernoulli_(1 - self.rate, generator=generator)
        return (x * kept / (1 - self.rate), *rest)


def _hooks(net: nn.Module) -> list[DropoutHook]:
    hooks = (hook for layer in net.modules() for hook in layer._forward_pre_hooks.values())
    return [hook for hook in hooks if isinstance(hook, DropoutHook)]


def drops_in_training(net: nn.Module) -> bool:
    """Return whether `Dropout.build` made this network; hooks at layers that drop by themselves do not count."""
    return any(hook.in_training for hook in _hooks(net))


def masks_of(net: nn.Module) -> Masks:
    hooks = _hooks(net)
    if not hooks:
        raise InputError(f"{type(net).__name__} has no dropout hooks; Dropout().build(net) puts them there")
    return hooks[0].masks


def joined_masks(net: nn.Module) -> Masks:
    """Return the masks of a net, whose hooks share them from now on.

    Hooks that were made at different times, or for parts of the net, have masks and numbers of their own. A sample
    would drop only where the first of them do.
    """
    masks, hooks = masks_of(net), _hooks(net)
    if any(hook.masks is not masks for hook in hooks):
        for number, hook in enumerate(hooks):
            hook.masks, hook.place = masks, number
    return masks


def without_hooks(net: nn.Module) -> nn.Module:
    """Remove the dropout of an earlier `build`, which would drop a second time in training."""
    for name, layer in list(net.named_modules()):
        hooks = {key: hook for key, hook in layer._forward_pre_hooks.items() if isinstance(hook, DropoutHook)}
        for key, hook in hooks.items():
            del layer._forward_pre_hooks[key]
            if name and type(layer) is nn.Identity:  # the place of a dropout layer of the network's own
                replace_layer(net, layer, nn.Dropout2d(0.0) if hook.channels else nn.Dropout(0.0))
    return net


def replace_layer(net: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put another layer in the place of one, under all its names: blocks may share a dropout layer."""
    places = [name for name, layer in net.named_modules(remove_duplicate=False) if layer is old]
    for place in places:
        parent, _, leaf = place.rpartition(".")
        setattr(net.get_submodule(parent), leaf, new)
