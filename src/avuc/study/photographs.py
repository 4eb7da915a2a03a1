"""Patches of real photographs, as data of another kind that needs no download: scikit-learn carries two pictures."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import require

__all__ = ["photo_patches"]

PHOTOS = ("china.jpg", "flower.jpg")


def photo_patches(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """`count` patches of (height, width, channels), uint8; grey where there is one channel."""
    datasets = require("sklearn.datasets", "dev", "photographs as data of another kind")
    require("PIL", "study", "reading the photographs")
    generator = torch.Generator().manual_seed(seed)
    height, width, channels = shape
    patches = []
    for index, name in enumerate(PHOTOS):
        photo = torch.from_numpy(np.array(datasets.load_sample_image(name))).float()
        if channels == 1:
            photo = photo.mean(-1, keepdim=True)
        # every other pixel: a patch then shows a part of a thing, not a smooth surface
        photo = photo[::2, ::2]
        many = count // 2 + (count % 2 if index == 0 else 0)
        tops = torch.randint(photo.shape[0] - height + 1, (many,), generator=generator).tolist()
        lefts = torch.randint(photo.shape[1] - width + 1, (many,), generator=generator).tolist()
        patches += [photo[top : top + height, left : left + width] for top, left in zip(tops, lefts, strict=True)]
    return torch.stack(patches).round().to(torch.uint8)
