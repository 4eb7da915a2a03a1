"""Dropout in a stack: masks for the inputs of the layers that have it, drawn as the hooks of the single model do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from avuc.gpu.stacked.net import Drop, Use, weight_layers
from avuc.methods.dropout import DropoutHook
from avuc.nets.resnet_cifar import CifarResNet
from avuc.training.model_trainer import Member

__all__ = ["Drops", "dropped", "hooks_of"]

Each = Callable[[Callable[[int, Member], None]], None]


def hooks_of(net: CifarResNet) -> dict[int, DropoutHook]:
    """The dropout before each weight layer, by the layer's number."""
    layers = enumerate(weight_layers(net).values())
    found = {number: list(layer._forward_pre_hooks.values()) for number, layer in layers}
    return {number: hooks[0] for number, hooks in found.items() if hooks and isinstance(hooks[0], DropoutHook)}


def dropped(x: Tensor, mask: Tensor, factors: Tensor) -> Tensor:
    return (x * mask * factors.view(-1, *[1] * (x.dim() - 1))).to(x.dtype)


class Drops:
    """`hooks`: of each model, on some of its layers; `shapes`: what enters one image's layers."""

    def __init__(
        self, hooks: Sequence[dict[int, DropoutHook]], shapes: Sequence[tuple[int, ...]], like: Tensor
    ) -> None:
        self.hooks, self.shapes = hooks, shapes
        # a model without dropout before a layer where another has it keeps everything there
        self.factors = {
            number: torch.tensor(
                [1 / (1 - own[number].rate) if number in own else 1.0 for own in hooks],
                dtype=like.dtype,
                device=like.device,
            )
            for number in sorted({number for own in hooks for number in own})
        }

    @torch.no_grad()
    def draw(self, rows: int, dtype: torch.dtype, device: torch.device, each: Each, use: Use) -> Drop:
        """The masks of one step, each model's from its own generator."""
        masks = {
            number: torch.empty(len(self.hooks), rows, *self.shapes[number], dtype=dtype, device=device)
            for number in self.factors
        }

        def fill(row: int, member: Member) -> None:
            for number in masks:
                mask, hook = masks[number][row], self.hooks[row].get(number)
                if hook is None:
                    mask.fill_(1)
                    continue
                # the hook sees the channels first; random numbers go by that order on some devices
                seen = mask.permute(0, 3, 1, 2) if mask.dim() == 4 else mask
                seen.bernoulli_(1 - hook.rate, generator=member.noise)

        if masks:
            each(fill)
        return lambda number, x: use(dropped)(x, masks[number], self.factors[number]) if number in masks else x
