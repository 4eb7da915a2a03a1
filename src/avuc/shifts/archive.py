"""Released corruption sets: CIFAR-10-C and its like, one .npy file a corruption and labels.npy.

Each file stacks severities 1 … 5, the same images in the same order. Files are memory-mapped: a severity costs the
pages that are read, not the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.core.files import check_regular

__all__ = ["Archive"]

_SEVERITIES = 5


class Archive:
    """A folder of released files, checked when opened.

    `Archive(folder).images("fog", 3)` is a uint8 NHWC array (memory-mapped, private to the process);
    `Archive(folder).labels(3)` are its int64 labels.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise InputError(f"{self.folder}: not a folder; expected the unpacked archive with labels.npy in it")
        stacked = _opened(self.folder / "labels.npy")
        if stacked.ndim != 1 or stacked.dtype.kind not in "iu":
            raise InputError(
                f"{self.folder / 'labels.npy'}: expected one row of whole numbers, found {_found(stacked)}"
            )
        if len(stacked) == 0 or len(stacked) % _SEVERITIES:
            raise InputError(
                f"{self.folder / 'labels.npy'}: expected 5 × N labels, one set a severity, found {len(stacked)}"
            )
        self._labels = stacked
        self.size = len(stacked) // _SEVERITIES
        self._images = {
            path.stem: self._checked(path) for path in sorted(self.folder.glob("*.npy")) if path.stem != "labels"
        }
        if not self._images:
            raise InputError(f"{self.folder}: labels.npy is here but no corruption files (fog.npy, …); unpack them too")

    @property
    def names(self) -> tuple[str, ...]:
        """The corruptions the folder holds, by file name."""
        return tuple(self._images)

    def images(self, name: str, severity: int) -> NDArray[np.uint8]:
        """(N, H, W, C) uint8, straight from the file."""
        if name not in self._images:
            raise InputError(f"{self.folder}: no {name}.npy here; found {', '.join(self.names)}")
        return self._images[name][self._rows(severity)]

    def labels(self, severity: int) -> NDArray[np.int64]:
        """(N,) int64; the same for every corruption."""
        return np.asarray(self._labels[self._rows(severity)], dtype=np.int64)

    def _rows(self, severity: int) -> slice:
        if severity not in range(1, _SEVERITIES + 1):
            raise InputError(f"severity: expected a whole number 1 … 5, found {severity!r}")
        return slice((severity - 1) * self.size, severity * self.size)

    def _checked(self, path: Path) -> NDArray[np.uint8]:
        array = _opened(path)
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] not in (1, 3):
            raise InputError(f"{path}: expected uint8 images (N, H, W, C), found {_found(array)}")
        if len(array) != len(self._labels):
            raise InputError(f"{path}: expected {len(self._labels)} images, one a label, found {len(array)}")
        return array


def _opened(path: Path) -> NDArray[np.uint8]:
    try:
        # copy-on-write: nothing reaches the file, yet torch.from_numpy accepts the array without a warning
        if path.exists():
            check_regular(path)
        array: NDArray[np.uint8] = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; the released archive has this file, unpack it again") from error
    except InputError:
        raise
    except (OSError, ValueError, EOFError, OverflowError) as error:
        raise InputError(f"{path}: not a whole .npy file ({error}); download or unpack it again") from error
    return array


def _found(array: NDArray[np.uint8]) -> str:
    return f"{array.dtype} of shape {array.shape}"
