"""Picture files: list them, decode them, and cut the views that a network sees."""

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

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
DECODERS = ("auto", "pillow", "torchvision")


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Picture files and their labels; `list_folder` and `list_imagenet` make them, `Stream` reads them.

    Attributes:
        root: the folder.
        names: file names relative to `root`, as one array of bytes: a million names take 40 MB, which worker processes
            share.
        labels: int64 (N,).
        num_classes: number of classes.
        name: used in messages and reports.
        class_names: one name per class, or nothing.
        origin: one sentence on where the pictures are and how they were checked.
    """

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
        """Return the path of a picture."""
        return self.root / os.fsdecode(bytes(self.names[index]))

    def subset(self, indices: Tensor | Sequence[int]) -> ImageFiles:
        """Return the files at `indices`, in that order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return replace(self, names=self.names[index.numpy()], labels=self.labels[index])


def scan(root: Path, classes: Sequence[str] | None = None) -> tuple[NDArray[np.bytes_], Tensor, tuple[str, ...]]:
    """List the pictures `root/CLASS/**`: names relative to `root`, labels, and class names, in sorted order.

    Args:
        root: a folder with one folder per class. Files whose suffix is not that of a picture are ignored.
        classes: all classes in the order of their labels; default: the sorted names of the folders.
    """
    folders = class_folders(root)
    order = tuple(folders if classes is None else classes)
    if unknown := sorted(set(folders) - set(order)):
        raise InputError(
            f"{root}: folder {unknown[0]!r} is not one of the {len(order)} classes; remove it or add it to the classes"
        )
    names: list[bytes] = []
    labels: list[int] = []
    for label, folder in enumerate(order):
        files = pictures(root, folder) if folder in folders else []
        names.extend(files)
        labels.extend([label] * len(files))
    return np.array(names, dtype=np.bytes_), torch.tensor(labels, dtype=torch.int64), order


def pictures(root: Path, folder: str = "") -> list[bytes]:
    """List the pictures below `root/folder`, sorted, relative to `root`; links to folders are not followed.

    Hidden files and folders are not the user's pictures: `._cat.jpg` of macOS, copies in `.ipynb_checkpoints`.
    """

    def stop(error: OSError) -> None:
        # a folder that is silently left out would make the data set smaller
        raise InputError(
            f"{error.filename}: cannot be read ({error.strerror}); make it readable or remove it"
        ) from error

    names: list[bytes] = []
    for parent, folders, files in os.walk(root / folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names.extend(
            os.fsencode(os.path.relpath(os.path.join(parent, file), root))
            for file in files
            if file.lower().endswith(SUFFIXES) and not file.startswith(".")
        )
    return sorted(names)


def class_folders(root: Path) -> list[str]:
    """Return the sorted names of the folders in `root`, which are the classes."""
    current: str | Path = root
    try:
        names = []
        with os.scandir(root) as entries:
            for entry in entries:
                current = entry.path
                if not entry.name.startswith(".") and entry.is_dir():
                    names.append(entry.name)
    except OSError as error:
        raise InputError(f"{current}: cannot be read ({error.strerror}); repair or remove it") from error
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{root / name}: the name of a class must be text in UTF-8; rename the folder") from error
    return sorted(names)


def decoder_name(decoder: str = "auto") -> str:
    """Return `"torchvision"` or `"pillow"`; `"auto"` means torchvision if it can be imported."""
    if decoder not in DECODERS:
        raise InputError(f"decoder must be one of {', '.join(DECODERS)}, found {decoder!r}; 'auto' always works")
    if decoder == "auto":
        return "torchvision" if _torchvision() is not None else "pillow"
    if decoder == "torchvision" and _torchvision() is None:
        require("torchvision.io", "study", "decoder='torchvision'")
    return decoder


@functools.cache
def _torchvision() -> ModuleType | None:
    try:
        return importlib.import_module("torchvision.io")
    except Exception:  # a torchvision built for another torch fails with errors of any class
        return None


def decode(path: Path, *, decoder: str = "pillow", mode: str = "RGB") -> Any:
    """Decode a picture file to a Pillow image.

    Args:
        path: the file.
        decoder: `"pillow"` (default) or `"torchvision"`.
        mode: `"RGB"` (default) or `"L"`, grey.
    """
    pillow = require("PIL.Image", "study", "decoding pictures")
    io = _torchvision() if decoder == "torchvision" else None
    if io is not None:
        check_picture(path)
        try:
            kind = io.ImageReadMode.RGB if mode == "RGB" else io.ImageReadMode.GRAY
            decoded = io.decode_image(io.read_file(str(path)), mode=kind)
            if decoded.dtype != torch.uint8:  # newer versions keep the 16 bits of a .png
                return open_picture(path, mode)
            pixels = decoded.permute(1, 2, 0).numpy()
            return pillow.fromarray(pixels if mode == "RGB" else pixels[..., 0])
        except RuntimeError:
            pass  # an unknown format or damage: Pillow knows more formats, and its errors say what is wrong
    return open_picture(path, mode)


class View(Protocol):
    """A function from a decoded picture to uint8 (H, W, C). `mode` is `"RGB"` or `"L"`; randomness comes from `rng`."""

    @property
    def mode(self) -> str: ...

    def __call__(self, image: Any, rng: np.random.Generator) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class AsIs:
    """The picture without changes."""

    mode: str = "RGB"

    def __call__(self, image: Any, rng: np.random.Generator) -> NDArray[np.uint8]:
        return _pixels(image)


@dataclass(frozen=True)
class EvalView:
    """Scale the shorter side to `resize` (default: size·256/224), then take the central `size`×`size` pixels."""

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
    """Take a random part (8 % to 100 % of the area, aspect ratio 3:4 to 4:3), scale it to `size`×`size`, flip it with
    probability 1/2."""

    size: int = 224
    mode: str = "RGB"

    def __call__(self, image: Any, rng: np.random.Generator) -> NDArray[np.uint8]:
        left, top, width, height = self.part(image.width, image.height, rng)
        view = image.crop((left, top, left + width, top + height)).resize((self.size, self.size), _bilinear())
        pixels = _pixels(view)
        return np.ascontiguousarray(pixels[:, ::-1]) if rng.random() < 0.5 else pixels

    @staticmethod
    def part(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Return left, top, width and height. If ten random parts do not fit, take the largest allowed central part."""
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
