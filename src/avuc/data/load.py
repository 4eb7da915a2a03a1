"""Data sets by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError
from avuc.data.arrays import Dataset
from avuc.data.cifar import load_cifar10, load_cifar100
from avuc.data.cifar_c import load_cifar10c, load_cifar100c
from avuc.data.folder import load_folder
from avuc.data.imagenet import load_imagenet, load_imagenet_c
from avuc.data.mnist import load_fashion_mnist, load_mnist
from avuc.data.mnist5k import load_mnist5k
from avuc.data.npz import load_npz
from avuc.data.svhn import load_svhn

DATASETS: dict[str, Callable[..., Dataset]] = {
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "cifar10-c": load_cifar10c,
    "cifar100-c": load_cifar100c,
    "svhn": load_svhn,
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "mnist5k": load_mnist5k,
    "imagenet": load_imagenet,
    "imagenet-c": load_imagenet_c,
    "npz": load_npz,
    "npy": load_npz,
    "folder": load_folder,
}
"""Functions that load a data set, by the name that `load_dataset` takes."""


def load_dataset(
    name: str, root: str | Path | None = None, split: str | None = None, *, download: bool | None = None, **options: Any
) -> Dataset:
    """Load a data set into memory.

    Args:
        name: one of `DATASETS`, or the path of an `.npz` or `.npy` file or of a folder of pictures.
        root: folder or file of the data set. Default: the cache, which is the folder in the environment variable
            `AVUC_DATA`, or `avuc` in the user's cache folder.
        split: `"train"` or `"test"`; `"all"` for files and folders without splits; `"extra"` for SVHN. The default
            depends on the data set.
        download: whether a missing data set is downloaded. Default: only if `root` is not given.
        options: options of this data set, such as `corruption`, `severity`, `coarse`, `size`, `limit` or `max_gb`.
            `verify=False` reads files that differ from the published ones.

    >>> load_dataset("mnist5k", split="test")
    Dataset('mnist5k-test', 1000 images 28×28×1, 10 classes, cpu)
    """
    if name not in DATASETS:
        path = Path(name).expanduser()
        if root is not None or not os.path.lexists(path):
            raise InputError(f"no data set {name!r}: expected a file, a folder, or one of {', '.join(DATASETS)}")
        root, name = path, "folder" if path.is_dir() else "npz"
    if split is not None:
        options["split"] = split
    load = DATASETS[name]
    parameters = inspect.signature(load).parameters
    allowed = {key: value for key, value in parameters.items() if key not in ("root", "download")}
    for key in options:
        if key not in allowed:
            raise InputError(f"{name}: no option {key!r}; there are {', '.join(allowed)}")
    for key, parameter in allowed.items():
        if parameter.default is inspect.Parameter.empty and key not in options:
            raise InputError(f"{name}: needs the option {key!r}; pass {key}=…")
    return load(root, download=download, **options)
