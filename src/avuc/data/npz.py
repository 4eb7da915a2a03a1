"""Arrays of the user: an `.npz` archive, or an `.npy` file with its labels in `NAME-labels.npy`."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from avuc.core.errors import InputError
from avuc.core.files import open_regular
from avuc.core.npy import MAGIC, map_array, read_data, read_header
from avuc.data.arrays import UNLABELLED, Dataset
from avuc.data.files import check_sha256sums, existing_path, folder_listing

IMAGE_KEYS = ("images", "x", "data", "arr_0")
LABEL_KEYS = ("labels", "y", "targets", "label", "target", "arr_1")
# what Python raises for damaged archives; RuntimeError: an archive with a password
BAD_ARCHIVE = (
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,
)
MAX_GB = 32.0
# a compressed byte cannot hold more than this many (deflate's bound is 1032)
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
    """Load images `(N, H, W, C)` or `(N, H, W)` uint8 and labels `(N,)` from one file, or from a folder of such files.

    An `.npz` holds `images` and `labels` (or `x` and `y`), or both for each split: `x_train`, `y_train`, `x_test`, …
    (also `train_images`, …). An `.npy` has its labels in `NAME-labels.npy`; without that file every label is
    `UNLABELLED`. In a folder, `SPLIT.npz` or `SPLIT.npy` is read. A file without splits is served as split `all` only,
    so that nobody tests on training images by mistake.

    Args:
        root: the file or folder.
        split: `"all"`, or a split that the file or folder has, such as `"train"`.
        num_classes: number of classes; default: the largest label + 1.
        max_gb: an `.npz` whose arrays are larger than this many gigabytes is refused before it is unpacked. An `.npy`
            is memory-mapped, whatever its size.
        download: no effect; there is nothing to download.
        verify: compare the file with `SHA256SUMS` in its folder, if that lists it.
    """
    if root is None:
        raise InputError("npz: name the file: load_dataset('npz', 'FILE.npz')")
    path = existing_path(root)
    is_folder = path.is_dir()
    if is_folder:
        path = _file_of_split(path, split)
    verified = verify and check_sha256sums(path)
    if path.suffix == ".npz":
        images, labels = _read_npz(path, split, has_one_set=is_folder, max_gb=max_gb)
    elif path.suffix == ".npy":
        images, labels = _map_npy(path, split, has_one_set=is_folder, verify=verify)
    else:
        raise InputError(f"{path}: expected .npz or .npy; save the arrays with numpy.savez or numpy.save")
    origin = f"{path.suffix[1:]} file {path}, {'SHA256SUMS checked' if verified else 'not checked'}"
    name = path.stem if is_folder or split == "all" else f"{path.stem}-{split}"
    return from_arrays(images, labels, name, str(path), origin, num_classes)


def from_arrays(
    images: NDArray[Any], labels: NDArray[Any] | None, name: str, source: str, origin: str, num_classes: int | None
) -> Dataset:
    """Make a data set of arrays from outside, after checking them.

    Args:
        images: uint8 (N, H, W, C) or (N, H, W).
        labels: integers (N,) or (N, 1); None: every label is `UNLABELLED`.
        name: name of the data set.
        source: the file, for error messages.
        origin: see `Dataset.origin`.
        num_classes: number of classes; None: the largest label + 1.
    """
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise InputError(
            f"{source}: images must be uint8 (N, H, W, C) or (N, H, W), found {images.dtype} {images.shape}; "
            "scale to 0…255 and put the channels last"
        )
    if images.ndim == 4 and images.shape[3] not in (1, 3, 4) and images.shape[1] in (1, 3, 4):
        raise InputError(f"{source}: images {images.shape} have their channels first; transpose to (N, H, W, C)")
    pixels = torch.from_numpy(images if images.flags.writeable else images.copy())
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(-1)
    if labels is None:
        return Dataset(pixels, torch.full((len(pixels),), UNLABELLED), num_classes or 0, name, (), origin)
    flat = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.dtype.kind not in "iu" or flat.shape != images.shape[:1]:
        raise InputError(
            f"{source}: expected {len(images)} integer labels, one per image, found {labels.dtype} {labels.shape}; "
            "save one whole number per image"
        )
    targets = torch.from_numpy(flat.astype(np.int64))
    if num_classes is None:
        num_classes = int(targets.max()) + 1 if len(targets) else 0
    return Dataset(pixels, targets, num_classes, name, (), origin)


def _file_of_split(folder: Path, split: str) -> Path:
    for suffix in (".npz", ".npy"):
        if (path := folder / f"{split}{suffix}").is_file():
            return path
    raise InputError(f"{folder}: no {split}.npz or {split}.npy here ({folder_listing(folder)}); choose another split")


def _read_npz(path: Path, split: str, *, has_one_set: bool, max_gb: float) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        with open_regular(path) as file:
            if file.read(len(MAGIC)) == MAGIC:
                raise InputError(f"{path}: an .npy array, not an .npz archive; give the file its right suffix")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                images, labels = _choose_keys(path, list(members), split, has_one_set=has_one_set)
                keys = [images] if labels is None else [images, labels]
                _check_sizes(path, {key: members[key] for key in keys}, max_gb)
                arrays = [_read_member(path, archive, members[key], key) for key in keys]
                return arrays[0], None if labels is None else arrays[1]
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and permissions"
        ) from error
    except BAD_ARCHIVE as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"{path}: not a complete .npz archive ({reason}); make or fetch it again") from error


def _choose_keys(path: Path, keys: Sequence[str], split: str, *, has_one_set: bool) -> tuple[str, str | None]:
    """Return the keys of the images and of the labels of a split; None if there are no labels."""
    by_lower_case = {key.lower(): key for key in keys}

    def first(names: Iterable[str]) -> str | None:
        return next((by_lower_case[name] for name in names if name in by_lower_case), None)

    images, labels = first(_with_split(IMAGE_KEYS, split)), first(_with_split(LABEL_KEYS, split))
    if images is None:
        images, labels = first(IMAGE_KEYS), first(LABEL_KEYS)
        if images is not None and split != "all" and not has_one_set:
            raise _without_splits(path, split)
    if images is None:
        raise InputError(
            f"{path}: no images for split {split!r}: holds {', '.join(keys) or 'nothing'}; "
            "expected 'images' and 'labels', or 'x_train', 'y_train', 'x_test', …"
        )
    return images, labels


def _with_split(names: Iterable[str], split: str) -> list[str]:
    return [key for name in names for key in (f"{name}_{split}", f"{split}_{name}")]


def _check_sizes(path: Path, members: dict[str, zipfile.ZipInfo], max_gb: float) -> None:
    """Refuse arrays that are too large, or larger than their compressed bytes can be, before one is unpacked."""
    total = sum(info.file_size for info in members.values())
    if total > max_gb * 1e9:
        raise InputError(
            f"{path}: {', '.join(members)} unpack to {total / 1e9:.1f} GB, more than max_gb={max_gb:g}; "
            "store fewer images, save them as .npy, or raise max_gb"
        )
    for key, info in members.items():
        if info.file_size > DEFLATE_RATIO * info.compress_size + 1024:
            raise InputError(
                f"{path}: {key!r} claims more bytes than its packed data can hold; make or fetch the file again"
            )


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str) -> NDArray[Any]:
    with archive.open(info) as stream:
        header = read_header(stream, info.file_size, path, f"key {key!r}")
        return read_data(stream, header, path, f"key {key!r}")


def _map_npy(path: Path, split: str, *, has_one_set: bool, verify: bool) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if split != "all" and not has_one_set:
        raise _without_splits(path, split)
    labels_path = path.with_name(f"{path.stem}-labels.npy")
    if not labels_path.is_file():
        return map_array(path), None
    if verify:
        check_sha256sums(labels_path)
    return map_array(path), map_array(labels_path)


def _without_splits(path: Path, split: str) -> InputError:
    return InputError(
        f"{path}: one set that does not tell {split} from the rest; ask for split='all', "
        "or store x_train, y_train, x_test and y_test"
    )


map_npy = map_array  # its name in version 0.1.0
