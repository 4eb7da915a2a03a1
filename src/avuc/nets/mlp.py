"""A multilayer perceptron on the flattened image: no convolution, no batch normalisation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from avuc.nets.common import ImageShape, channels, he_normal, normalise


class MLP(nn.Module):
    """Linear layers with ReLU between them; `hidden` has the widths between them (empty: logistic regression)."""

    takes_bytes = True  # uint8 images, scaled to [0, 1]

    def __init__(
        self,
        num_classes: int = 10,
        image_shape: ImageShape = (28, 28, 1),
        *,
        hidden: Sequence[int] = (200, 200),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        in_channels = channels(image_shape, 1, "the MLP")
        self.normalise: nn.Module = normalise(mean, std, in_channels)
        widths = [image_shape[0] * image_shape[1] * in_channels, *hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers: nn.Sequential = nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
        he_normal(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(self.normalise(x).flatten(1))
        return logits


def mlp(num_classes: int = 10, image_shape: ImageShape = (28, 28, 1), **options: object) -> MLP:
    """Return a multilayer perceptron on the flattened image.

    Args:
        num_classes: number of logits.
        image_shape: (height, width, channels).
        options: `hidden` (widths of the hidden layers), `mean`, `std` and `generator`; see `MLP`.

    >>> mlp()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return MLP(num_classes, image_shape, **options)  # type: ignore[arg-type]
