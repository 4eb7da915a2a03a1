"""One picture of every shift at every severity, like figures F1 and F2 of the AvUC paper. Needs Pillow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError, require
from avuc.shifts.protocol import SEVERITIES

if TYPE_CHECKING:
    from PIL.Image import Image


_TILE, _GAP, _LABEL, _HEAD = 112, 4, 168, 28
_INK, _PAPER = (20, 20, 20), (255, 255, 255)

Corrupt = Callable[[NDArray[np.uint8], str, int], NDArray[np.uint8]]


def contact_sheet(image: NDArray[np.uint8], names: Sequence[str], corrupt: Corrupt, *, panels: int = 2) -> Image:
    """Return a picture with one row per shift: the clean image, then severities 1 to 5.

    Args:
        image: uint8 (H, W, C). A small image is enlarged without smoothing, so that its pixels are visible.
        names: the shifts.
        corrupt: a function `(images (1, H, W, C), name, severity) -> images`.
        panels: number of columns of rows; default 2.
    """
    if image.ndim != 3 or image.shape[2] not in (1, 3) or image.dtype != np.uint8:
        raise InputError(
            f"gallery: expected one uint8 image (H, W, C), found {image.dtype} of shape {image.shape}; pass images[0]"
        )
    pil, draw_module, font_module = (
        require(f"PIL.{module}", "study", "the gallery") for module in ("Image", "ImageDraw", "ImageFont")
    )
    height, width = _tile_size(image)
    rows = -(-len(names) // panels)
    panel_width = _LABEL + (1 + len(SEVERITIES)) * (width + _GAP)
    sheet = pil.new("RGB", (panels * panel_width + _GAP, _HEAD + rows * (height + _GAP)), _PAPER)
    draw = draw_module.Draw(sheet)
    font = font_module.load_default(size=14)

    def tile(pixels: NDArray[np.uint8]) -> Any:
        picture = pil.fromarray(np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels)
        method = pil.Resampling.NEAREST if height >= image.shape[0] else pil.Resampling.LANCZOS
        return picture.resize((width, height), method)

    for index, name in enumerate(names):
        left, row = (index // rows) * panel_width, index % rows
        top = _HEAD + row * (height + _GAP)
        draw.text((left + _LABEL - 10, top + height // 2), name, fill=_INK, font=font, anchor="rm")
        for column, severity in enumerate((0, *SEVERITIES)):
            x = left + _LABEL + column * (width + _GAP)
            pixels = corrupt(image[None], name, severity)[0] if severity else image
            sheet.paste(tile(pixels), (x, top))
            if row == 0:
                head = f"severity {severity}" if severity else "clean"
                draw.text((x + width // 2, _HEAD // 2), head, fill=_INK, font=font, anchor="mm")
    return sheet  # type: ignore[no-any-return]


def _tile_size(image: NDArray[np.uint8]) -> tuple[int, int]:
    """Return height and width of a tile: a small image times a whole number, a large image scaled down."""
    height, width = image.shape[:2]
    longest = max(height, width)
    if longest <= _TILE:
        return height * (_TILE // longest), width * (_TILE // longest)
    return max(1, round(height * _TILE / longest)), max(1, round(width * _TILE / longest))
