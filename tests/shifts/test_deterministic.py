"""The deterministic corruptions against SciPy, scikit-image, OpenCV and Pillow, pixel by pixel."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from skimage.color import hsv2rgb, rgb2hsv

from avuc import shifts

Bytes = NDArray[np.uint8]

CONSTANTS = {
    "brightness": ([0.05, 0.1, 0.15, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4, 0.5]),
    "contrast": ([0.75, 0.5, 0.4, 0.3, 0.15], [0.4, 0.3, 0.2, 0.1, 0.05]),
    "defocus_blur": (
        [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
        [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
    ),
    "gaussian_blur": ([0.4, 0.6, 0.7, 0.8, 1], [1, 2, 3, 4, 6]),
    "jpeg_compression": ([80, 65, 58, 50, 40], [25, 18, 15, 10, 7]),
    "pixelate": ([0.95, 0.9, 0.85, 0.75, 0.65], [0.6, 0.5, 0.4, 0.3, 0.25]),
    "saturate": (
        [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
        [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],
    ),
    "zoom_blur": (
        [(1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)],
        [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)],
    ),
}


def brightness(image: Bytes, amount: float) -> NDArray[np.float64]:
    hsv = rgb2hsv(image)
    hsv[..., 2] = np.minimum(hsv[..., 2] + amount, 1)
    return hsv2rgb(hsv) * 255


def saturate(image: Bytes, constants: tuple[float, float]) -> NDArray[np.float64]:
    hsv = rgb2hsv(image)
    hsv[..., 1] = np.clip(hsv[..., 1] * constants[0] + constants[1], 0, 1)
    return hsv2rgb(hsv) * 255


def contrast(image: Bytes, factor: float) -> NDArray[np.float64]:
    result = np.empty(image.shape)
    for channel in range(3):
        mean = image[..., channel].mean()
        result[..., channel] = mean + factor * (image[..., channel] - mean)
    return result


def gaussian_blur(image: Bytes, sigma: float) -> NDArray[np.float64]:
    return ndimage.gaussian_filter(image.astype(np.float64), (sigma, sigma, 0), mode="nearest", truncate=4)


def defocus_blur(image: Bytes, constants: tuple[float, float]) -> NDArray[np.float64]:
    radius, sigma = constants
    reach = 8 if radius <= 8 else int(radius)
    disk = np.zeros((2 * reach + 1, 2 * reach + 1), dtype=np.float32)
    for y in range(-reach, reach + 1):
        for x in range(-reach, reach + 1):
            disk[y + reach, x + reach] = math.hypot(x, y) <= radius
    side = 3 if radius <= 8 else 5
    return cv2.filter2D(image.astype(np.float64), -1, cv2.GaussianBlur(disk / disk.sum(), (side, side), sigma))


def zoom_blur(image: Bytes, constants: tuple[float, float]) -> NDArray[np.float64]:
    side = len(image)
    layers = [image.astype(np.float64)]
    for factor in np.arange(1, *constants):
        crop = math.ceil(side / factor)
        first = (side - crop) // 2
        layer = ndimage.zoom(layers[0][first : first + crop, first : first + crop], (factor, factor, 1), order=1)
        first = (len(layer) - side) // 2
        layers.append(layer[first : first + side, first : first + side])
    return np.mean(layers, axis=0)


def pixelate(image: Bytes, factor: float) -> NDArray[np.float64]:
    side = len(image)
    small = Image.fromarray(image).resize((int(side * factor),) * 2, Image.Resampling.BOX)
    return np.asarray(small.resize((side, side), Image.Resampling.BOX), dtype=np.float64)


def jpeg_compression(image: Bytes, quality: int) -> NDArray[np.float64]:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file), dtype=np.float64)


REFERENCE: dict[str, Callable[..., NDArray[np.float64]]] = {
    function.__name__: function
    for function in (
        brightness, contrast, defocus_blur, gaussian_blur, jpeg_compression, pixelate, saturate, zoom_blur
    )
}  # fmt: skip


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_matches_reference(name: str, profile: str, severity: int, photographs: Bytes, pieces: Bytes) -> None:
    constants = CONSTANTS[name][profile == "imagenet"][severity - 1]
    for images in (photographs, pieces[:40]):
        ours = shifts.corrupt(images, name, severity, profile=profile).astype(np.float64)
        expected = np.clip([REFERENCE[name](image, constants) for image in images], 0, 255)
        off = ours - expected
        if name == "jpeg_compression":  # a coefficient that rounds the other way moves its whole 8×8 block
            assert (np.abs(off) <= 2).mean() >= 0.985
            assert abs(off.mean()) < 0.05
        else:  # truncation: at most one below the exact value, never above
            assert ((off > -1.01) & (off < 0.01)).mean() >= 0.9999


@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "zoom_blur", "pixelate", "contrast", "brightness"])
def test_grey_is_one_channel_of_colour(name: str, pieces: Bytes) -> None:
    """A grey image corrupted alone equals the same image as three equal channels."""
    grey = pieces[:20, ..., :1]
    colour = shifts.corrupt(np.repeat(grey, 3, axis=3), name, 4)
    np.testing.assert_array_equal(shifts.corrupt(grey, name, 4), colour[..., :1])


def test_grey_jpeg_matches_pillow(pieces: Bytes) -> None:
    grey = pieces[..., 1:2]
    expected = np.stack([jpeg_compression(image[..., 0], 40) for image in grey])[..., None]
    assert (np.abs(shifts.corrupt(grey, "jpeg_compression", 5) - expected) <= 2).mean() > 0.99


def test_grey_has_no_saturation(pieces: Bytes) -> None:
    np.testing.assert_array_equal(shifts.corrupt(pieces[..., :1], "saturate", 5), pieces[..., :1])


@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "zoom_blur", "pixelate", "contrast"])
@pytest.mark.parametrize("level", [0, 1, 100, 254, 255])
def test_flat_images_stay_flat(name: str, level: int) -> None:
    """An average of equal pixels is that pixel, whatever float32 makes of the weights."""
    images = np.full((2, 21, 34, 3), level, dtype=np.uint8)
    # ImageNet-C's disk of radius 8 touches its frame; smoothing mirrors it there, and its weights add up to 1.01
    for profile in ("cifar",) if name == "defocus_blur" else ("cifar", "imagenet"):
        for severity in (1, 5):
            np.testing.assert_array_equal(shifts.corrupt(images, name, severity, profile=profile), images)


def test_oblong_zoom_matches_each_axis(photographs: Bytes) -> None:
    """Rows and columns are zoomed by their own lengths."""
    image = photographs[0, :150, :, :]
    ours = shifts.corrupt(image[None], "zoom_blur", 5)[0].astype(int)
    layers = [image.astype(np.float64)]
    for factor in np.arange(1, 1.26, 0.01):
        crops = [math.ceil(side / factor) for side in image.shape[:2]]
        top, left = ((side - crop) // 2 for side, crop in zip(image.shape, crops, strict=False))
        cropped = layers[0][top : top + crops[0], left : left + crops[1]]
        # in mode "constant" SciPy's rounding can push the last sample outside and make it black
        layer = ndimage.zoom(cropped, (factor, factor, 1), order=1, mode="nearest")
        top, left = ((layer.shape[axis] - image.shape[axis]) // 2 for axis in (0, 1))
        layers.append(layer[top : top + image.shape[0], left : left + image.shape[1]])
    assert (np.abs(ours - np.mean(layers, axis=0).astype(int)) <= 1).all()
