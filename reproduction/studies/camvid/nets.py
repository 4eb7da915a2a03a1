"""A small U-Net (Ronneberger et al. 2015) with batch normalisation; it returns logits for every pixel.

Run the study with `python reproduction/run_study.py camvid --data FOLDER`.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def block(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return two 3 × 3 convolutions with batch normalisation and ReLU."""
    layers: list[nn.Module] = []
    for channels in (in_channels, out_channels):
        layers += [nn.Conv2d(channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Encoder and decoder with skip connections.

    The method Dropout drops channels at the dropout layers, which are around the deepest blocks as in Bayesian SegNet
    (Kendall et al. 2015). Every other method has rate 0 there. `classify` is registered last, because LL-SVI makes the
    last layer Bayesian.
    """

    def __init__(self, num_classes: int, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        sizes = [width * 2 ** min(level, 3) for level in range(levels + 1)]
        self.down = nn.ModuleList([block(3, sizes[0]), *(block(a, b) for a, b in pairwise(sizes))])
        self.drop = nn.ModuleList(nn.Dropout2d(0.0) for _ in range(4))
        pairs = list(pairwise(sizes))[::-1]
        self.up = nn.ModuleList(block(small + large, small) for small, large in pairs)
        self.classify = nn.Conv2d(sizes[0], num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        x, skips = (images - 0.4) / 0.3, []
        for level, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if level else x)
            if level >= len(self.down) - 2:
                x = self.drop[level - len(self.down) + 2](x)
            skips.append(x)
        skips.pop()
        for level, up in enumerate(self.up):
            skip = skips.pop()
            # nearest neighbour is exact on every device and works with every image size
            x = up(torch.cat([F.interpolate(x, size=skip.shape[2:], mode="nearest"), skip], 1))
            if level < 2:
                x = self.drop[2 + level](x)
        return self.classify(x)


def make_net(num_classes, width=32, levels=4):
    """Return the network; see `UNet`."""
    return UNet(num_classes, width, levels)
