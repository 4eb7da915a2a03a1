"""Open image files from outside safely.

Pillow chooses a decoder by the first bytes of a file, not by its name: a `.png` that contains PostScript would be run
by Ghostscript. Only the formats listed here are read, and only up to a number of pixels.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from avuc.core.errors import InputError, require
from avuc.core.files import check_regular

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
# Pillow warns above this: a small file can decompress to an enormous image
MAX_PIXELS = 89_478_485


def open_picture(path: Path, mode: str | None = "RGB") -> Any:
    """Return the decoded Pillow image. Of 16-bit grey levels the upper 8 bits are used, as Pillow does for colours.

    Args:
        path: an image file.
        mode: Pillow mode of the result (default "RGB"). None: "L" for grey and black-and-white files, else "RGB".
    """
    return _opened(path, mode, decoded=True)


def check_picture(path: Path) -> None:
    """Raise `InputError` if the header shows that `open_picture` would refuse the file; nothing is decoded."""
    _opened(path, None, decoded=False)


def _opened(path: Path, mode: str | None, *, decoded: bool) -> Any:
    pillow = require("PIL.Image", "study", "decoding pictures")
    check_regular(path)
    pillow.init()
    known = [name for name in FORMATS if name in pillow.OPEN]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # warnings about unusual metadata: ImageNet causes thousands
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # refused below
            with pillow.open(path, formats=known) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise _too_large(path, f"{width}×{height}")
                if not decoded:
                    return None
                image = _eight_bits(pillow, path, image)
                return image.convert(mode or ("L" if image.mode in ("1", "L") else "RGB"))
    except InputError:
        raise
    except pillow.DecompressionBombError as error:
        raise _too_large(path, "more than 100 million") from error
    except pillow.UnidentifiedImageError as error:
        raise InputError(
            f"{path}: not a readable picture: cannot be decoded as {', '.join(FORMATS)}; convert, restore or remove it"
        ) from error
    except Exception as error:  # for damaged files Pillow's plug-ins raise errors of many classes
        reason = " ".join(str(error).replace(str(path), "it").split())[:120] or type(error).__name__
        raise InputError(f"{path}: cannot be decoded ({reason}); restore or remove it") from error


def _eight_bits(pillow: Any, path: Path, image: Any) -> Any:
    """Return a picture of bytes: Pillow's `convert` clips wider grey levels at 255, which makes most pixels white."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        problem = "grey levels are 32-bit numbers, whose black and white are not known"
        raise InputError(f"{path}: its {problem}; save the picture with 8 bits, 0 to 255")
    levels = np.asarray(image)
    if 0 < levels.max() <= 255:
        problem = f"grey levels have 16 bits, but end at {levels.max()}: it would be black"
        raise InputError(f"{path}: its {problem}; save the picture with 8 bits, 0 to 255")
    return pillow.fromarray((levels >> 8).astype(np.uint8))


def _too_large(path: Path, what: str) -> InputError:
    return InputError(f"{path}: {what} pixels, at most {MAX_PIXELS:,} are decoded; scale the picture down or remove it")
