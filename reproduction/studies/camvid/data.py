"""CamVid road scenes (Brostow et al. 2009) as arranged by the SegNet tutorial: 367 / 101 / 233 images with 11 classes.

`root` holds train, val, test with PNG images and trainannot, valannot, testannot with PNG labels of the same names;
label 11 is void, and ignored. `python data.py ROOT TARGET` writes a copy at half the size, which `load` reads without
resizing again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data.tensors import TensorData

CLASSES = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist")
COUNTS = {"train": 367, "val": 101, "test": 233}
SIZE = (360, 480)
VOID = 11


def load(split, root, scale=2, count=0):
    """Images (N, H, W, 3) and a label for each pixel, at 1/`scale` of 360 × 480; the first `count`, 0 for all."""
    files = sorted((Path(root) / split).glob("*.png"))
    if len(files) != COUNTS[split]:
        raise InputError(f"{Path(root) / split}: {len(files)} images; CamVid has {COUNTS[split]} there")
    files = files[:count] if count else files
    pairs = [_pair(path, Path(root) / f"{split}annot" / path.name, scale) for path in files]
    images, labels = (np.stack(each) for each in zip(*pairs, strict=True))
    targets = torch.from_numpy(labels).long()
    targets[targets == VOID] = IGNORE_INDEX
    return TensorData(torch.from_numpy(images), targets, len(CLASSES), f"CamVid {split}", CLASSES)


def _pair(image: Path, label: Path, scale: int) -> tuple[np.ndarray, np.ndarray]:
    with Image.open(image) as picture, Image.open(label) as classes:
        pixels, marks = picture.convert("RGB"), np.asarray(classes, np.uint8)
        if marks.shape != (pixels.height, pixels.width):
            raise InputError(f"{label}: {marks.shape} labels for an image of {(pixels.height, pixels.width)}")
        wanted = SIZE[0] // scale, SIZE[1] // scale
        if marks.shape != wanted:
            if marks.shape != SIZE:
                raise InputError(f"{image}: {marks.shape} pixels; expected {SIZE}, or {wanted} for scale {scale}")
            # the mean of scale × scale pixels, and the label of the first of them
            pixels, marks = pixels.reduce(scale), marks[::scale, ::scale]
        return np.asarray(pixels, np.uint8), marks


def small_copy(root: str, target: str, scale: int = 2) -> Iterator[Path]:
    """Write all images and labels at 1/`scale` of their size."""
    for split in COUNTS:
        for name in (split, f"{split}annot"):
            (Path(target) / name).mkdir(parents=True, exist_ok=True)
        for path in sorted((Path(root) / split).glob("*.png")):
            pixels, marks = _pair(path, Path(root) / f"{split}annot" / path.name, scale)
            Image.fromarray(pixels).save(Path(target) / split / path.name, optimize=True)
            Image.fromarray(marks).save(Path(target) / f"{split}annot" / path.name, optimize=True)
            yield path


if __name__ == "__main__":
    print(sum(1 for _ in small_copy(*sys.argv[1:3])), "images")
