"""`StackedResNet`: CIFAR ResNets of one architecture as one network with a model axis, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from avuc.gpu.kernels.conv3x3 import stacked_conv3x3_sums
from avuc.gpu.stacked.layers import Normed, block_gradient, norm, norm_gradient, pooled
from avuc.nets.resnet_cifar import BasicBlock, CifarResNet

# the gradients of `stacked_conv3x3`; autograd would add the gradients that meet in a block in extra passes
_in_x, _in_weight = torch.ops.avuc.conv3x3_input_gradient, torch.ops.avuc.conv3x3_weight_gradient

Use = Callable[[Callable[..., Any]], Callable[..., Any]]  # returns the function itself or its compiled form
Drop = Callable[[int, Tensor], Tensor]  # applies the dropout of layer number i to its input, or to the gradient


def weight_layers(net: CifarResNet) -> dict[str, nn.Module]:
    """Return convolutions and the last layer by name, in the order of the forward pass."""
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}


def norm_layers(net: CifarResNet) -> dict[str, nn.BatchNorm2d]:
    """Return the batch-norm layers in the order of the forward pass; number i belongs to convolution i."""
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.BatchNorm2d)}


class Part(NamedTuple):
    """Where a weight tensor starts in the flat weights of a model, and its shape with channels last."""

    start: int
    shape: tuple[int, ...]


class Kept(NamedTuple):
    """What the backward pass of a convolution and its normalisation needs."""

    x: Tensor
    convolved: Tensor
    weight: Tensor
    normed: Normed


@dataclass
class Tape:
    """The result of the forward pass, and what the backward pass needs."""

    logits: Tensor
    moments: Tensor  # (M, 2, all channels): means and variances of this batch
    pooled: Tensor
    last: Tensor  # weights of the last layer
    layers: list[Kept] = field(default_factory=list)


class Gradients(NamedTuple):
    """The gradients with respect to the flat weights and to `affine`."""

    flat: Tensor
    affine: Tensor


class StackedResNet:
    """The network as a function. The weights are arguments of each call.

    `flat` holds the (M, …) weight tensors of all layers, one layer after the other; `affine` (M, 2, all channels) holds
    the scales and shifts of batch normalisation.
    """

    def __init__(self, net: CifarResNet, parts: dict[str, Part]) -> None:
        self.strides: list[int] = [
            layer.stride[0] for layer in weight_layers(net).values() if isinstance(layer, nn.Conv2d)
        ]
        norms = norm_layers(net).values()
        self.channels: list[int] = [layer.num_features for layer in norms]
        self.eps: float = next(iter(norms)).eps
        self.blocks: int = sum(isinstance(module, BasicBlock) for module in net.modules())
        self.parts: list[Part] = list(parts.values())

    def weights(self, flat: Tensor, models: int) -> list[Tensor]:
        """Return the weight tensor (M, …) of each layer, as views of `flat`."""
        sizes = [models * torch.Size(part.shape).numel() for part in self.parts]
        return [piece.view(models, *part.shape) for piece, part in zip(flat.split(sizes), self.parts, strict=True)]

    def input_shapes(self, image: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the shape of each layer's input, for one image of shape (height, width, channels)."""
        height, width, _ = image
        shapes: list[tuple[int, ...]] = []
        for part, stride in zip(self.parts, self.strides, strict=False):
            shapes.append((height, width, part.shape[-1]))
            height, width = (height - 1) // stride + 1, (width - 1) // stride + 1
        return [*shapes, self.parts[len(shapes)].shape[-1:]]

    @torch.no_grad()
    def forward(self, x: Tensor, flat: Tensor, affine: Tensor, use: Use, drop: Drop) -> Tape:
        *convolutions, last, bias = self.weights(flat, len(x))
        scales = affine.split(self.channels, 2)
        layers: list[Kept] = []

        def layer(x: Tensor, before: Tensor | None = None) -> Tensor:
            number = len(layers)
            x = drop(number, x)
            convolved, sums = stacked_conv3x3_sums(x, convolutions[number], self.strides[number])
            normed = Normed(*use(norm)(convolved, sums, scales[number], self.eps, before))
            layers.append(Kept(x, convolved, convolutions[number], normed))
            return normed.output

        x = layer(x)
        for _ in range(self.blocks):
            x = layer(layer(x), x)
        averages = drop(len(layers), use(pooled)(x))
        logits = torch.baddbmm(bias[:, None], averages, last.transpose(1, 2))
        moments = torch.cat([kept.normed.moments for kept in layers], 2)
        return Tape(logits, moments, averages, last, layers)

    @torch.no_grad()
    def backward(self, tape: Tape, in_logits: Tensor, affine: Tensor, use: Use, drop: Drop) -> Gradients:
        scales = affine.split(self.channels, 2)
        in_weights: list[Tensor] = []
        in_affine: list[Tensor] = []
        strides = list(self.strides)

        def layer(gradients: tuple[Tensor, Tensor]) -> Tensor:
            """Go back through the last convolution that is left, from the gradients of its normalisation."""
            grad, by_affine = gradients
            kept, stride = tape.layers.pop(), strides.pop()
            in_affine.append(by_affine)
            in_weights.append(_in_weight(grad, kept.x, stride, kept.weight.dtype))
            # the gradient with respect to the images is not needed
            return drop(len(strides), _in_x(grad, kept.weight, stride, *kept.x.shape[2:4])) if strides else grad

        def last_norm() -> tuple[Tensor, Tensor, Tensor]:
            kept = tape.layers[-1]
            return kept.convolved, scales[len(tape.layers) - 1], kept.normed.kept

        output = tape.layers[-1].normed.output
        of_block, of_norm = use(block_gradient), use(norm_gradient)
        in_last = torch.bmm(in_logits.transpose(1, 2), tape.pooled)
        in_bias = in_logits.sum(1)
        in_pooled = drop(len(strides), torch.bmm(in_logits, tape.last)) / (output.shape[2] * output.shape[3])
        direct, through = in_pooled[:, :, None, None].expand(output.shape), None
        for _ in range(self.blocks):
            output = tape.layers[-1].normed.output
            # the gradient of a block's sum goes to its branch and to its shortcut
            through, *gradients = of_block(direct, through, output, *last_norm())
            grad = layer(tuple(gradients))
            direct = layer(of_norm(grad, *last_norm()))
        _, *gradients = of_block(direct, through, tape.layers[-1].normed.output, *last_norm())
        layer(tuple(gradients))
        flat = torch.cat([grad.reshape(-1) for grad in (*reversed(in_weights), in_last, in_bias)])
        return Gradients(flat, torch.cat(in_affine[::-1], 2))
