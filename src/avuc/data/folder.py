"""A user's own folder of pictures: `CLASS/*.png`, with or without `train/` and `test/` above, or without classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from avuc.core.errors import InputError
from avuc.data.arrays import UNLABELLED, Dataset
from avuc.data.decode import AsIs, EvalView, ImageFiles, pictures, scan
from avuc.data.files import as_path, listing
from avuc.data.stream import in_memory

__all__ = ["list_folder", "load_folder"]

SPLITS = {"train": ("train", "training"), "test": ("test", "val", "validation"), "val": ("val", "validation")}


def load_folder(
    root: str | Path | None = None,
    split: str = "all",
    *,
    size: int | None = None,
    grey: bool = False,
    workers: int = 0,
    decoder: str = "auto",
    max_gb: float = 32.0,
    download: bool | None = None,
    verify: bool = True,
) -> Dataset:
    """Decode a folder into memory. `size`: the shorter side is scaled to it and the centre square taken; without it
    all pictures must have one size. A `SHA256SUMS` beside pictures is checked."""
    files = list_folder(root, split)
    mode = "L" if grey else "RGB"
    view = AsIs(mode) if size is None else EvalView(size, size, mode)
    return in_memory(files, view, workers=workers, decoder=decoder, max_gb=max_gb, verify=verify)


def list_folder(root: str | Path | None, split: str = "all") -> ImageFiles:
    """The pictures of a folder, not decoded; read them with `Stream`."""
    if root is None:
        raise InputError("folder: name it: load_dataset('folder', 'FOLDER')")
    base = as_path(root)
    if not base.is_dir():
        raise InputError(f"{base}: expected a folder of pictures")
    told = {name: place for name, names in SPLITS.items() for place in names[::-1] if (base / place).is_dir()}
    if split == "all" and "train" not in told:
        place = base
    elif split in told:
        place = base / told[split]
    else:
        raise InputError(
            f"{base}: no split {split!r} ({listing(base)}); expected folders train/ and test/, or split='all' where "
            "there are none"
        )
    names, labels, classes = scan(place)
    if not classes:  # no class folders: pictures whose class is not known
        names = np.array(pictures(place), dtype=np.bytes_)
        labels = torch.full((len(names),), UNLABELLED)
    if not len(names):
        raise InputError(f"{place}: no pictures here ({listing(place)}); expected CLASS/*.png, .jpg, …")
    empty = [name for label, name in enumerate(classes) if not bool((labels == label).any())]
    if empty:
        raise InputError(f"{place / empty[0]}: no pictures in this class; remove the folder or fill it")
    origin = f"folder {place}, {len(names)} pictures, {len(classes)} classes"
    name = base.name if split == "all" else f"{base.name}-{split}"
    return ImageFiles(place, names, labels, len(classes), name, classes, origin)
