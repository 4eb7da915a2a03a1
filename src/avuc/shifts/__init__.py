"""Nineteen corruptions × five severities (Hendrycks & Dietterich 2019), batched, on the images' device.

>>> import numpy as np
>>> images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
>>> corrupt(images, "gaussian_noise", 3).shape
(2, 32, 32, 3)

A shift of your own is one function and one line: `SHIFTS["name"] = function` (see `Shift`).
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
from avuc.shifts.protocol import PROFILES, SEVERITIES, Corruption, Profile, Shift
from avuc.shifts.streams import ImageStreams, digests, image_keys, stable_seed, streams
from avuc.shifts.weather import brightness, fog, frost, snow

__all__ = [
    "PAPER",
    "PROFILES",
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
# the sixteen that the AvUC paper evaluates on
PAPER = tuple(SHIFTS)[:16]

# values worked on at a time: what stays in a CPU core's cache; what keeps a GPU busy in a few GB
_CPU_VALUES = 1 << 18
_GPU_VALUES = 1 << 26


@overload
def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0, profile: Profile = "cifar") -> Tensor: ...
@overload
def corrupt(
    images: NDArray[np.uint8], name: str, severity: int, *, seed: int = 0, profile: Profile = "cifar"
) -> NDArray[np.uint8]: ...
def corrupt(
    images: Tensor | NDArray[np.uint8], name: str, severity: int, *, seed: int = 0, profile: Profile = "cifar"
) -> Tensor | NDArray[np.uint8]:
    """The images (uint8 NHWC, C = 1 or 3, any size) under shift `name` at severity 1 … 5; a new tensor or array.

    Works on the images' device in bounded memory. The result for an image depends on the image, `name`, `severity`,
    `seed` and `profile` only: any batch size, order or split gives the same (identical images within one call are told
    apart by their order). `profile` chooses the constants of CIFAR-10-C or of ImageNet-C.

    >>> images = torch.stack([torch.full((32, 32, 3), level, dtype=torch.uint8) for level in (90, 170)])
    >>> whole = corrupt(images, "fog", 5, seed=1)
    >>> torch.equal(whole[1:], corrupt(images[1:], "fog", 5, seed=1))
    True
    """
    shift, severity = _checked(images, name, severity, profile)
    number = stable_seed(name, severity, operator.index(seed))
    parts = list(_parts(images))
    if not parts:
        return images.clone() if isinstance(images, Tensor) else images.copy()
    keys = image_keys(torch.cat([digests(_tensor(images[part])) for part in parts]), number)
    result = torch.empty(tuple(images.shape), dtype=torch.uint8, device=keys.device)
    generator = ImageStreams.of(keys, number)
    for part in parts:
        # one generator for all parts: a shift that draws from it directly goes on where it stopped
        generator.keys, generator.drawn = keys[part], 0
        batch = _tensor(images[part])
        changed = shift(batch, severity, generator)
        if changed.shape != batch.shape or changed.dtype != torch.uint8:
            raise InputError(
                f"shift {name!r} returned {changed.dtype} of shape {tuple(changed.shape)}; "
                f"expected uint8 of shape {tuple(batch.shape)}, like its input"
            )
        result[part] = changed
    return result if isinstance(images, Tensor) else result.numpy()


def _checked(images: object, name: str, severity: int, profile: str) -> tuple[Shift, int]:
    """The shift to apply and the severity as an int, or an error that says what to change."""
    if not isinstance(images, (Tensor, np.ndarray)):
        raise InputError(f"images: expected a uint8 torch tensor or NumPy array, found {type(images).__name__}")
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
    if not isinstance(severity, (int, np.integer)) or int(severity) not in SEVERITIES:
        raise InputError(f"severity: expected a whole number 1 … 5, found {severity!r}")
    if profile not in PROFILES:
        raise InputError(f"profile: expected one of {', '.join(PROFILES)}, found {profile!r}")
    shift = SHIFTS[name]
    if isinstance(shift, Corruption):
        shift = dataclasses.replace(shift, profile=profile)
    return shift, int(severity)


def _parts(images: Tensor | NDArray[np.uint8]) -> Iterator[slice]:
    on_cpu = not isinstance(images, Tensor) or images.device.type == "cpu"
    values = int(np.prod(images.shape[1:]))
    step = max(1, (_CPU_VALUES if on_cpu else _GPU_VALUES) // values)
    for start in range(0, len(images), step):
        yield slice(start, start + step)


def _tensor(batch: Tensor | NDArray[np.uint8]) -> Tensor:
    # a copy of the part, because torch warns about arrays that cannot be written (memory maps, views)
    return batch if isinstance(batch, Tensor) else torch.from_numpy(np.array(batch, order="C"))
