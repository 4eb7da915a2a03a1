"""A folder of pictures: `CLASS/*.png`, below `train/` and `test/` or not, or pictures without classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from avuc.core.errors import InputError
from avuc.data.arrays import UNLABELLED, Dataset
from avuc.data.decode import AsIs, EvalView, ImageFiles, class_folders, pictures, scan
from avuc.data.files import existing_path, folder_listing
from avuc.data.stream import in_memory

SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("test", "val", "validation"),
    "val": ("val", "validation"),
}


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
    """Decode a folder of pictures into memory.

    Args:
        root: the folder.
        split: see `list_folder`.
        size: scale the shorter side to this and take the central square; default: all pictures must have one size.
        grey: decode to one channel; default False, three channels.
        workers: number of processes that decode; default 0, this process.
        decoder: `"auto"` (default), `"pillow"` or `"torchvision"`.
        max_gb: more than this many gigabytes of pixels are refused; default 32.
        download: no effect; there is nothing to download.
        verify: compare pictures with `SHA256SUMS` in their folder, if there is one.
    """
    files = list_folder(root, split)
    mode = "L" if grey else "RGB"
    view = AsIs(mode) if size is None else EvalView(size, size, mode)
    return in_memory(files, view, workers=workers, decoder=decoder, max_gb=max_gb, verify=verify)


def list_folder(root: str | Path | None, split: str = "all") -> ImageFiles:
    """List the pictures of a folder without decoding them; `Stream` reads them.

    The folder has one folder per class; labels follow their sorted names, of all splits those in `train`. Without class
    folders, every label is `UNLABELLED`. Hidden files and folders are left out.

    Args:
        root: the folder.
        split: `"all"` (default), or `"train"`, `"test"` or `"val"` for a folder of that name in `root`. `training`,
            `val` and `validation` are recognised too.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("cat", "dog"):
    ...         Path(root, name).mkdir()
    ...         _ = Path(root, name, "1.png").write_bytes(b"")
    ...     files = list_folder(root)
    >>> files.class_names, files.labels.tolist()
    (('cat', 'dog'), [0, 1])
    """
    if root is None:
        raise InputError("folder: name it: load_dataset('folder', 'FOLDER')")
    base = existing_path(root)
    if not base.is_dir():
        raise InputError(f"{base}: expected a folder of pictures, found a file; name its folder")
    splits = {split: name for split, names in SPLITS.items() for name in names[::-1] if (base / name).is_dir()}
    if split == "all" and "train" not in splits:
        folder = base
    elif split in splits:
        folder = base / splits[split]
    else:
        raise InputError(
            f"{base}: no split {split!r} ({folder_listing(base)}); expected folders train/ and test/, or split='all' "
            "without them"
        )
    present = class_folders(folder)
    if split == "all":
        _check_not_splits(base, present)
    trained = _trained_classes(base, splits, split, present)
    names, labels, classes = scan(folder, trained)
    if not present:
        classes = ()
        names = np.array(pictures(folder), dtype=np.bytes_)
        labels = torch.full((len(names),), UNLABELLED)
    if not len(names):
        raise InputError(f"{folder}: no pictures here ({folder_listing(folder)}); expected CLASS/*.png, .jpg, …")
    empty = [name for name in present if not bool((labels == classes.index(name)).any())]
    if empty:
        raise InputError(f"{folder / empty[0]}: no pictures in this class; remove the folder or fill it")
    origin = f"folder {folder}, {len(names)} pictures, {len(classes)} classes"
    name = base.name if split == "all" else f"{base.name}-{split}"
    return ImageFiles(folder, names, labels, len(classes), name, classes, origin)


def _check_not_splits(base: Path, present: list[str]) -> None:
    """Raise if all folders have names of splits: they would be read as classes."""
    known = {name for names in SPLITS.values() for name in names}
    if present and all(name.lower() in known for name in present):
        raise InputError(
            f"{base}: {', '.join(present)} are splits, not classes; name one as split=, with its folder in lower case, "
            "or load the folder of one split"
        )


def _trained_classes(base: Path, splits: dict[str, str], split: str, present: list[str]) -> list[str] | None:
    """Return the classes of the training pictures, which number the labels of the other splits; None: use those here.

    A class without a test picture has no folder in many data sets; numbered anew, the classes after it would be wrong.
    """
    if split in ("all", "train") or "train" not in splits or not present:
        return None
    classes = class_folders(base / splits["train"])
    if classes and (unknown := sorted(set(present) - set(classes))):
        raise InputError(
            f"{base / splits[split]}: folder {unknown[0]!r} is not one of the {len(classes)} classes in "
            f"{splits['train']}/; rename or remove it, or load the folder of this split alone"
        )
    return classes or None
