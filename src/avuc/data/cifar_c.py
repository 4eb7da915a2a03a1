"""CIFAR-10-C and CIFAR-100-C: the released `.npy` files, memory-mapped.

Source: Hendrycks & Dietterich 2019, arXiv:1903.12261. `avuc.shifts.archive` reads the files; this module knows where
they are published and their digests.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from avuc.core.errors import InputError
from avuc.data.arrays import Dataset
from avuc.data.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES
from avuc.data.files import KnownFile
from avuc.data.obtain import PublishedForm, for_split, obtain
from avuc.shifts.archive import LABELS_FILE, at_severity, map_images, map_labels
from avuc.shifts.protocol import SEVERITIES as SEVERITIES  # a name of version 0.1.0
from avuc.shifts.protocol import checked_severity

BYTES = 50_000 * 32 * 32 * 3 + 128
CIFAR10_C = {
    "brightness": "0a81ef75e0b523c3383219c330a85d48",
    "contrast": "3c8262171c51307f916c30a3308235a8",
    "defocus_blur": "7d1322666342a0702b1957e92f6254bc",
    "elastic_transform": "9421657c6cd452429cf6ce96cc412b5f",
    "fog": "7b397314b5670f825465fbcd1f6e9ccd",
    "frost": "31f6ab3bce1d9934abfb0cc13656f141",
    "gaussian_blur": "c33370155bc9b055fb4a89113d3c559d",
    "gaussian_noise": "ecaf8b9a2399ffeda7680934c33405fd",
    "glass_blur": "7361fb4019269e02dbf6925f083e8629",
    "impulse_noise": "2090e01c83519ec51427e65116af6b1a",
    "jpeg_compression": "2b9cc4c864e0193bb64db8d7728f8187",
    "motion_blur": "fffa5f852ff7ad299cfe8a7643f090f4",
    "pixelate": "0f14f7e2db14288304e1de10df16832f",
    "saturate": "1cfae0964219c5102abbb883e538cc56",
    "shot_noise": "3a7239bb118894f013d9bf1984be7f11",
    "snow": "bb238de8555123da9c282dea23bd6e55",
    "spatter": "8a5a3903a7f8f65b59501a6093b4311e",
    "speckle_noise": "ef00b87611792b00df09c0b0237a1e30",
    "zoom_blur": "6ea8e63f1c5cdee1517533840641641b",
    "labels": "c439b113295ed5254878798ffe28fd54",
}
CIFAR100_C = {
    "brightness": "f22d7195aecd6abb541e27fca230c171",
    "contrast": "322bb385f1d05154ee197ca16535f71e",
    "defocus_blur": "d923e3d9c585a27f0956e2f2ad832564",
    "elastic_transform": "a0792bd6581f6810878be71acedfc65a",
    "fog": "4efc7ebd5e82b028bdbe13048e3ea564",
    "frost": "3a39c6823bdfaa0bf8b12fe7004b8117",
    "gaussian_blur": "5204ba0d557839772ef5a4196a052c3e",
    "gaussian_noise": "ecc4d366eac432bdf25c024086f5e97d",
    "glass_blur": "0bf384f38e5ccbf8dd479d9059b913e1",
    "impulse_noise": "3b3c210ddfa0b5cb918ff4537a429fef",
    "jpeg_compression": "c851b7f1324e1d2ffddeb76920576d11",
    "motion_blur": "732a7e2e54152ff97c742d4c388c5516",
    "pixelate": "96c00c60f144539e14cffb02ddbd0640",
    "saturate": "c0697e9fdd646916a61e9c312c77bf6b",
    "shot_noise": "b0a1fa6e1e465a747c1b204b1914048a",
    "snow": "0237be164583af146b7b144e73b43465",
    "spatter": "12ccf41d62564d36e1f6a6ada5022728",
    "speckle_noise": "e3f215b1a0f9fd9fd6f0d1cf94a7ce99",
    "zoom_blur": "0204613400c034a81c4830d5df81cb82",
    "labels": "bb4026e9ce52996b95f439544568cdb2",
}
CORRUPTIONS = tuple(name for name in CIFAR10_C if name != "labels")


def _form(title: str, record: str, size: int, md5: str, digests: dict[str, str]) -> PublishedForm:
    name = f"{title}.tar"
    archive = KnownFile(name, size, f"md5:{md5}", (f"https://zenodo.org/records/{record}/files/{name}",))
    members = tuple(
        KnownFile(f"{key}.npy", 50_128 if key == "labels" else BYTES, f"md5:{digest}")
        for key, digest in digests.items()
    )
    return PublishedForm(title, (), (title, ""), archive, members, title)


CIFAR10C = _form("CIFAR-10-C", "2535967", 2_918_471_680, "56bf5dcef84df0e2308c6dcbcbbd8499", CIFAR10_C)
CIFAR100C = _form("CIFAR-100-C", "3555552", 2_918_473_216, "11f0ed0f1191edbf9fa23466ae6021d3", CIFAR100_C)


def load_cifar10c(
    root: str | Path | None = None,
    split: str = "test",
    *,
    corruption: str,
    severity: int,
    download: bool | None = None,
    verify: bool = True,
) -> Dataset:
    """Load the 10,000 test images of CIFAR-10 under one corruption at one severity.

    Args:
        root: folder with the set; default: the cache.
        split: `"test"`; there is no other.
        corruption: one of `CORRUPTIONS`.
        severity: 1 to 5.
        download: whether a missing set is downloaded; default: only without `root`.
        verify: compare the files with the published digests.
    """
    return _load("cifar10-c", CIFAR10C, CIFAR10_CLASSES, root, split, corruption, severity, download, verify)


def load_cifar100c(
    root: str | Path | None = None,
    split: str = "test",
    *,
    corruption: str,
    severity: int,
    download: bool | None = None,
    verify: bool = True,
) -> Dataset:
    """Load the 10,000 test images of CIFAR-100 under one corruption at one severity; arguments as `load_cifar10c`."""
    return _load("cifar100-c", CIFAR100C, CIFAR100_CLASSES, root, split, corruption, severity, download, verify)


def _load(
    name: str,
    form: PublishedForm,
    classes: tuple[str, ...],
    root: str | Path | None,
    split: str,
    corruption: str,
    severity: int,
    download: bool | None,
    verify: bool,
) -> Dataset:
    for_split({"test": True}, split, name)
    if corruption not in CORRUPTIONS:
        raise InputError(f"{name}: no corruption {corruption!r}; there are {', '.join(CORRUPTIONS)}")
    severity = checked_severity(severity, name)
    by_name = {known.name: known for known in form.members}
    needed = replace(form, files=(by_name[f"{corruption}.npy"], by_name[LABELS_FILE]))
    obtained = obtain(name, [needed], root, download=download, verify=verify)
    images_path, labels_path = obtained.paths
    all_labels = map_labels(labels_path)
    all_images = map_images(images_path, len(all_labels))
    if all_images.shape[1:] != (32, 32, 3):
        raise InputError(
            f"{images_path}: expected images of shape (32, 32, 3), found {all_images.shape[1:]}; fetch it again"
        )
    images = torch.from_numpy(at_severity(all_images, severity))
    labels = torch.from_numpy(at_severity(all_labels, severity).astype("int64"))
    return Dataset(images, labels, len(classes), f"{name}-{corruption}-{severity}", classes, obtained.origin)
