"""SVHN, house numbers cropped to single digits (Netzer et al. 2011): MATLAB 5 files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avuc.core.errors import InputError, require
from avuc.data.arrays import Dataset
from avuc.data.files import KnownFile
from avuc.data.obtain import Form, obtain, pick

__all__ = ["load_svhn"]

MAX_GB = 8.0


def _form(name: str, size: int, md5: str) -> Form:
    known = KnownFile(name, size, f"md5:{md5}", (f"http://ufldl.stanford.edu/housenumbers/{name}",))
    return Form(f"SVHN {name}", (known,), ("", "svhn", "SVHN"))


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
    """73,257 training, 26,032 test or 531,131 extra digits, 32×32×3; the paper's out-of-distribution set.

    A file whose arrays take more than `max_gb` gigabytes is refused before they are unpacked.
    """
    require("scipy.io", "study", "reading SVHN")  # before a long download, not after it
    found = obtain("svhn", [pick(SVHN, split, "svhn")], root, download=download, verify=verify)
    images, labels = _read(found.paths[0], max_gb)
    return Dataset(images, labels, 10, f"svhn-{split}", tuple("0123456789"), found.origin)


def _read(path: Path, max_gb: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`X` is (32, 32, 3, N), `y` is (N, 1) with 10 for the digit 0."""
    content = _content(path, max_gb)
    pixels, digits = content.get("X"), content.get("y")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[:3] != (32, 32, 3):
        raise InputError(f"{path}: 'X' must be uint8 (32, 32, 3, N), found {_shape(pixels)}; fetch it again")
    images = pixels.reshape(32, 32, 3, -1)  # MATLAB drops the last axis where it is 1
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
        held = [(math.prod(shape), kind) for name, shape, kind in scipy_io.whosmat(path) if name in ("X", "y")]
        total = sum(count if kind == "uint8" else 8 * count for count, kind in held)
        if total > max_gb * 1e9:
            raise InputError(
                f"{path}: X and y unpack to {total / 1e9:.1f} GB, more than max_gb={max_gb:g}; "
                "fetch it again, or raise max_gb"
            )
        content: dict[str, Any] = scipy_io.loadmat(path, variable_names=["X", "y"])
    except InputError:
        raise
    except Exception as error:  # on damaged bytes SciPy raises whatever its parser happened to meet
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"{path}: not a whole MATLAB 5 file ({reason}); fetch it again") from error
    return content


def _shape(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else "nothing"
