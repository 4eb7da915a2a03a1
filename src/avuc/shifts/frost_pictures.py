"""The pictures from which the shift `frost` cuts its crops: photographs, or procedural pictures with their statistics.

Photographs come from a folder (`use_frost_folder`, or the environment variable AVUC_FROST_DIR), else from the package
`imagecorruptions` if it is installed. Reading them needs Pillow.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from avuc.core.errors import InputError
from avuc.core.image_files import open_picture
from avuc.shifts.procedural_frost import procedural_frost

Scale = Literal["full", "fifth"]
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
_log = logging.getLogger(__name__)
_folder: Path | None = None


@dataclass(frozen=True)
class FrostPictures:
    """Pictures of different sizes in one buffer: picture k is pixels[start[k] :][: height[k]·width[k]], row by row.

    Attributes:
        pixels: uint8 (P, 3).
        start, height, width: int64, one number per picture.
    """

    pixels: Tensor
    start: Tensor
    height: Tensor
    width: Tensor


def use_frost_folder(folder: str | Path | None) -> None:
    """Use the pictures of a folder for the shift `frost` from now on.

    Args:
        folder: a folder of photographs of frost; None: use the environment variable AVUC_FROST_DIR, the package
            `imagecorruptions` or procedural pictures again.

    >>> use_frost_folder(None)
    """
    global _folder
    if folder is not None and not _pictures_in(Path(folder)):
        raise InputError(
            f"{folder}: no frost pictures here; expected a folder with files ending in {', '.join(sorted(_SUFFIXES))}"
        )
    _folder = None if folder is None else Path(folder)


def frost_source() -> str:
    """Return which pictures `frost` uses: "folder …", "imagecorruptions photographs" or "procedural".

    >>> frost_source().split()[0] in {"folder", "imagecorruptions", "procedural"}
    True
    """
    return _source()[0]


def _source() -> tuple[str, tuple[Path, ...]]:
    folder = _folder or (Path(value) if (value := os.environ.get("AVUC_FROST_DIR")) else None)
    if folder is not None:
        if not (files := _pictures_in(folder)):
            raise InputError(f"AVUC_FROST_DIR: {folder} holds no pictures; point it at a folder of frost photographs")
        return f"folder {folder}", files
    # located, not imported: importing the package fails with current setuptools and NumPy
    package = importlib.util.find_spec("imagecorruptions")
    if package is None or package.origin is None or importlib.util.find_spec("PIL") is None:
        return "procedural", ()
    # the published generator uses the first five of its six pictures
    files = _pictures_in(Path(package.origin).parent / "frost")[:5]
    return ("imagecorruptions photographs", files) if files else ("procedural", ())


def _pictures_in(folder: Path) -> tuple[Path, ...]:
    if not folder.is_dir():
        return ()
    return tuple(sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES))


def frost_pictures(height: int, width: int, scale: Scale, device: torch.device) -> FrostPictures:
    """Return the pictures in use on `device`, each at least one pixel larger than height × width.

    Args:
        height, width: size of the images.
        scale: `"full"`, or `"fifth"` for pictures at a fifth of their size, which suit images of 32 pixels.
        device: of the result.
    """
    name, files = _source()
    return _prepared(name, files, height, width, scale, device)


@lru_cache(maxsize=8)
def _prepared(
    name: str, files: tuple[Path, ...], height: int, width: int, scale: Scale, device: torch.device
) -> FrostPictures:
    _log.info("frost pictures: %s", name)
    pictures = [_fitted(picture, height, width, scale) for picture in _loaded(files)]
    sizes = torch.tensor([picture.shape[:2] for picture in pictures])
    areas = sizes.prod(1)
    return FrostPictures(
        pixels=torch.cat([picture.reshape(-1, 3) for picture in pictures]).to(device),
        start=(areas.cumsum(0) - areas).to(device),
        height=sizes[:, 0].to(device),
        width=sizes[:, 1].to(device),
    )


@lru_cache(maxsize=2)
def _loaded(files: tuple[Path, ...]) -> Sequence[Tensor]:
    if not files:
        return procedural_frost()
    return [torch.from_numpy(np.array(open_picture(path))) for path in files]


def _fitted(picture: Tensor, height: int, width: int, scale: Scale) -> Tensor:
    """Return the picture at `scale`; if a crop would not fit, it is enlarged to 1.1 times the size needed."""
    if scale == "fifth":
        # linear interpolation to one fifth reads exactly the central pixel of each 5×5
        picture = picture[2::5, 2::5]
    need = max((height + 1) / picture.shape[0], (width + 1) / picture.shape[1])
    if need > 1:
        size = [int(side * need * 1.1) + 1 for side in picture.shape[:2]]
        planes = picture.permute(2, 0, 1)[None].float()
        enlarged = interpolate(planes, size=size, mode="bicubic", align_corners=False)
        picture = enlarged[0].round_().clamp_(0, 255).to(torch.uint8).permute(1, 2, 0)
    return picture
