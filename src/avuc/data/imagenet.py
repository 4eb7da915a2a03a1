"""ImageNet (ILSVRC 2012) and ImageNet-C (Hendrycks & Dietterich 2019) as folders of one folder for each synset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from avuc.core.errors import InputError
from avuc.data.arrays import Dataset
from avuc.data.decode import EvalView, ImageFiles, scan
from avuc.data.files import as_path, cache_dir, listing
from avuc.data.obtain import pick
from avuc.data.stream import in_memory

__all__ = ["list_imagenet", "list_imagenet_c", "load_imagenet", "load_imagenet_c"]

SYNSET = re.compile(r"n\d{8}")
COUNTS = {"train": 1_281_167, "val": 50_000}
GROUPS = ("", "blur", "digital", "extra", "noise", "weather")  # the published archives; some keep them as folders
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
    """The pictures of `train/` or `val/` (split `test`), not decoded; read them with `Stream`.

    Labels are the place of the synset in sorted order, as every published network has it. With `verify` all 1,000
    synsets and all pictures must be there; `verify=False` with `classes` (all synsets in order) serves a part.
    """
    part = pick({"train": "train", "test": "val", "val": "val"}, split, "imagenet")
    base = _base("imagenet", root, WHERE_IMAGENET)
    folder = base / part
    if not folder.is_dir():
        raise InputError(f"{base}: no {part}/ here ({listing(base)}); {WHERE_IMAGENET.format(base)}")
    return _list(folder, f"imagenet-{split}", classes, COUNTS[part] if verify else None)


def list_imagenet_c(
    root: str | Path | None = None,
    *,
    corruption: str,
    severity: int,
    classes: Sequence[str] | None = None,
    verify: bool = True,
) -> ImageFiles:
    """The 50,000 pictures of one corruption at one severity: `CORRUPTION/SEVERITY/SYNSET/*.JPEG`."""
    if severity not in range(1, 6):
        raise InputError(f"imagenet-c: severity must be 1…5, found {severity}")
    base = _base("imagenet-c", root, WHERE_IMAGENET_C)
    for group in GROUPS:
        folder = base / group / corruption / str(severity)
        if folder.is_dir():
            return _list(folder, f"imagenet-c-{corruption}-{severity}", classes, COUNTS["val"] if verify else None)
    raise InputError(f"{base}: no {corruption}/{severity}/ here ({listing(base)}); {WHERE_IMAGENET_C.format(base)}")


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
    """The evaluation view (scaled to 256, centre 224) in memory: 7.5 GB for all, or `limit` evenly spaced ones."""
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
    """One corruption at one severity in memory; the pictures are published at 224×224 and taken as they are."""
    pick({"test": True}, split, "imagenet-c")
    listed = list_imagenet_c(root, corruption=corruption, severity=severity, classes=classes, verify=verify)
    return in_memory(
        _limited(listed, limit), EvalView(224, 224), workers=workers, decoder=decoder, max_gb=max_gb, verify=verify
    )


def _base(name: str, root: str | Path | None, where: str) -> Path:
    if root is not None:
        return as_path(root)
    if not (base := cache_dir() / name).is_dir():
        raise InputError(f"{name}: {where.format(base)}")
    return base


def _list(folder: Path, name: str, classes: Sequence[str] | None, count: int | None) -> ImageFiles:
    names, labels, order = scan(folder, classes)
    wrong = next((synset for synset in order if not SYNSET.fullmatch(synset)), None)
    if wrong is not None or not order:
        raise InputError(
            f"{folder}: expected one folder for each synset (n01440764, …), found {wrong or listing(folder)}"
        )
    if count is not None and (len(order) != 1000 or len(names) != count):
        fewest = int(torch.bincount(labels, minlength=len(order)).argmin())
        raise InputError(
            f"{folder}: {len(order)} synsets with {len(names):,} pictures (fewest in {order[fewest]}), expected 1000 "
            f"with {count:,}; complete it, or pass verify=False to use a part"
        )
    if not len(names):
        raise InputError(f"{folder}: no pictures here; expected SYNSET/*.JPEG")
    state = "complete" if count is not None else "not checked"
    return ImageFiles(folder, names, labels, len(order), name, order, f"{folder}, {len(names)} pictures, {state}")


def _limited(files: ImageFiles, limit: int | None) -> ImageFiles:
    """Evenly spaced, so that every class keeps its share (the files are sorted by class)."""
    if limit is None or limit >= len(files):
        return files
    if limit < 1:
        raise InputError(f"limit must be at least 1, found {limit}")
    return files.subset((torch.arange(limit) * len(files)).div(limit, rounding_mode="floor"))
