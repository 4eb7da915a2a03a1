"""Every source by name."""

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

__all__ = ["DATASETS", "load_dataset"]

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


def load_dataset(
    name: str, root: str | Path | None = None, split: str | None = None, *, download: bool | None = None, **options: Any
) -> Dataset:
    """A data set in memory, by the name of its source, or by the path of a user's `.npz`, `.npy` or folder.

    With `root` the set is looked for there; without, in the cache (`AVUC_DATA`, or the user's cache folder), and it is
    downloaded where it has an open address and `download` is not False. `split` is `train` or `test` (`all` for files
    that do not tell). `verify=False` reads files that are not the published ones; other options are the source's own
    (`corruption`, `severity`, `coarse`, `size`, `limit`, …).

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
    known = {key: value for key, value in inspect.signature(load).parameters.items() if key not in ("root", "download")}
    for key in options:
        if key not in known:
            raise InputError(f"{name}: no option {key!r}; there are {', '.join(known)}")
    for key, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and key not in options:
            raise InputError(f"{name}: needs the option {key!r}")
    return load(root, download=download, **options)
