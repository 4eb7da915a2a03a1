"""Patches of photographs as out-of-distribution data without a download: scikit-learn comes with two pictures."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import require

PHOTOS = ("china.jpg", "flower.jpg")


def photo_patches(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """Return `count` uint8 patches of shape (height, width, channels); grey for one channel.

    Args:
        count: number of patches.
        shape: (height, width, channels) of a patch.
        seed: chooses the patches.
    """
    datasets = require("sklearn.datasets", "dev", "photographs as out-of-distribution data")
    require("PIL", "study", "reading the photographs")
    generator = torch.Generator().manual_seed(seed)
    height, width, channels = shape
    patches = []
    for index, name in enumerate(PHOTOS):
        photo = torch.from_numpy(np.array(datasets.load_sample_image(name))).float()
        if channels == 1:
            photo = photo.mean(-1, keepdim=True)
        # every other pixel, so that a patch shows part of an object and not a smooth surface
        photo = photo[::2, ::2]
        many = count // 2 + (count % 2 if index == 0 else 0)
        tops = torch.randint(photo.shape[0] - height + 1, (many,), generator=generator).tolist()
        lefts = torch.randint(photo.shape[1] - width + 1, (many,), generator=generator).tolist()
        patches += [photo[top : top + height, left : left + width] for top, left in zip(tops, lefts, strict=True)]
    return torch.stack(patches).round().to(torch.uint8)
