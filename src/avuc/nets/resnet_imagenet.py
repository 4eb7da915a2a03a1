"""ResNet-50 for ImageNet (He et al. 2016, arXiv:1512.03385), "v1.5": the stride is in the 3×3 convolution of a block.

Parameter names and shapes are torchvision's, so its pretrained weights load with `load_state_dict`. Those weights
expect normalised pixels, but images here are in [0, 1]; by default the network itself normalises with the ImageNet
mean and std.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.nets.common import ImageShape, channels, he_normal, normalise

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride) and 1×1 convolutions; the last one has four times as many channels."""

    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        super().__init__()
        wide = 4 * planes
        self.conv1: nn.Conv2d = nn.Conv2d(in_planes, planes, 1, bias=False)
        self.bn1: nn.BatchNorm2d = nn.BatchNorm2d(planes)
        self.conv2: nn.Conv2d = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2: nn.BatchNorm2d = nn.BatchNorm2d(planes)
        self.conv3: nn.Conv2d = nn.Conv2d(planes, wide, 1, bias=False)
        self.bn3: nn.BatchNorm2d = nn.BatchNorm2d(wide)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_planes != wide:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_planes, wide, 1, stride=stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ImageNetResNet(nn.Module):
    """Four stages of bottleneck blocks, `blocks` in each; ResNet-50 is (3, 4, 6, 3)."""

    takes_bytes = True  # uint8 images, scaled to [0, 1]

    def __init__(
        self,
        blocks: Sequence[int] = (3, 4, 6, 3),
        num_classes: int = 1000,
        image_shape: ImageShape = (224, 224, 3),
        *,
        mean: Sequence[float] | None = IMAGENET_MEAN,
        std: Sequence[float] | None = IMAGENET_STD,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        in_channels = channels(image_shape, 32, "the ImageNet ResNet")
        self.normalise: nn.Module = normalise(mean, std, in_channels)
        self.conv1: nn.Conv2d = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1: nn.BatchNorm2d = nn.BatchNorm2d(64)
        self.layer1: nn.Sequential = _stage(64, 64, blocks[0], 1)
        self.layer2: nn.Sequential = _stage(256, 128, blocks[1], 2)
        self.layer3: nn.Sequential = _stage(512, 256, blocks[2], 2)
        self.layer4: nn.Sequential = _stage(1024, 512, blocks[3], 2)
        self.fc: nn.Linear = nn.Linear(2048, num_classes)
        he_normal(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(self.normalise(x))))
        out = F.max_pool2d(out, 3, stride=2, padding=1)
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        logits: Tensor = self.fc(out.mean((2, 3)))
        return logits


def _stage(in_planes: int, planes: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(in_planes, planes, stride)
    return nn.Sequential(first, *(Bottleneck(4 * planes, planes, 1) for _ in range(blocks - 1)))


def resnet50(num_classes: int = 1000, image_shape: ImageShape = (224, 224, 3), **options: object) -> ImageNetResNet:
    """Return the paper's ImageNet network, which has 25,557,032 weights for 1,000 classes.

    Args:
        num_classes: number of logits.
        image_shape: (height, width, channels).
        options: `mean`, `std` and `generator`; see `ImageNetResNet`.

    >>> sum(p.numel() for p in resnet50().parameters())
    25557032
    """
    return ImageNetResNet((3, 4, 6, 3), num_classes, image_shape, **options)  # type: ignore[arg-type]
