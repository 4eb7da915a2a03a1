"""SVHN, photographs of single digits from house numbers (Netzer et al. 2011): MATLAB 5 files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avuc.core.errors import InputError, require
from avuc.data.arrays import Dataset
from avuc.data.files import KnownFile
from avuc.data.obtain import PublishedForm, for_split, obtain

MAX_GB = 8.0


def _form(name: str, size: int, md5: str) -> PublishedForm:
    known = KnownFile(name, size, f"md5:{md5}", (f"http://ufldl.stanford.edu/housenumbers/{name}",))
    return PublishedForm(f"SVHN {name}", (known,), ("", "svhn", "SVHN"))


SVHN = {
    "train": _form("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
    "test": _form("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
    "extra": _form("extra_32x32.mat", 1_329_278_602, "a93ce644f1a588dc4d68dda5feec44a7"),
}


def load_svhn(
    root: str | Path | None = None,
    split: str = "train",
    *,
    max_gb: float = MAX_GB,
    download: bool | None = None,
    verify: bool = True,
) -> Dataset:
    """Load SVHN: 73,257 training, 26,032 test or 531,131 extra digits, 32×32×3.

    The AvUC paper uses it as out-of-distribution data for CIFAR-10.

    Args:
        root: folder with the data set; default: the cache.
        split: `"train"` (default), `"test"` or `"extra"`.
        max_gb: a file whose arrays are larger than this many gigabytes is refused; default 8.
        download: whether missing files are downloaded; default: only without `root`.
        verify: compare the files with the published digests.
    """
    require("scipy.io", "study", "reading SVHN")  # before a long download, not after it
    obtained = obtain("svhn", [for_split(SVHN, split, "svhn")], root, download=download, verify=verify)
    images, labels = _read(obtained.paths[0], max_gb)
    return Dataset(images, labels, 10, f"svhn-{split}", tuple("0123456789"), obtained.origin)


def _read(path: Path, max_gb: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 32, 32, 3) and labels (N,). The file has X (32, 32, 3, N) and y (N, 1), 10 for digit 0."""
    content = _content(path, max_gb)
    pixels, digits = content.get("X"), content.get("y")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[:3] != (32, 32, 3):
        raise InputError(f"{path}: 'X' must be uint8 (32, 32, 3, N), found {_shape(pixels)}; fetch it again")
    images = pixels.reshape(32, 32, 3, -1)  # MATLAB drops the last axis if its length is 1
    count = images.shape[3]
    if not isinstance(digits, np.ndarray) or digits.dtype.kind not in "iuf" or digits.size != count:
        raise InputError(f"{path}: 'y' must hold {count} labels, found {_shape(digits)}; fetch it again")
    values = digits.reshape(-1)
    if not np.isin(values, np.arange(1, 11)).all():
        raise InputError(f"{path}: 'y' must be 1…10 (10 is the digit 0); fetch it again")
    labels = torch.from_numpy(values.astype(np.int64)).remainder(10)
    return torch.from_numpy(np.ascontiguousarray(images.transpose(3, 0, 1, 2))), labels


def _content(path: Path, max_gb: float) -> dict[str, Any]:
    scipy_io = require("scipy.io", "study", "reading SVHN")
    try:
        sizes = [(math.prod(shape), kind) for name, shape, kind in scipy_io.whosmat(path) if name in ("X", "y")]
        total = sum(count if kind == "uint8" else 8 * count for count, kind in sizes)
        if total > max_gb * 1e9:
            raise InputError(
                f"{path}: X and y unpack to {total / 1e9:.1f} GB, more than max_gb={max_gb:g}; "
                "fetch it again, or raise max_gb"
            )
        content: dict[str, Any] = scipy_io.loadmat(path, variable_names=["X", "y"])
    except InputError:
        raise
    except Exception as error:  # for damaged bytes SciPy's parser raises errors of any class
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"{path}: not a whole MATLAB 5 file ({reason}); fetch it again") from error
    return content


def _shape(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else "nothing"
