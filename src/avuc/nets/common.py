"""What all networks share: the check of the image shape, the normalisation of the input, the initial weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError

# (height, width, channels)
ImageShape = tuple[int, int, int]


class Normalise(nn.Module):
    """(x − mean)/std per channel. The constants are part of the architecture: they are not in the `state_dict`."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def normalise(mean: Sequence[float] | None, std: Sequence[float] | None, in_channels: int) -> nn.Module:
    """Return the first layer of a network: `Normalise`, or the identity if neither constant is given."""
    if mean is None and std is None:
        return nn.Identity()
    if mean is None or std is None:
        raise InputError("mean and std go together: give both, or neither")
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != in_channels:
            raise InputError(f"{name} needs one number per image channel ({in_channels}), found {len(values)}")
    if min(std) <= 0:
        raise InputError(f"std must be positive, found {list(std)}")
    return Normalise(mean, std)


def channels(image_shape: ImageShape, smallest: int, net: str) -> int:
    """Return the number of channels of an image shape; an error if the network cannot take such images.

    Args:
        image_shape: (height, width, channels).
        smallest: the smallest height and width that the network takes.
        net: the name of the network, for the message.
    """
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise InputError(f"{net}: image_shape is (height, width, channels), all at least 1; found {tuple(image_shape)}")
    height, width, count = image_shape
    if min(height, width) < smallest:
        raise InputError(f"{net} needs images of at least {smallest}×{smallest} pixels, found {height}×{width}")
    return count


@torch.no_grad()
def he_normal(net: nn.Module, generator: torch.Generator | None) -> None:
    """Initialise weights from N(0, 2/fan_in) and biases with 0; torch already makes normalisation layers the identity.

    The weights are sampled in the order of `modules()`. Networks are built on the CPU, so a seed gives the same network
    on every device.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
