"""Tiny-ImageNet: 100,000 training and 10,000 test images of 200 classes, 64×64; two out-of-distribution sets.

    python reproduction/run_study.py tiny-imagenet --data ROOT

ROOT has the usual layout. The images are decoded once and kept as .npy files:

    ROOT/tiny-imagenet-200/train/WNID/images/*.JPEG          500 of each class
    ROOT/tiny-imagenet-200/val/images, val_annotations.txt   the test images; no choice uses them
    ROOT/samples/WNID_name.JPEG                              one image of each of the 1,000 classes; 800 are used
    ROOT/dtd10.npy                                           textures, uint8 (N, 32, 32, 3)

The images of `tiny-imagenet-200/test` have no labels and are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from avuc.core.atomic import atomic_path
from avuc.data import Dataset
from nets import imagenet_classes

SIDE = 64
NAME = "tiny-imagenet-200"
PARTS = ("train", "test")
CLASSES, PER_CLASS, TEST_IMAGES = 200, 500, 10_000


def load(split: str, root: str, cache: str = "", per_class: int = 0) -> Dataset:
    """Return the training or the test images. Classes are the wnids in sorted order, as in the network's outputs.

    Args:
        split: "train", or "test" for the 10,000 images of the folder `val`.
        root: the folder that has `tiny-imagenet-200`.
        cache: folder of the decoded images; default: `root`.
        per_class: number of training images of each class, the first in the order of their names; 0: all.
    """
    if split not in PARTS:
        raise ValueError(f"split {split!r}: expected one of {', '.join(PARTS)}")
    folder = Path(root) / NAME
    names = class_names(folder)
    cache_folder = Path(cache or root)
    part = f"{split}-{per_class}" if per_class and split == "train" else split
    paths = [cache_folder / f"{NAME}-{part}-{kind}.npy" for kind in ("images", "labels")]
    if not all(path.is_file() for path in paths):
        files, labels = training_files(folder, names, per_class) if split == "train" else test_files(folder, names)
        cache_folder.mkdir(parents=True, exist_ok=True)
        save(paths[0], decoded(files))
        save(paths[1], np.array(labels))
    images, labels = (torch.from_numpy(np.load(path)) for path in paths)
    return Dataset(images, labels, len(names), f"Tiny-ImageNet {split}", tuple(names))


def others(split: str, root: str, cache: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of the 800 ImageNet classes that Tiny-ImageNet does not have: the middle square, 64×64."""
    path = Path(cache or root) / "samples-others.npy"
    if not path.is_file():
        inside = set(class_names(Path(root) / NAME))
        files = sorted((Path(root) / "samples").glob("n*.JPEG"))
        outside = [file for file in files if file.name.split("_")[0] not in inside]
        if not outside:
            raise ValueError(f"{Path(root) / 'samples'}: no files WNID_name.JPEG")
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, decoded(outside))
    images = torch.from_numpy(np.load(path))
    return images, torch.zeros(len(images), dtype=torch.int64)


def textures(split: str, root: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the textures, scaled up to 64×64."""
    images = torch.from_numpy(np.load(Path(root) / "dtd10.npy"))
    scaled = F.interpolate(images.permute(0, 3, 1, 2).float(), size=(SIDE, SIDE), mode="bicubic")
    pixels = scaled.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return pixels, torch.zeros(len(pixels), dtype=torch.int64)


def class_names(folder: Path) -> list[str]:
    """Return the wnids of the classes, sorted."""
    names = sorted((folder / "wnids.txt").read_text().split())
    wnids, indices = imagenet_classes()
    expected = [wnids[index] for index in indices]
    if len(names) == len(expected) and names != expected:
        raise ValueError(f"{folder / 'wnids.txt'}: not the 200 classes of Tiny-ImageNet")
    return names


def training_files(folder: Path, names: list[str], per_class: int) -> tuple[list[Path], list[int]]:
    """Return the files and labels of the training images."""
    expected = per_class or (PER_CLASS if len(names) == CLASSES else 0)
    files = []
    for name in names:
        images = folder / "train" / name / "images"
        class_files = sorted(images.glob("*.JPEG"))
        if len(class_files) < max(1, expected):
            raise ValueError(
                f"{images}: {len(class_files)} files *.JPEG, expected {expected or 'some'}; unpack the data again"
            )
        files.append(class_files[: per_class or None])
    labels = [label for label, class_files in enumerate(files) for _ in class_files]
    return [file for class_files in files for file in class_files], labels


def test_files(folder: Path, names: list[str]) -> tuple[list[Path], list[int]]:
    """Return the files and labels of the test images."""
    path = folder / "val" / "val_annotations.txt"
    rows = [line.split("\t")[:2] for line in path.read_text().splitlines()]
    if not rows or (len(names) == CLASSES and len(rows) != TEST_IMAGES):
        raise ValueError(f"{path}: {len(rows)} images, expected {TEST_IMAGES:,}; unpack the data again")
    return [folder / "val" / "images" / name for name, _ in rows], [names.index(wnid) for _, wnid in rows]


def decoded(files: Sequence[Path | BytesIO]) -> np.ndarray:
    """Return the images as uint8 (N, 64, 64, 3); the middle square of an image that has another size."""
    images = np.empty((len(files), SIDE, SIDE, 3), np.uint8)

    def decode(index: int) -> None:
        with Image.open(files[index]) as opened:
            image = opened.convert("RGB")  # some files are grey
        if image.size != (SIDE, SIDE):
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            middle = image.crop((left, top, left + side, top + side))
            image = middle.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        images[index] = np.asarray(image)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(decode, range(len(files)), chunksize=256):
            pass
    return images


def save(path: Path, values: np.ndarray) -> None:
    """Write the file so that an interrupted run leaves no partial one, also if several processes write it."""
    with atomic_path(path) as temporary_path, temporary_path.open("wb") as file:
        np.save(file, values)
