"""A user's own arrays: `.npz`, or `.npy` with its labels beside it (also the form of out-of-distribution sets)."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.core.files import check_regular
from avuc.data.arrays import UNLABELLED, Dataset
from avuc.data.files import as_path, check_listed, listing

__all__ = ["from_arrays", "load_npz", "map_npy"]

IMAGES = ("images", "x", "data", "arr_0")
LABELS = ("labels", "y", "targets", "label", "target", "arr_1")
ZIP, NPY = b"PK\x03\x04", b"\x93NUMPY"  # how the two kinds of file begin
DAMAGE = (
    ValueError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,  # an archive with a password
)
MAX_GB = 32.0
MOST_DIMENSIONS = 8
# a packed byte cannot hold more than this many (deflate's bound is 1032)
DEFLATE_RATIO = 1040


def load_npz(
    root: str | Path | None = None,
    split: str = "all",
    *,
    num_classes: int | None = None,
    max_gb: float = MAX_GB,
    download: bool | None = None,
    verify: bool = True,
) -> Dataset:
    """Images `(N, H, W, C)` or `(N, H, W)` uint8 and labels `(N,)` from one file, or `SPLIT.npz` / `.npy` in a folder.

    An `.npz` holds `images` and `labels` (or `x` and `y`), or both for each split: `x_train`, `y_train`, `x_test`, …
    (also `train_images`, …). An `.npy` takes its labels from `NAME-labels.npy` beside it; without labels every label is
    `UNLABELLED`. A file that does not tell train from test is only served as split `all`, so that nobody tests on what
    they trained on without noticing. A `SHA256SUMS` beside the file is checked. An `.npz` whose arrays take more than
    `max_gb` gigabytes is refused before it is unpacked; an `.npy` is read page by page, whatever its size.
    """
    if root is None:
        raise InputError("npz: name the file: load_dataset('npz', 'FILE.npz')")
    path = as_path(root)
    in_folder = path.is_dir()
    if in_folder:
        path = _member(path, split)
    checked = verify and check_listed(path)
    if path.suffix == ".npz":
        images, labels = _from_npz(path, split, one_set=in_folder, max_gb=max_gb)
    elif path.suffix == ".npy":
        images, labels = _from_npy(path, split, one_set=in_folder, verify=verify)
    else:
        raise InputError(f"{path}: expected .npz or .npy")
    origin = f"{path.suffix[1:]} file {path}, {'SHA256SUMS checked' if checked else 'not checked'}"
    name = path.stem if in_folder or split == "all" else f"{path.stem}-{split}"
    return from_arrays(images, labels, name, str(path), origin, num_classes)


def map_npy(path: Path) -> NDArray[Any]:
    """An `.npy` file as an array whose pages are read when used; writes to it stay in memory."""
    check_regular(path)
    try:
        with path.open("rb") as handle:
            if handle.read(4) == ZIP:
                raise InputError(f"{path}: an .npz archive, not an .npy array; give the file its right suffix")
            handle.seek(0)
            _check_header(handle, path.stat().st_size)
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(f"{path}: not a whole .npy array ({_reason(error)}); make or fetch it again") from error
    return array


def from_arrays(
    images: NDArray[Any], labels: NDArray[Any] | None, name: str, place: str, origin: str, num_classes: int | None
) -> Dataset:
    """A data set of arrays from outside; `place` is what messages call them."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise InputError(
            f"{place}: images must be uint8 (N, H, W, C) or (N, H, W), found {images.dtype} {images.shape}; "
            "scale to 0…255 and put the channels last"
        )
    if images.ndim == 4 and images.shape[3] not in (1, 3, 4) and images.shape[1] in (1, 3, 4):
        raise InputError(f"{place}: images {images.shape} have their channels first; transpose to (N, H, W, C)")
    pixels = torch.from_numpy(images if images.flags.writeable else images.copy())
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(-1)
    if labels is None:
        return Dataset(pixels, torch.full((len(pixels),), UNLABELLED), num_classes or 0, name, (), origin)
    flat = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.dtype.kind not in "iu" or flat.shape != images.shape[:1]:
        raise InputError(
            f"{place}: expected {len(images)} integer labels, one for each image, found {labels.dtype} {labels.shape}"
        )
    targets = torch.from_numpy(flat.astype(np.int64))
    if num_classes is None:
        num_classes = int(targets.max()) + 1 if len(targets) else 0
    return Dataset(pixels, targets, num_classes, name, (), origin)


def _member(folder: Path, split: str) -> Path:
    for suffix in (".npz", ".npy"):
        if (path := folder / f"{split}{suffix}").is_file():
            return path
    raise InputError(f"{folder}: no {split}.npz or {split}.npy here ({listing(folder)})")


def _from_npz(path: Path, split: str, *, one_set: bool, max_gb: float) -> tuple[NDArray[Any], NDArray[Any] | None]:
    check_regular(path)
    try:
        # the file is opened here: np.load forgets to close it where the archive is damaged
        with path.open("rb") as handle:
            if handle.read(6) == NPY:
                raise InputError(f"{path}: an .npy array, not an .npz archive; give the file its right suffix")
            handle.seek(0)
            stored = np.load(handle, allow_pickle=False)
            keys = {key.lower(): key for key in stored.files}
            images, labels = _find(keys, _for_split(IMAGES, split)), _find(keys, _for_split(LABELS, split))
            if images is None:
                images, labels = _find(keys, IMAGES), _find(keys, LABELS)
                if images is not None and split != "all" and not one_set:
                    raise _untold(path, split)
            if images is None:
                raise InputError(
                    f"{path}: no images for split {split!r}: holds {', '.join(stored.files) or 'nothing'}; "
                    "expected 'images' and 'labels', or 'x_train', 'y_train', 'x_test', …"
                )
            wanted = [images] if labels is None else [images, labels]
            _check_members(path, stored.zip, wanted, max_gb)
            return stored[images], None if labels is None else stored[labels]
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(f"{path}: not a whole .npz archive ({_reason(error)}); make or fetch it again") from error


def _check_members(path: Path, archive: zipfile.ZipFile, keys: Sequence[str], max_gb: float) -> None:
    """Refuse arrays that are too large, or larger than their packed bytes can be, before any of them is unpacked."""
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    total = sum(members[key].file_size for key in keys)
    if total > max_gb * 1e9:
        raise InputError(
            f"{path}: {', '.join(keys)} unpack to {total / 1e9:.1f} GB, more than max_gb={max_gb:g}; "
            "store fewer images, save them as .npy, or raise max_gb"
        )
    for key in keys:
        info = members[key]
        if info.file_size > DEFLATE_RATIO * info.compress_size + 1024:
            raise ValueError(f"{key} claims more bytes than its packed data can hold")
        with archive.open(info) as member:
            _check_header(member, info.file_size)


def _check_header(stream: IO[bytes], size: int) -> None:
    """Refuse an array whose header promises other than the bytes that are there: NumPy reserves what it promises."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"a header of version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded: they could run code")
    if len(shape) > MOST_DIMENSIONS or any(not 0 <= side < 2**48 for side in shape):
        raise ValueError(f"{len(shape)} dimensions" if len(shape) > MOST_DIMENSIONS else f"the shape {shape}")
    promised, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if promised != there:
        raise ValueError(f"its header promises {promised:,} bytes, found {there:,}")


def _from_npy(path: Path, split: str, *, one_set: bool, verify: bool) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if split != "all" and not one_set:
        raise _untold(path, split)
    labels = path.with_name(f"{path.stem}-labels.npy")
    if not labels.is_file():
        return map_npy(path), None
    if verify:
        check_listed(labels)
    return map_npy(path), map_npy(labels)


def _for_split(names: Iterable[str], split: str) -> list[str]:
    return [form for name in names for form in (f"{name}_{split}", f"{split}_{name}")]


def _find(keys: dict[str, str], names: Iterable[str]) -> str | None:
    return next((keys[name] for name in names if name in keys), None)


def _untold(path: Path, split: str) -> InputError:
    return InputError(
        f"{path}: one set that does not tell {split} from the rest; ask for split='all', "
        "or store x_train, y_train, x_test and y_test"
    )


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
