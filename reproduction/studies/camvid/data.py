"""CamVid road scenes (Brostow et al. 2009) as arranged by the SegNet tutorial: 367 / 101 / 233 images with 11 classes.

    python reproduction/run_study.py camvid --data ROOT
    python reproduction/studies/camvid/data.py ROOT TARGET    # writes a copy at half the size

ROOT holds the folders train, val and test with PNG images, and trainannot, valannot and testannot with PNG labels of
the same names. Label 11 is void and is ignored. `load` also reads the copy, and does not resize it again.
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
    """Return images (N, H, W, 3) and a label for each pixel.

    Args:
        split: "train", "val" or "test".
        root: folder of the data.
        scale: the images are 1/`scale` of 360 × 480.
        count: return only the first `count` images; 0: all.
    """
    files = sorted((Path(root) / split).glob("*.png"))
    if len(files) != COUNTS[split]:
        raise InputError(f"{Path(root) / split}: {len(files)} images; CamVid has {COUNTS[split]} there")
    files = files[:count] if count else files
    pairs = [_pair(path, Path(root) / f"{split}annot" / path.name, scale) for path in files]
    images, labels = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
    targets = torch.from_numpy(labels).long()
    targets[targets == VOID] = IGNORE_INDEX
    return TensorData(torch.from_numpy(images), targets, len(CLASSES), f"CamVid {split}", CLASSES)


def _pair(image_path: Path, label_path: Path, scale: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels and labels of one image, at 1/`scale` of the full size."""
    with Image.open(image_path) as picture, Image.open(label_path) as classes:
        pixels, labels = picture.convert("RGB"), np.asarray(classes, np.uint8)
        if labels.shape != (pixels.height, pixels.width):
            raise InputError(f"{label_path}: {labels.shape} labels for an image of {(pixels.height, pixels.width)}")
        size = SIZE[0] // scale, SIZE[1] // scale
        if labels.shape != size:
            if labels.shape != SIZE:
                raise InputError(f"{image_path}: {labels.shape} pixels; expected {SIZE}, or {size} for scale {scale}")
            # each pixel is the mean of scale × scale pixels and has the label of the first of them
            pixels, labels = pixels.reduce(scale), labels[::scale, ::scale]
        return np.asarray(pixels, np.uint8), labels


def small_copy(root: str, target: str, scale: int = 2) -> Iterator[Path]:
    """Write all images and labels at 1/`scale` of their size."""
    for split in COUNTS:
        for name in (split, f"{split}annot"):
            (Path(target) / name).mkdir(parents=True, exist_ok=True)
        for path in sorted((Path(root) / split).glob("*.png")):
            pixels, labels = _pair(path, Path(root) / f"{split}annot" / path.name, scale)
            Image.fromarray(pixels).save(Path(target) / split / path.name, optimize=True)
            Image.fromarray(labels).save(Path(target) / f"{split}annot" / path.name, optimize=True)
            yield path


if __name__ == "__main__":
    print(sum(1 for _ in small_copy(*sys.argv[1:3])), "images")
