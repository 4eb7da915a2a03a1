"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), in the official Python and binary forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.data.arrays import Dataset
from avuc.data.files import KnownFile, read_whole
from avuc.data.obtain import PublishedForm, for_split, obtain
from avuc.data.pickles import load_plain


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CIFAR10_CLASSES = _words("airplane automobile bird cat deer dog frog horse ship truck")
CIFAR100_CLASSES = _words(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm"""
)
CIFAR100_COARSE = _words(
    """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2"""
)
SIDE, PIXELS = 32, 3 * 32 * 32


def _archive(name: str, size: int, md5: str) -> KnownFile:
    # the first address is the published one; it redirects to the second since the site moved
    hosts = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
    return KnownFile(name, size, f"md5:{md5}", tuple(host + name for host in hosts))


def _forms(
    archive: KnownFile, inside: str, title: str, train: tuple[KnownFile, ...], test: KnownFile
) -> dict[str, PublishedForm]:
    both = PublishedForm(title, train, (inside, ""), archive, (*train, test), inside)
    return {"train": both, "test": replace(both, files=(test,))}


CIFAR10 = [
    _forms(
        _archive("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),
        "cifar-10-batches-py",
        "CIFAR-10 python form",
        (
            KnownFile("data_batch_1", 31_035_704, "md5:c99cafc152244af753f735de768cd75f"),
            KnownFile("data_batch_2", 31_035_320, "md5:d4bba439e000b95fd0a9bffe97cbabec"),
            KnownFile("data_batch_3", 31_035_999, "md5:54ebc095f3ab1f0389bbae665268c751"),
            KnownFile("data_batch_4", 31_035_696, "md5:634d18415352ddfa80567beed471001a"),
            KnownFile("data_batch_5", 31_035_623, "md5:482c414d41f54cd18b22e5b47cb7c3cb"),
        ),
        KnownFile("test_batch", 31_035_526, "md5:40351d587109b95175f43aff81a1287e"),
    ),
    _forms(
        _archive("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
        "cifar-10-batches-bin",
        "CIFAR-10 binary form",
        (
            KnownFile("data_batch_1.bin", 30_730_000, "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
            KnownFile("data_batch_2.bin", 30_730_000, "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
            KnownFile("data_batch_3.bin", 30_730_000, "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
            KnownFile("data_batch_4.bin", 30_730_000, "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e"),
            KnownFile("data_batch_5.bin", 30_730_000, "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628"),
        ),
        KnownFile("test_batch.bin", 30_730_000, "sha1:67eb016db431130d61cd03c7ad570b013799c88c"),
    ),
]
CIFAR100 = [
    _forms(
        _archive("cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),
        "cifar-100-python",
        "CIFAR-100 python form",
        (KnownFile("train", 155_249_918, "md5:16019d7e3df5f24257cddd939b257f8d"),),
        KnownFile("test", 31_049_908, "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"),
    ),
    _forms(
        _archive("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
        "cifar-100-binary",
        "CIFAR-100 binary form",
        (KnownFile("train.bin", 153_700_000, "sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e"),),
        KnownFile("test.bin", 30_740_000, "sha1:8fb6623e830365ff53cf14adec797474f5478006"),
    ),
]


def load_cifar10(
    root: str | Path | None = None, split: str = "train", *, download: bool | None = None, verify: bool = True
) -> Dataset:
    """Load CIFAR-10: 50,000 training or 10,000 test images, 32×32×3, ten classes.

    Args:
        root: folder with the data set; default: the cache.
        split: `"train"` (default) or `"test"`.
        download: whether missing files are downloaded; default: only without `root`.
        verify: compare the files with the published digests.
    """
    obtained = obtain(
        "cifar10", [for_split(form, split, "cifar10") for form in CIFAR10], root, download=download, verify=verify
    )
    parts = [_read(path, label_bytes=1, label_column=0, key="labels") for path in obtained.paths]
    return _dataset(f"cifar10-{split}", parts, CIFAR10_CLASSES, obtained.origin)


def load_cifar100(
    root: str | Path | None = None,
    split: str = "train",
    *,
    download: bool | None = None,
    verify: bool = True,
    coarse: bool = False,
) -> Dataset:
    """Load CIFAR-100: 50,000 training or 10,000 test images, 32×32×3, 100 classes.

    Args:
        root: folder with the data set; default: the cache.
        split: `"train"` (default) or `"test"`.
        download: whether missing files are downloaded; default: only without `root`.
        verify: compare the files with the published digests.
        coarse: use the 20 superclasses; default False.
    """
    obtained = obtain(
        "cifar100", [for_split(form, split, "cifar100") for form in CIFAR100], root, download=download, verify=verify
    )
    column, key = (0, "coarse_labels") if coarse else (1, "fine_labels")
    parts = [_read(path, label_bytes=2, label_column=column, key=key) for path in obtained.paths]
    return _dataset(f"cifar100-{split}", parts, CIFAR100_COARSE if coarse else CIFAR100_CLASSES, obtained.origin)


def _dataset(
    name: str, parts: list[tuple[NDArray[np.uint8], NDArray[np.int64]]], classes: tuple[str, ...], origin: str
) -> Dataset:
    planes = torch.from_numpy(np.concatenate([pixels for pixels, _ in parts]))
    images = planes.view(-1, 3, SIDE, SIDE).permute(0, 2, 3, 1).contiguous()
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts]))
    return Dataset(images, labels, len(classes), name, classes, origin)


def _read(path: Path, *, label_bytes: int, label_column: int, key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read one file: pixels (N, 3072) uint8, all red values first, then green and blue, and labels (N,).

    Args:
        path: a binary file (`.bin`) or a pickle.
        label_bytes: number of labels in front of each image of a binary file.
        label_column: which of them is read.
        key: name of the labels in a pickle.
    """
    data = read_whole(path)
    if path.suffix == ".bin":
        record = label_bytes + PIXELS
        if not data or len(data) % record:
            raise InputError(f"{path}: {len(data):,} bytes are not whole records of {record:,}; fetch it again")
        rows = np.frombuffer(data, np.uint8).reshape(-1, record)
        return rows[:, label_bytes:], rows[:, label_column].astype(np.int64)
    batch = load_plain(data, str(path))
    pixels, labels = _entry(batch, "data"), _entry(batch, key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise InputError(f"{path}: 'data' must be uint8 (N, {PIXELS}), as in the published files; fetch it again")
    if not isinstance(labels, list | np.ndarray) or len(labels) != len(pixels):
        raise InputError(f"{path}: {key!r} must list one label for each of the {len(pixels)} images; fetch it again")
    if isinstance(labels, list) and any(type(label) is not int for label in labels):
        raise InputError(f"{path}: {key!r} must be integers; fetch it again")
    values = np.asarray(labels)
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise InputError(f"{path}: {key!r} must be integers; fetch it again")
    return pixels, values.astype(np.int64)


def _entry(batch: Any, key: str) -> Any:
    """Return an entry of a pickled batch, or None. Keys are bytes in files written by Python 2."""
    if isinstance(batch, dict):
        return batch.get(key.encode(), batch.get(key))
    return None
