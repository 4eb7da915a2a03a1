"""Read the released files of CIFAR-10-C, CIFAR-100-C and sets of the same layout.

A folder holds one .npy file per corruption and labels.npy. Each file has the same N images, in the same order, at
severities 1 to 5, one severity after the other. Files are memory-mapped: only the pages that are used are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.core.npy import map_array
from avuc.shifts.protocol import SEVERITIES, checked_severity

LABELS_FILE = "labels.npy"


class Archive:
    """The files of CIFAR-10-C, CIFAR-100-C or a set of the same layout, in one folder.

    Every file is checked when the archive is opened: images are uint8 (5·N, H, W, C) with C = 1 or 3, labels are
    integers (5·N,). Source: Hendrycks & Dietterich 2019, https://zenodo.org/records/2535967.

    Attributes:
        folder: where the files are.
        size: N, the number of images per severity.

    Args:
        folder: the unpacked archive, with `labels.npy` and at least one of `fog.npy`, `snow.npy`, ….

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/fog.npy", np.zeros((10, 32, 32, 3), np.uint8))
    ...     np.save(f"{folder}/labels.npy", np.tile([3, 8], 5))
    ...     archive = Archive(folder)
    ...     archive.names, archive.images("fog", 3).shape, archive.labels(3).tolist()
    (('fog',), (2, 32, 32, 3), [3, 8])
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder: Path = Path(folder)
        if not self.folder.is_dir():
            raise InputError(f"{self.folder}: not a folder; expected the unpacked archive with {LABELS_FILE} in it")
        self._labels = map_labels(self.folder / LABELS_FILE)
        self.size: int = len(self._labels) // len(SEVERITIES)
        self._images = {
            path.stem: map_images(path, len(self._labels))
            for path in sorted(self.folder.glob("*.npy"))
            if path.name != LABELS_FILE
        }
        if not self._images:
            raise InputError(
                f"{self.folder}: {LABELS_FILE} is here but no corruption files (fog.npy, …); unpack them too"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The corruptions in the folder, by file name."""
        return tuple(self._images)

    def images(self, name: str, severity: int) -> NDArray[np.uint8]:
        """Return the images (N, H, W, C) uint8 of one corruption at one severity; changes to them stay in memory."""
        if name not in self._images:
            raise InputError(
                f"{self.folder}: no {name}.npy here; found {', '.join(self.names)}; unpack it or choose one of these"
            )
        return at_severity(self._images[name], severity)

    def labels(self, severity: int) -> NDArray[np.int64]:
        """Return the labels (N,) int64, which are the same for every corruption."""
        return at_severity(self._labels, severity).astype(np.int64)


def map_labels(path: Path) -> NDArray[Any]:
    """Map the labels of all severities, integers (5·N,)."""
    labels = _map_file(path)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"{path}: expected one row of whole numbers, found {_description(labels)}; unpack it again")
    if len(labels) == 0 or len(labels) % len(SEVERITIES):
        raise InputError(f"{path}: expected 5 × N labels, N per severity, found {len(labels)}; unpack it again")
    return labels


def map_images(path: Path, count: int) -> NDArray[np.uint8]:
    """Map the images of one corruption at all severities, uint8 (count, H, W, C); `count` is the number of labels."""
    images = _map_file(path)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise InputError(f"{path}: expected uint8 images (N, H, W, C), found {_description(images)}; unpack it again")
    if len(images) != count:
        raise InputError(f"{path}: expected {count} images, one per label, found {len(images)}; unpack it again")
    return images


def at_severity(stacked: NDArray[Any], severity: int) -> NDArray[Any]:
    """Return the part of an array (5·N, …) that belongs to one severity."""
    number, count = checked_severity(severity), len(stacked) // len(SEVERITIES)
    return stacked[(number - 1) * count : number * count]


def _map_file(path: Path) -> NDArray[Any]:
    if not path.exists():
        raise InputError(f"{path}: missing; the released archive has this file, unpack it again")
    return map_array(path)


def _description(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
