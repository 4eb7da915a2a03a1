"""Dropout in a stack: the same masks, from the same random numbers, as the hooks of the single models draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from avuc.gpu.stacked.net import Drop, Use, weight_layers
from avuc.methods.dropout_hooks import DropoutHook
from avuc.nets.resnet_cifar import CifarResNet
from avuc.training.model_trainer import ModelTrainer

Each = Callable[[Callable[[int, ModelTrainer], None]], None]


def hooks_of(net: CifarResNet) -> dict[int, DropoutHook]:
    """Return the dropout before each weight layer, by the number of the layer."""
    layers = enumerate(weight_layers(net).values())
    found = {number: list(layer._forward_pre_hooks.values()) for number, layer in layers}
    return {number: hooks[0] for number, hooks in found.items() if hooks and isinstance(hooks[0], DropoutHook)}


def dropped(x: Tensor, mask: Tensor, factors: Tensor) -> Tensor:
    return (x * mask * factors.view(-1, *[1] * (x.dim() - 1))).to(x.dtype)


class Drops:
    """The dropout of all models in a stack.

    Args:
        hooks: for each model, its dropout by layer number.
        shapes: for each layer, the shape of its input for one image.
        like: a tensor with the dtype and device of the weights.
    """

    def __init__(
        self, hooks: Sequence[dict[int, DropoutHook]], shapes: Sequence[tuple[int, ...]], like: Tensor
    ) -> None:
        self.hooks: Sequence[dict[int, DropoutHook]] = hooks
        self.shapes: Sequence[tuple[int, ...]] = shapes
        # a model without dropout before a layer where another model has it uses the factor 1
        self.factors: dict[int, Tensor] = {
            number: torch.tensor(
                [1 / (1 - own[number].rate) if number in own else 1.0 for own in hooks],
                dtype=like.dtype,
                device=like.device,
            )
            for number in sorted({number for own in hooks for number in own})
        }

    @torch.no_grad()
    def draw(self, rows: int, dtype: torch.dtype, device: torch.device, each: Each, use: Use) -> Drop:
        """Draw the masks of one step, each model's from its own generator; return the function that applies them."""
        masks = {
            number: torch.empty(len(self.hooks), rows, *self.shapes[number], dtype=dtype, device=device)
            for number in self.factors
        }

        def fill(row: int, trainer: ModelTrainer) -> None:
            for number in masks:
                mask, hook = masks[number][row], self.hooks[row].get(number)
                if hook is None:
                    mask.fill_(1)
                    continue
                # the hook of the single model sees channels first, and some devices fill in that order
                seen = mask.permute(0, 3, 1, 2) if mask.dim() == 4 else mask
                seen.bernoulli_(1 - hook.rate, generator=trainer.noise)

        if masks:
            each(fill)
        return lambda number, x: use(dropped)(x, masks[number], self.factors[number]) if number in masks else x
