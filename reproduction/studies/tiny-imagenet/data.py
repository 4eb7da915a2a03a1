"""Tiny-ImageNet: 100,000 training and 10,000 test images of 200 classes, 64×64; two out-of-distribution sets.

The folder has the usual layout, which is decoded once and kept as .npy files:

    ROOT/tiny-imagenet-200/train/WNID/images/*.JPEG          500 of each class
    ROOT/tiny-imagenet-200/val/images, val_annotations.txt   the test images: never used for a choice
    ROOT/samples/WNID_name.JPEG                              one image of each of the 1,000 classes; 800 are outside
    ROOT/dtd10.npy                                           textures, uint8 (N, 32, 32, 3)

The images of `tiny-imagenet-200/test` have no labels and are not read.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

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
        cache: where the decoded images are kept; default: `root`.
        per_class: use the first so many training images of each class, in the order of their names; 0: all.
    """
    if split not in PARTS:
        raise ValueError(f"split {split!r}: expected one of {', '.join(PARTS)}")
    folder = Path(root) / NAME
    names = _classes(folder)
    kept = Path(cache or root)
    part = f"{split}-{per_class}" if per_class and split == "train" else split
    paths = [kept / f"{NAME}-{part}-{kind}.npy" for kind in ("images", "labels")]
    if not all(path.is_file() for path in paths):
        files, labels = _training(folder, names, per_class) if split == "train" else _testing(folder, names)
        kept.mkdir(parents=True, exist_ok=True)
        _save(paths[0], _decoded(files))
        _save(paths[1], np.array(labels))
    images, labels = (torch.from_numpy(np.load(path)) for path in paths)
    return Dataset(images, labels, len(names), f"Tiny-ImageNet {split}", tuple(names))


def others(split: str, root: str, cache: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of the 800 ImageNet classes that Tiny-ImageNet does not have: the middle square, 64×64."""
    path = Path(cache or root) / "samples-others.npy"
    if not path.is_file():
        inside = set(_classes(Path(root) / NAME))
        files = sorted((Path(root) / "samples").glob("n*.JPEG"))
        outside = [file for file in files if file.name.split("_")[0] not in inside]
        if not outside:
            raise ValueError(f"{Path(root) / 'samples'}: no files WNID_name.JPEG")
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(path, _decoded(outside))
    images = torch.from_numpy(np.load(path))
    return images, torch.zeros(len(images), dtype=torch.int64)


def textures(split: str, root: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the textures, scaled up to 64×64."""
    images = torch.from_numpy(np.load(Path(root) / "dtd10.npy"))
    scaled = F.interpolate(images.permute(0, 3, 1, 2).float(), size=(SIDE, SIDE), mode="bicubic")
    pixels = scaled.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return pixels, torch.zeros(len(pixels), dtype=torch.int64)


def _classes(folder: Path) -> list[str]:
    names = sorted((folder / "wnids.txt").read_text().split())
    wnids, places = imagenet_classes()
    expected = [wnids[place] for place in places]
    if len(names) == len(expected) and names != expected:
        raise ValueError(f"{folder / 'wnids.txt'}: not the 200 classes of Tiny-ImageNet")
    return names


def _training(folder: Path, names: list[str], per_class: int) -> tuple[list[Path], list[int]]:
    wanted = per_class or (PER_CLASS if len(names) == CLASSES else 0)
    files = []
    for name in names:
        place = folder / "train" / name / "images"
        found = sorted(place.glob("*.JPEG"))
        if len(found) < max(1, wanted):
            raise ValueError(f"{place}: {len(found)} files *.JPEG, expected {wanted or 'some'}; unpack the data again")
        files.append(found[: per_class or None])
    labels = [label for label, found in enumerate(files) for _ in found]
    return [file for found in files for file in found], labels


def _testing(folder: Path, names: list[str]) -> tuple[list[Path], list[int]]:
    path = folder / "val" / "val_annotations.txt"
    rows = [line.split("\t")[:2] for line in path.read_text().splitlines()]
    if not rows or (len(names) == CLASSES and len(rows) != TEST_IMAGES):
        raise ValueError(f"{path}: {len(rows)} images, expected {TEST_IMAGES:,}; unpack the data again")
    return [folder / "val" / "images" / name for name, _ in rows], [names.index(wnid) for _, wnid in rows]


def _decoded(files: list[Path]) -> np.ndarray:
    images = np.empty((len(files), SIDE, SIDE, 3), np.uint8)

    def decode(row: int) -> None:
        with Image.open(files[row]) as opened:
            image = opened.convert("RGB")  # some files are grey
        if image.size != (SIDE, SIDE):
            edge = min(image.size)
            left, top = (image.width - edge) // 2, (image.height - edge) // 2
            middle = image.crop((left, top, left + edge, top + edge))
            image = middle.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        images[row] = np.asarray(image)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(decode, range(len(files)), chunksize=256):
            pass
    return images


def _save(path: Path, values: np.ndarray) -> None:
    """Write the file under another name first, so that an interrupted run leaves no half file."""
    part = path.with_name(f"{path.stem}-part.npy")
    np.save(part, values)
    part.replace(path)
