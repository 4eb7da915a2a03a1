"""A convolutional network for small images (8×8 digits to 32×32 colour) that trains in seconds on one core."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.nets.common import ImageShape, channels, he_normal, normalise


class SmallCNN(nn.Module):
    """Three 3×3 convolutions with batch normalisation, mean over pixels, linear layer.

    The convolutions have `width`, 2·`width` and 4·`width` channels; the second and the third halve the image.
    """

    takes_bytes = True  # uint8 images, scaled to [0, 1]

    def __init__(
        self,
        num_classes: int = 10,
        image_shape: ImageShape = (28, 28, 1),
        *,
        width: int = 16,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        in_channels = channels(image_shape, 4, "the small CNN")
        self.normalise: nn.Module = normalise(mean, std, in_channels)
        self.conv1: nn.Conv2d = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1: nn.BatchNorm2d = nn.BatchNorm2d(width)
        self.conv2: nn.Conv2d = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.bn2: nn.BatchNorm2d = nn.BatchNorm2d(2 * width)
        self.conv3: nn.Conv2d = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1, bias=False)
        self.bn3: nn.BatchNorm2d = nn.BatchNorm2d(4 * width)
        self.linear: nn.Linear = nn.Linear(4 * width, num_classes)
        he_normal(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(self.normalise(x))))
        out = F.relu(self.bn2(self.conv2(out)))
        out = F.relu(self.bn3(self.conv3(out)))
        logits: Tensor = self.linear(out.mean((2, 3)))
        return logits


def small_cnn(num_classes: int = 10, image_shape: ImageShape = (28, 28, 1), **options: object) -> SmallCNN:
    """Return a small convolutional network.

    Args:
        num_classes: number of logits.
        image_shape: (height, width, channels).
        options: `width` (channels of the first convolution), `mean`, `std` and `generator`; see `SmallCNN`.

    >>> small_cnn()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return SmallCNN(num_classes, image_shape, **options)  # type: ignore[arg-type]
