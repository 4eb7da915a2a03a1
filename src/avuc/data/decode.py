"""Pictures in files: which there are, how they are decoded, and the views of them that a net sees."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from avuc.core.errors import InputError, require
from avuc.core.image_files import check_picture, open_picture

__all__ = ["AsIs", "EvalView", "ImageFiles", "TrainView", "View", "decode", "decoder_name", "scan"]

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
DECODERS = ("auto", "pillow", "torchvision")


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Pictures on disk and their labels. The names are one array of bytes: a million of them cost 40 MB, and worker
    processes share it."""

    root: Path
    names: NDArray[np.bytes_]
    labels: Tensor
    num_classes: int
    name: str = "images"
    class_names: tuple[str, ...] = ()
    origin: str = ""

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        return self.root / os.fsdecode(bytes(self.names[index]))

    def subset(self, indices: Tensor | Sequence[int]) -> ImageFiles:
        """The files at `indices`, in that order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return replace(self, names=self.names[index.numpy()], labels=self.labels[index])


def scan(root: Path, classes: Sequence[str] | None = None) -> tuple[NDArray[np.bytes_], Tensor, tuple[str, ...]]:
    """Names relative to `root`, labels and class names of `root/CLASS/*`, in sorted order.

    The label of a class is its place in `classes`, or in the sorted folder names. Files in folders below a class count;
    names that are not of a picture are passed over.
    """
    found = _folders(root)
    order = tuple(found if classes is None else classes)
    if unknown := sorted(set(found) - set(order)):
        raise InputError(f"{root}: folder {unknown[0]!r} is not one of the {len(order)} classes")
    names: list[bytes] = []
    labels: list[int] = []
    for label, folder in enumerate(order):
        here = pictures(root, folder) if folder in found else []
        names.extend(here)
        labels.extend([label] * len(here))
    return np.array(names, dtype=np.bytes_), torch.tensor(labels, dtype=torch.int64), order


def pictures(root: Path, folder: str = "") -> list[bytes]:
    """Pictures under `root/folder`, sorted, as names relative to `root`; links to folders below it are not followed."""

    def stop(error: OSError) -> None:
        # left out without a word, a folder's pictures would be missing from the set
        raise InputError(
            f"{error.filename}: cannot be read ({error.strerror}); make it readable or remove it"
        ) from error

    return sorted(
        os.fsencode(os.path.relpath(os.path.join(place, file), root))
        for place, _, files in os.walk(root / folder, onerror=stop)
        for file in files
        if file.lower().endswith(SUFFIXES)
    )


def _folders(root: Path) -> list[str]:
    """Names of the folders in `root`, sorted: the classes."""
    place: str | Path = root
    try:
        names = []
        with os.scandir(root) as entries:
            for entry in entries:
                place = entry.path
                if not entry.name.startswith(".") and entry.is_dir():
                    names.append(entry.name)
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror}); repair or remove it") from error
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{root / name}: the name of a class must be text in UTF-8; rename the folder") from error
    return sorted(names)


def decoder_name(decoder: str = "auto") -> str:
    """Which decoder `decoder` means here: torchvision where it can be imported, Pillow otherwise."""
    if decoder not in DECODERS:
        raise InputError(f"decoder must be one of {', '.join(DECODERS)}, found {decoder!r}")
    if decoder == "auto":
        return "torchvision" if _torchvision() is not None else "pillow"
    if decoder == "torchvision" and _torchvision() is None:
        require("torchvision.io", "study", "decoder='torchvision'")
    return decoder


@functools.cache
def _torchvision() -> ModuleType | None:
    try:
        return importlib.import_module("torchvision.io")
    except Exception:  # a torchvision built for another torch fails in its own ways; Pillow does not
        return None


def decode(path: Path, *, decoder: str = "pillow", mode: str = "RGB") -> Any:
    """A picture file as a Pillow image of `mode` (`RGB` or `L`)."""
    pillow = require("PIL.Image", "study", "decoding pictures")
    io = _torchvision() if decoder == "torchvision" else None
    if io is not None:
        check_picture(path)
        try:
            kind = io.ImageReadMode.RGB if mode == "RGB" else io.ImageReadMode.GRAY
            pixels = io.decode_image(io.read_file(str(path)), mode=kind).permute(1, 2, 0).numpy()
            return pillow.fromarray(pixels if mode == "RGB" else pixels[..., 0])
        except RuntimeError:
            pass  # a form it does not know, or damage: Pillow knows more forms, and says what is wrong
    return open_picture(path, mode)


class View(Protocol):
    """From a decoded picture to uint8 `(H, W, C)`; `rng` decides whatever is random."""

    @property
    def mode(self) -> str: ...

    def __call__(self, image: Any, rng: np.random.Generator) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class AsIs:
    """The pixels as they are."""

    mode: str = "RGB"

    def __call__(self, image: Any, rng: np.random.Generator) -> NDArray[np.uint8]:
        return _pixels(image)


@dataclass(frozen=True)
class EvalView:
    """The shorter side scaled to `resize` (256/224 of `size` by default), then the `size`×`size` centre."""

    size: int = 224
    resize: int | None = None
    mode: str = "RGB"

    def __call__(self, image: Any, rng: np.random.Generator) -> NDArray[np.uint8]:
        short = self.resize or round(self.size * 256 / 224)
        width, height = image.size
        if width <= height:
            target = (short, int(short * height / width))
        else:
            target = (int(short * width / height), short)
        if target != image.size:
            image = image.resize(target, _bilinear())
        left, top = round((target[0] - self.size) / 2), round((target[1] - self.size) / 2)
        return _pixels(image.crop((left, top, left + self.size, top + self.size)))


@dataclass(frozen=True)
class TrainView:
    """A random part (8 % to all of the area, sides 3:4 to 4:3) scaled to `size`×`size`, flipped half of the time."""

    size: int = 224
    mode: str = "RGB"

    def __call__(self, image: Any, rng: np.random.Generator) -> NDArray[np.uint8]:
        left, top, width, height = self.part(image.width, image.height, rng)
        view = image.crop((left, top, left + width, top + height)).resize((self.size, self.size), _bilinear())
        pixels = _pixels(view)
        return np.ascontiguousarray(pixels[:, ::-1]) if rng.random() < 0.5 else pixels

    @staticmethod
    def part(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Left, top, width and height; ten tries, then the largest allowed part in the centre."""
        low, high = 3 / 4, 4 / 3
        for _ in range(10):
            area = width * height * rng.uniform(0.08, 1.0)
            ratio = float(np.exp(rng.uniform(np.log(low), np.log(high))))
            w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < w <= width and 0 < h <= height:
                return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h
        w = min(width, round(height * high))
        h = min(height, round(width / low))
        return (width - w) // 2, (height - h) // 2, w, h


def _bilinear() -> Any:
    return require("PIL.Image", "study", "scaling pictures").Resampling.BILINEAR


def _pixels(image: Any) -> NDArray[np.uint8]:
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels
