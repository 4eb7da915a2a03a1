"""Open image files from outside safely.

Pillow chooses a decoder by the first bytes of a file, not by its name: a `.png` that contains PostScript would be run
by Ghostscript. Only the formats listed here are read, and only up to a number of pixels.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError, require
from avuc.core.files import check_regular

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
# Pillow warns above this: a small file can decompress to an enormous image
MAX_PIXELS = 89_478_485


def open_picture(path: Path, mode: str | None = "RGB", *, max_pixels: int = MAX_PIXELS) -> Any:
    """Return the decoded Pillow image.

    Args:
        path: an image file.
        mode: Pillow mode of the result (default "RGB"). None: "L" for grey and black-and-white files, else "RGB".
        max_pixels: larger images are refused.
    """
    return _opened(path, mode, max_pixels, decoded=True)


def check_picture(path: Path, *, max_pixels: int = MAX_PIXELS) -> None:
    """Raise `InputError` if the header shows that `open_picture` would refuse the file; nothing is decoded."""
    _opened(path, None, max_pixels, decoded=False)


def _opened(path: Path, mode: str | None, max_pixels: int, *, decoded: bool) -> Any:
    pillow = require("PIL.Image", "study", "decoding pictures")
    check_regular(path)
    pillow.init()
    known = [name for name in FORMATS if name in pillow.OPEN]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # warnings about unusual metadata: ImageNet causes thousands
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
    except Exception as error:  # for damaged files Pillow's plug-ins raise errors of many classes
        reason = " ".join(str(error).replace(str(path), "it").split())[:120] or type(error).__name__
        raise InputError(f"{path}: cannot be decoded ({reason}); restore or remove it") from error


def _check_size(path: Path, size: tuple[int, int], max_pixels: int) -> None:
    if size[0] * size[1] > max_pixels:
        raise _too_large(path, f"{size[0]}×{size[1]}", max_pixels)


def _too_large(path: Path, what: str, max_pixels: int) -> InputError:
    return InputError(f"{path}: {what} pixels, at most {max_pixels:,} are decoded; scale the picture down or remove it")
