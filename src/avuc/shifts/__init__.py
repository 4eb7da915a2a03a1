"""Shifts of images: 19 corruptions at five severities (Hendrycks & Dietterich 2019, arXiv:1903.12261).

They work on whole batches, on the device of the images. `SHIFTS["name"] = function` adds a shift (see `Shift`).

>>> images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
>>> corrupt(images, "gaussian_noise", 3).shape
(2, 32, 32, 3)
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
from collections.abc import Iterator
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from avuc.core.errors import InputError
from avuc.shifts.archive import Archive
from avuc.shifts.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from avuc.shifts.digital import contrast, elastic_transform, pixelate, saturate
from avuc.shifts.frost_pictures import frost_source, use_frost_folder
from avuc.shifts.jpeg import jpeg_compression
from avuc.shifts.lens import spatter
from avuc.shifts.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from avuc.shifts.protocol import PROFILES, SEVERITIES, Corruption, Profile, Shift, checked_severity
from avuc.shifts.streams import ImageStreams, digests, image_keys, stable_seed, streams
from avuc.shifts.weather import brightness, fog, frost, snow

__all__ = [
    "PAPER",
    "SEVERITIES",
    "SHIFTS",
    "Archive",
    "Corruption",
    "Profile",
    "Shift",
    "corrupt",
    "frost_source",
    "streams",
    "use_frost_folder",
]

SHIFTS: dict[str, Shift] = {
    "brightness": brightness,
    "contrast": contrast,
    "defocus_blur": defocus_blur,
    "elastic_transform": elastic_transform,
    "fog": fog,
    "frost": frost,
    "gaussian_blur": gaussian_blur,
    "gaussian_noise": gaussian_noise,
    "glass_blur": glass_blur,
    "impulse_noise": impulse_noise,
    "pixelate": pixelate,
    "saturate": saturate,
    "shot_noise": shot_noise,
    "spatter": spatter,
    "speckle_noise": speckle_noise,
    "zoom_blur": zoom_blur,
    "jpeg_compression": jpeg_compression,
    "motion_blur": motion_blur,
    "snow": snow,
}
"""Every shift by name."""

PAPER = tuple(SHIFTS)[:16]
"""The names of the 16 shifts in the AvUC paper; `SHIFTS` also has `jpeg_compression`, `motion_blur` and `snow`."""

# values per chunk: few enough for the cache of a CPU core, enough to keep a GPU busy with a few GB of memory
_CPU_CHUNK = 1 << 18
_GPU_CHUNK = 1 << 26


@overload
def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0, profile: Profile = "cifar") -> Tensor: ...
@overload
def corrupt(
    images: NDArray[np.uint8], name: str, severity: int, *, seed: int = 0, profile: Profile = "cifar"
) -> NDArray[np.uint8]: ...
def corrupt(
    images: Tensor | NDArray[np.uint8], name: str, severity: int, *, seed: int = 0, profile: Profile = "cifar"
) -> Tensor | NDArray[np.uint8]:
    """Return shifted images: a new tensor or array of the same shape, uint8 (N, H, W, C).

    The result for an image depends only on the image, `name`, `severity`, `seed` and `profile`, not on the batch it is
    in. The one exception: copies of an image in one call get different random numbers, in their order. Memory is
    bounded: images are processed in chunks.

    Args:
        images: uint8 (N, H, W, C) with C = 1 or 3, a tensor on any device or a NumPy array.
        name: one of `SHIFTS`.
        severity: 1 to 5.
        seed: of the random shifts; default 0.
        profile: `"cifar"` (default) for the constants of CIFAR-10-C, `"imagenet"` for those of ImageNet-C.

    >>> images = torch.stack([torch.full((32, 32, 3), level, dtype=torch.uint8) for level in (90, 170)])
    >>> whole = corrupt(images, "fog", 5, seed=1)
    >>> torch.equal(whole[1:], corrupt(images[1:], "fog", 5, seed=1))
    True
    """
    return apply_shift(images, _checked_shift(images, name, profile), name, severity, seed=seed)


def apply_shift(
    images: Tensor | NDArray[np.uint8], shift: Shift, name: str, severity: int, *, seed: int = 0
) -> Tensor | NDArray[np.uint8]:
    """`corrupt` with any function in place of a known shift; `name` decides its random numbers."""
    severity = checked_severity(severity)
    stream_seed = stable_seed(name, severity, operator.index(seed))
    chunks = list(_chunks(images))
    if not chunks:
        return images.clone() if isinstance(images, Tensor) else images.copy()
    keys = image_keys(torch.cat([digests(_tensor(images[chunk])) for chunk in chunks]), stream_seed)
    result = torch.empty(tuple(images.shape), dtype=torch.uint8, device=keys.device)
    generator = ImageStreams.of(keys, stream_seed)
    for chunk in chunks:
        # one generator for all chunks: a shift that uses it as a torch.Generator continues where it stopped
        generator.keys, generator.drawn = keys[chunk], 0
        batch = _tensor(images[chunk])
        shifted = shift(batch, severity, generator)
        if shifted.shape != batch.shape or shifted.dtype != torch.uint8:
            raise InputError(
                f"shift {name!r} returned {shifted.dtype} of shape {tuple(shifted.shape)}; "
                f"expected uint8 of shape {tuple(batch.shape)}, like its input; correct the function"
            )
        result[chunk] = shifted
    return result if isinstance(images, Tensor) else result.numpy()


def moved_labels(
    images: Tensor, labels: Tensor, name: str, severity: int, *, seed: int = 0, profile: Profile = "cifar"
) -> Tensor:
    """Return a label for each pixel of what `corrupt` makes of the images: `elastic_transform` moves pixels.

    Args:
        images: uint8 (N, H, W, C), before the shift.
        labels: (N, H, W), on the same device.
        name, severity, seed, profile: as given to `corrupt`.

    >>> images, labels = torch.zeros(1, 8, 8, 3, dtype=torch.uint8), torch.arange(64).view(1, 8, 8)
    >>> torch.equal(moved_labels(images, labels, "fog", 5), labels)
    True
    """
    shift = _checked_shift(images, name, profile)
    if not isinstance(shift, Corruption) or shift.labels is None or not len(images):
        return labels
    if labels.shape != images.shape[:3]:
        raise InputError(
            f"{name} moves pixels, and labels {tuple(labels.shape)} are not those of the pixels of images "
            f"{tuple(images.shape)}; give a label for each pixel, or leave {name} out"
        )
    severity = checked_severity(severity)
    stream_seed = stable_seed(name, severity, operator.index(seed))
    chunks = list(_chunks(images))
    keys = image_keys(torch.cat([digests(images[chunk]) for chunk in chunks]), stream_seed)
    generator = ImageStreams.of(keys, stream_seed)
    result = torch.empty_like(labels)
    for chunk in chunks:
        generator.keys, generator.drawn = keys[chunk], 0
        result[chunk] = shift.moved_labels(images[chunk], labels[chunk], severity, generator)
    return result


def _checked_shift(images: object, name: str, profile: str) -> Shift:
    """Return the shift to apply, or raise an `InputError` about the images, the name or the profile."""
    if not isinstance(images, (Tensor, np.ndarray)):
        raise InputError(
            f"images: expected a uint8 torch tensor or NumPy array, found {type(images).__name__}; convert them"
        )
    if images.dtype not in (torch.uint8, np.dtype(np.uint8)):
        raise InputError(f"images: expected uint8 values 0 … 255, found {images.dtype}; scale and cast them first")
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        raise InputError(
            f"images: expected shape (N, H, W, C) with C = 1 or 3, found {tuple(images.shape)}"
            + ("; add a batch axis with images[None]" if images.ndim == 3 else "")
            + ("; move the channels last" if images.ndim == 4 and images.shape[1] in (1, 3) else "")
        )
    if name not in SHIFTS:
        close = difflib.get_close_matches(str(name), SHIFTS, n=1, cutoff=0.0)
        raise InputError(f"unknown shift {name!r}; did you mean {close[0]!r}? Known: {', '.join(SHIFTS)}")
    if profile not in PROFILES:
        raise InputError(f"profile: expected one of {', '.join(PROFILES)}, found {profile!r}")
    shift = SHIFTS[name]
    if isinstance(shift, Corruption):
        shift = dataclasses.replace(shift, profile=profile)
    return shift


def _chunks(images: Tensor | NDArray[np.uint8]) -> Iterator[slice]:
    on_cpu = not isinstance(images, Tensor) or images.device.type == "cpu"
    values = int(np.prod(images.shape[1:]))
    step = max(1, (_CPU_CHUNK if on_cpu else _GPU_CHUNK) // values)
    for start in range(0, len(images), step):
        yield slice(start, start + step)


def _tensor(batch: Tensor | NDArray[np.uint8]) -> Tensor:
    # copied because torch warns about arrays that are read-only, such as memory maps
    return batch if isinstance(batch, Tensor) else torch.from_numpy(np.array(batch, order="C"))
