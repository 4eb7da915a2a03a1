"""Open a picture file as if an enemy had written it.

Pillow chooses a reader by a file's first bytes, whatever its name: a `.png` that is PostScript would be run by
Ghostscript. Only the formats listed here are read, and only up to a number of pixels.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError, require
from avuc.core.files import check_regular

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
# Pillow warns from here on: a small file can unpack to an enormous picture
MAX_PIXELS = 89_478_485


def open_picture(path: Path, mode: str | None = "RGB", *, max_pixels: int = MAX_PIXELS) -> Any:
    """A picture file as a Pillow image in memory, of `mode` (None: "L" for grey and black-and-white, else "RGB")."""
    return _opened(path, mode, max_pixels, decoded=True)


def check_picture(path: Path, *, max_pixels: int = MAX_PIXELS) -> None:
    """Refuse what `open_picture` refuses by a file's first bytes alone."""
    _opened(path, None, max_pixels, decoded=False)


def _opened(path: Path, mode: str | None, max_pixels: int, *, decoded: bool) -> Any:
    pillow = require("PIL.Image", "study", "decoding pictures")
    check_regular(path)
    pillow.init()
    known = [name for name in FORMATS if name in pillow.OPEN]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # remarks on odd metadata, thousands of them in ImageNet
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # refused below
            with pillow.open(path, formats=known) as image:
                _check_size(path, image.size, max_pixels)
                if not decoded:
                    return None
                return image.convert(mode or ("L" if image.mode in ("1", "L") else "RGB"))
    except InputError:
        raise
    except pillow.DecompressionBombError as error:
        raise _too_large(path, "more than 100 million", max_pixels) from error
    except pillow.UnidentifiedImageError as error:
        raise InputError(
            f"{path}: not a readable picture: cannot be decoded as {', '.join(FORMATS)}; convert, restore or remove it"
        ) from error
    except Exception as error:  # on damaged bytes Pillow's plug-ins raise whatever their parser happened to meet
        reason = " ".join(str(error).replace(str(path), "it").split())[:120] or type(error).__name__
        raise InputError(f"{path}: cannot be decoded ({reason}); restore or remove it") from error


def _check_size(path: Path, size: tuple[int, int], max_pixels: int) -> None:
    if size[0] * size[1] > max_pixels:
        raise _too_large(path, f"{size[0]}×{size[1]}", max_pixels)


def _too_large(path: Path, what: str, max_pixels: int) -> InputError:
    return InputError(f"{path}: {what} pixels, at most {max_pixels:,} are decoded; scale the picture down or remove it")
