"""The CIFAR residual networks of He et al. 2016 (arXiv:1512.03385, §4.2): 6n+2 layers, widths 16, 32, 64.

Where a block changes the shape, its shortcut is option A by default, as in He et al. and in the paper's reference code:
it takes every second pixel and fills new channels with zeros, without weights. Option B is a 1×1 convolution with batch
normalisation.
Parameter names follow the public CIFAR ResNet checkpoints (`layer1.0.conv1.weight`, …, `linear.weight`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.nets.common import ImageShape, channels, he_normal, normalise

Shortcut = Literal["A", "B"]


class PadShortcut(nn.Module):
    """Shortcut of option A: every second pixel; new channels are zero, half of them before and half after the old."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.before: int = extra // 2
        self.after: int = extra - extra // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))

    def extra_repr(self) -> str:
        return f"{self.before} + {self.after} channels"


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch normalisation, and a shortcut around them."""

    def __init__(self, in_planes: int, planes: int, stride: int, option: Shortcut) -> None:
        super().__init__()
        self.conv1: nn.Conv2d = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1: nn.BatchNorm2d = nn.BatchNorm2d(planes)
        self.conv2: nn.Conv2d = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2: nn.BatchNorm2d = nn.BatchNorm2d(planes)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_planes != planes:
            self.shortcut = (
                PadShortcut(planes - in_planes)
                if option == "A"
                else nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes))
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """6n+2 layers: a convolution, three stages of n = `blocks` blocks, mean over pixels, linear layer.

    The second and the third stage halve the image.
    """

    takes_bytes = True  # uint8 images, scaled to [0, 1]

    def __init__(
        self,
        blocks: int,
        num_classes: int = 10,
        image_shape: ImageShape = (32, 32, 3),
        *,
        shortcut: Shortcut = "A",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if shortcut not in ("A", "B"):
            raise InputError(f"shortcut is 'A' (padding) or 'B' (1×1 convolution), found {shortcut!r}")
        in_channels = channels(image_shape, 4, "the CIFAR ResNet")
        self.normalise: nn.Module = normalise(mean, std, in_channels)
        self.conv1: nn.Conv2d = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1: nn.BatchNorm2d = nn.BatchNorm2d(16)
        self.layer1: nn.Sequential = _stage(16, 16, blocks, 1, shortcut)
        self.layer2: nn.Sequential = _stage(16, 32, blocks, 2, shortcut)
        self.layer3: nn.Sequential = _stage(32, 64, blocks, 2, shortcut)
        self.linear: nn.Linear = nn.Linear(64, num_classes)
        he_normal(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(self.normalise(x))))
        out = self.layer3(self.layer2(self.layer1(out)))
        logits: Tensor = self.linear(out.mean((2, 3)))
        return logits


def _stage(in_planes: int, planes: int, blocks: int, stride: int, option: Shortcut) -> nn.Sequential:
    first = BasicBlock(in_planes, planes, stride, option)
    return nn.Sequential(first, *(BasicBlock(planes, planes, 1, option) for _ in range(blocks - 1)))


def resnet20(num_classes: int = 10, image_shape: ImageShape = (32, 32, 3), **options: object) -> CifarResNet:
    """Return the paper's CIFAR-10 network, which has 269,722 weights for 32×32×3 images and 10 classes (option A).

    Args:
        num_classes: number of logits.
        image_shape: (height, width, channels).
        options: `shortcut` ("A" or "B"), `mean`, `std` and `generator`; see `CifarResNet`.

    >>> sum(p.numel() for p in resnet20().parameters())
    269722
    """
    return CifarResNet(3, num_classes, image_shape, **options)  # type: ignore[arg-type]


def resnet32(num_classes: int = 10, image_shape: ImageShape = (32, 32, 3), **options: object) -> CifarResNet:
    """Return the CIFAR ResNet with 32 layers.

    Args:
        num_classes: number of logits.
        image_shape: (height, width, channels).
        options: `shortcut` ("A" or "B"), `mean`, `std` and `generator`; see `CifarResNet`.

    >>> sum(p.numel() for p in resnet32().parameters())
    464154
    """
    return CifarResNet(5, num_classes, image_shape, **options)  # type: ignore[arg-type]


def resnet44(num_classes: int = 10, image_shape: ImageShape = (32, 32, 3), **options: object) -> CifarResNet:
    """Return the CIFAR ResNet with 44 layers.

    Args:
        num_classes: number of logits.
        image_shape: (height, width, channels).
        options: `shortcut` ("A" or "B"), `mean`, `std` and `generator`; see `CifarResNet`.

    >>> sum(p.numel() for p in resnet44().parameters())
    658586
    """
    return CifarResNet(7, num_classes, image_shape, **options)  # type: ignore[arg-type]


def resnet56(num_classes: int = 10, image_shape: ImageShape = (32, 32, 3), **options: object) -> CifarResNet:
    """Return the CIFAR ResNet with 56 layers.

    Args:
        num_classes: number of logits.
        image_shape: (height, width, channels).
        options: `shortcut` ("A" or "B"), `mean`, `std` and `generator`; see `CifarResNet`.

    >>> sum(p.numel() for p in resnet56().parameters())
    853018
    """
    return CifarResNet(9, num_classes, image_shape, **options)  # type: ignore[arg-type]
