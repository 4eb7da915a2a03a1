"""ImageNet (ILSVRC 2012) and ImageNet-C (Hendrycks & Dietterich 2019): folders of pictures, one per synset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from avuc.core.errors import InputError
from avuc.data.arrays import Dataset
from avuc.data.decode import EvalView, ImageFiles, scan
from avuc.data.files import cache_dir, existing_path, folder_listing
from avuc.data.obtain import for_split
from avuc.data.stream import in_memory
from avuc.shifts.protocol import checked_severity

SYNSET = re.compile(r"n\d{8}")
COUNTS = {"train": 1_281_167, "val": 50_000}
GROUPS = ("", "blur", "digital", "extra", "noise", "weather")  # the published archives, which may be folders
WHERE_IMAGENET = (
    "ImageNet has no open download: put ILSVRC2012's train/ and val/, one folder for each synset, "
    "from https://image-net.org/download.php into {}"
)
WHERE_IMAGENET_C = (
    "unpack blur.tar, digital.tar, extra.tar, noise.tar, weather.tar from https://zenodo.org/records/2235448 into {}"
)


def list_imagenet(
    root: str | Path | None = None, split: str = "train", *, classes: Sequence[str] | None = None, verify: bool = True
) -> ImageFiles:
    """List the pictures of ImageNet without decoding them; `Stream` reads them.

    The label of a picture is the position of its synset in sorted order, as in published networks.

    Args:
        root: folder with `train/` and `val/`, each with one folder per synset; default: `imagenet` in the cache.
        split: `"train"` (default), or `"val"`, which `"test"` means too.
        classes: all synsets in the order of their labels; default: the folders that are there, sorted.
        verify: require all 1,000 synsets and all pictures; use False, with `classes`, for a part of ImageNet.

    >>> files = list_imagenet("ILSVRC2012", "val")  # doctest: +SKIP
    >>> len(files), files.num_classes  # doctest: +SKIP
    (50000, 1000)
    """
    part = for_split({"train": "train", "test": "val", "val": "val"}, split, "imagenet")
    base = _folder("imagenet", root, WHERE_IMAGENET)
    folder = base / part
    if not folder.is_dir():
        raise InputError(f"{base}: no {part}/ here ({folder_listing(base)}); {WHERE_IMAGENET.format(base)}")
    return _list(folder, f"imagenet-{split}", classes, COUNTS[part] if verify else None)


def list_imagenet_c(
    root: str | Path | None = None,
    *,
    corruption: str,
    severity: int,
    classes: Sequence[str] | None = None,
    verify: bool = True,
) -> ImageFiles:
    """List the 50,000 pictures of ImageNet-C for one corruption and severity; `Stream` reads them.

    Args:
        root: folder with `CORRUPTION/SEVERITY/SYNSET/*.JPEG`, also below `blur/`, `noise/`, …; default: `imagenet-c`
            in the cache.
        corruption: name of the folder, for example `"fog"`.
        severity: 1 to 5.
        classes: all synsets in the order of their labels; default: the folders that are there, sorted.
        verify: require all 1,000 synsets and all pictures.

    >>> files = list_imagenet_c("ImageNet-C", corruption="fog", severity=3)  # doctest: +SKIP
    >>> len(files), files.num_classes  # doctest: +SKIP
    (50000, 1000)
    """
    severity = checked_severity(severity, "imagenet-c")
    base = _folder("imagenet-c", root, WHERE_IMAGENET_C)
    for group in GROUPS:
        folder = base / group / corruption / str(severity)
        if folder.is_dir():
            return _list(folder, f"imagenet-c-{corruption}-{severity}", classes, COUNTS["val"] if verify else None)
    raise InputError(
        f"{base}: no {corruption}/{severity}/ here ({folder_listing(base)}); {WHERE_IMAGENET_C.format(base)}"
    )


def load_imagenet(
    root: str | Path | None = None,
    split: str = "test",
    *,
    size: int = 224,
    limit: int | None = None,
    classes: Sequence[str] | None = None,
    workers: int = 0,
    decoder: str = "auto",
    max_gb: float = 32.0,
    download: bool | None = None,
    verify: bool = True,
) -> Dataset:
    """Load the evaluation views of ImageNet: the shorter side scaled to 256, then the central 224×224 pixels.

    Args:
        root: see `list_imagenet`.
        split: `"test"` (default, the same as `"val"`) or `"train"`.
        size: side of the views; default 224. The shorter side is scaled to size·256/224.
        limit: number of pictures, evenly spaced; default: all, which are 7.5 GB.
        classes: see `list_imagenet`.
        workers: number of processes that decode; default 0, this process.
        decoder: `"auto"` (default), `"pillow"` or `"torchvision"`.
        max_gb: more than this many gigabytes of pixels are refused; default 32.
        download: no effect; ImageNet cannot be downloaded without an account.
        verify: see `list_imagenet`.
    """
    files = _limited(list_imagenet(root, split, classes=classes, verify=verify), limit)
    return in_memory(files, EvalView(size), workers=workers, decoder=decoder, max_gb=max_gb, verify=verify)


def load_imagenet_c(
    root: str | Path | None = None,
    split: str = "test",
    *,
    corruption: str,
    severity: int,
    limit: int | None = None,
    classes: Sequence[str] | None = None,
    workers: int = 0,
    decoder: str = "auto",
    max_gb: float = 32.0,
    download: bool | None = None,
    verify: bool = True,
) -> Dataset:
    """Load one corruption of ImageNet-C at one severity. The pictures are published at 224×224 and are not scaled.

    Args:
        root: see `list_imagenet_c`.
        split: `"test"`; there is no other.
        corruption: name of the folder, for example `"fog"`.
        severity: 1 to 5.
        limit: number of pictures, evenly spaced; default: all.
        classes: see `list_imagenet`.
        workers, decoder, max_gb, download, verify: see `load_imagenet`.
    """
    for_split({"test": True}, split, "imagenet-c")
    files = list_imagenet_c(root, corruption=corruption, severity=severity, classes=classes, verify=verify)
    return in_memory(
        _limited(files, limit), EvalView(224, 224), workers=workers, decoder=decoder, max_gb=max_gb, verify=verify
    )


def _folder(name: str, root: str | Path | None, where: str) -> Path:
    if root is not None:
        return existing_path(root)
    if not (base := cache_dir() / name).is_dir():
        raise InputError(f"{name}: {where.format(base)}")
    return base


def _list(folder: Path, name: str, classes: Sequence[str] | None, count: int | None) -> ImageFiles:
    names, labels, synsets = scan(folder, classes)
    wrong = next((synset for synset in synsets if not SYNSET.fullmatch(synset)), None)
    if wrong is not None or not synsets:
        raise InputError(
            f"{folder}: expected one folder for each synset (n01440764, …), found {wrong or folder_listing(folder)}; "
            "name the folder above them"
        )
    if count is not None and (len(synsets) != 1000 or len(names) != count):
        fewest = int(torch.bincount(labels, minlength=len(synsets)).argmin())
        raise InputError(
            f"{folder}: {len(synsets)} synsets with {len(names):,} pictures (fewest in {synsets[fewest]}), "
            f"expected 1000 with {count:,}; complete it, or pass verify=False to use a part"
        )
    if not len(names):
        raise InputError(f"{folder}: no pictures here; expected SYNSET/*.JPEG; unpack them")
    state = "complete" if count is not None else "not checked"
    return ImageFiles(folder, names, labels, len(synsets), name, synsets, f"{folder}, {len(names)} pictures, {state}")


def _limited(files: ImageFiles, limit: int | None) -> ImageFiles:
    """Take `limit` evenly spaced files. They are sorted by class, so every class keeps its share."""
    if limit is None or limit >= len(files):
        return files
    if limit < 1:
        raise InputError(f"limit must be at least 1, found {limit}; leave it out for all pictures")
    return files.subset((torch.arange(limit) * len(files)).div(limit, rounding_mode="floor"))
