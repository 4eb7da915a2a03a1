"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.core.files import check_regular
from avuc.data.arrays import Dataset
from avuc.data.files import KnownFile
from avuc.data.npz import DEFLATE_RATIO
from avuc.data.obtain import PublishedForm, for_split, obtain

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
# LeCun's own server has refused downloads since 2024; these two have the same files
MNIST_HOSTS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FASHION_HOSTS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MAX_GB = 8.0
PLAIN_SIZES = {"train": (47_040_016, 60_008), "test": (7_840_016, 10_008)}


def _forms(
    title: str,
    hosts: tuple[str, ...],
    packed: dict[str, tuple[tuple[int, str], ...]],
    plain: dict[str, tuple[str, ...]],
) -> dict[str, list[PublishedForm]]:
    """Return the forms of each split: gzipped files, which are downloaded, and plain files."""
    folders = ("", "raw", "MNIST/raw", "FashionMNIST/raw")
    forms = {}
    for split, names in NAMES.items():
        gz = tuple(
            KnownFile(f"{name}.gz", size, f"md5:{md5}", tuple(f"{host}{name}.gz" for host in hosts))
            for name, (size, md5) in zip(names, packed[split], strict=True)
        )
        raw = tuple(
            KnownFile(name, size, f"md5:{md5}")
            for name, size, md5 in zip(names, PLAIN_SIZES[split], plain[split], strict=True)
        )
        forms[split] = [PublishedForm(f"{title} gzipped idx", gz, folders), PublishedForm(f"{title} idx", raw, folders)]
    return forms


MNIST = _forms(
    "MNIST",
    MNIST_HOSTS,
    {
        "train": ((9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"), (28_881, "d53e105ee54ea40749a09fcbcd1e9432")),
        "test": ((1_648_877, "9fb629c4189551a2d022fa330f9573f3"), (4_542, "ec29112dd5afa0611ce80d1b7f02629c")),
    },
    {
        "train": ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
        "test": ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
    },
)
FASHION = _forms(
    "Fashion-MNIST",
    FASHION_HOSTS,
    {
        "train": ((26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"), (29_515, "25c81989df183df01b3e8a0aad5dffbe")),
        "test": ((4_422_102, "bef4ecab320f06d8554ea6380940ec79"), (5_148, "bb300cfdad3c16e7a12a480ee83cd310")),
    },
    {
        "train": ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
        "test": ("8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
    },
)


def load_mnist(
    root: str | Path | None = None,
    split: str = "train",
    *,
    max_gb: float = MAX_GB,
    download: bool | None = None,
    verify: bool = True,
) -> Dataset:
    """Load MNIST: 60,000 training or 10,000 test digits, 28×28×1.

    Args:
        root: folder with the data set; default: the cache.
        split: `"train"` (default) or `"test"`.
        max_gb: files that unpack to more than this many gigabytes are refused; default 8.
        download: whether missing files are downloaded; default: only without `root`.
        verify: compare the files with the published digests.
    """
    return _load("mnist", MNIST, tuple("0123456789"), root, split, max_gb, download, verify)


def load_fashion_mnist(
    root: str | Path | None = None,
    split: str = "train",
    *,
    max_gb: float = MAX_GB,
    download: bool | None = None,
    verify: bool = True,
) -> Dataset:
    """Load Fashion-MNIST: 60,000 training or 10,000 test images of clothing, 28×28×1; arguments as `load_mnist`."""
    return _load("fashion-mnist", FASHION, FASHION_CLASSES, root, split, max_gb, download, verify)


def _load(
    name: str,
    forms: dict[str, list[PublishedForm]],
    classes: tuple[str, ...],
    root: str | Path | None,
    split: str,
    max_gb: float,
    download: bool | None,
    verify: bool,
) -> Dataset:
    obtained = obtain(name, for_split(forms, split, name), root, download=download, verify=verify)
    images, labels = (read_idx(path, sides, max_gb=max_gb) for path, sides in zip(obtained.paths, (3, 1), strict=True))
    if len(images) != len(labels):
        labels_path = obtained.paths[1]
        raise InputError(f"{labels_path}: {len(labels)} labels for the {len(images)} images; fetch both files again")
    pixels = torch.from_numpy(images.copy()).unsqueeze(-1)
    return Dataset(pixels, torch.from_numpy(labels.astype(np.int64)), 10, f"{name}-{split}", classes, obtained.origin)


def read_idx(path: Path, dimensions: int, *, max_gb: float = MAX_GB) -> NDArray[np.uint8]:
    """Read an idx file of bytes: two zeros, type 8, number of dimensions, sizes as big-endian int32, data.

    A file is refused before it is read if its header claims more than `max_gb` gigabytes, or more than the compressed
    bytes can hold.

    Args:
        path: the file; gzipped if its name ends in `.gz`.
        dimensions: expected number of dimensions.
        max_gb: largest size in gigabytes; default 8.
    """
    check_regular(path)
    is_gzip = path.suffix == ".gz"
    try:
        with gzip.open(path) if is_gzip else path.open("rb") as stream:
            head = stream.read(4 + 4 * dimensions)
            shape = _header(head, dimensions, path)
            claimed = math.prod(shape)
            if claimed > max_gb * 1e9:
                raise InputError(
                    f"{path}: its header promises {claimed / 1e9:.1f} GB, more than max_gb={max_gb:g}; "
                    "fetch it again, or raise max_gb"
                )
            if claimed > (DEFLATE_RATIO if is_gzip else 1) * path.stat().st_size + 1024:
                raise InputError(
                    f"{path}: its header promises {claimed:,} bytes, more than the file can hold; fetch it again"
                )
            body = stream.read(claimed + 1)  # one more byte shows that the file is too long
    except (OSError, EOFError, zlib.error) as error:
        kind = "a whole gzip file" if is_gzip else "readable"
        raise InputError(f"{path}: not {kind} ({error}); fetch it again") from error
    if len(body) != claimed:
        actual = f"{len(body):,}" if len(body) < claimed else "more"
        raise InputError(f"{path}: its header promises {claimed:,} bytes, found {actual}; fetch it again")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _header(head: bytes, dimensions: int, path: Path) -> tuple[int, ...]:
    if len(head) < 4 + 4 * dimensions or head[:4] != bytes((0, 0, 8, dimensions)):
        raise InputError(
            f"{path}: not an idx file of bytes with {dimensions} dimensions "
            f"(starts with {head[:4].hex() or 'nothing'}, expected 000008{dimensions:02}); fetch it again"
        )
    shape = struct.unpack(f">{dimensions}I", head[4:])
    if math.prod(shape) > 2**34:
        raise InputError(f"{path}: its header promises {math.prod(shape):,} bytes; fetch it again")
    return shape
