"""Glass blur's walk over the pixels, done at once, equals the walk done pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from avuc import shifts
from avuc.shifts.blur import _walk


def walked(values: np.ndarray, offsets: np.ndarray, reach: int) -> np.ndarray:
    """The published loop: from the last row and column down, each pixel takes the one at its offset."""
    result = values.copy()
    height, width = values.shape
    for row in range(height - reach, reach, -1):
        for column in range(width - reach, reach, -1):
            down, right = offsets[:, row, column]
            result[row, column] = result[row + down, column + right]
    return result


@given(st.integers(1, 4), st.integers(1, 14), st.integers(1, 14), st.integers(0, 2**32))
def test_walk_equals_the_loop(reach: int, height: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    offsets = rng.integers(-reach, reach, (2, height, width))
    values = rng.permutation(height * width).reshape(height, width)
    link = np.arange(height * width).reshape(height, width)
    inner = slice(reach + 1, max(height - reach + 1, reach + 1)), slice(reach + 1, max(width - reach + 1, reach + 1))
    link[inner] += (offsets[0] * width + offsets[1])[inner]
    end = _walk(torch.from_numpy(link).flatten()[None])[0].numpy()
    np.testing.assert_array_equal(values.ravel()[end].reshape(height, width), walked(values, offsets, reach))


def loop_glass(image: np.ndarray, sigma: float, reach: int, passes: int, rng: np.random.Generator) -> np.ndarray:
    def blur(values: np.ndarray) -> np.ndarray:
        return ndimage.gaussian_filter(values.astype(np.float64), (sigma, sigma, 0), mode="nearest").astype(np.uint8)

    source = np.arange(image.shape[0] * image.shape[1]).reshape(image.shape[:2])
    for _ in range(passes):
        source = walked(source, rng.integers(-reach, reach, (2, *source.shape)), reach)
    return blur(blur(image).reshape(-1, 3)[source])


CONSTANTS = {
    "cifar": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "imagenet": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
}


@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_change_equals_the_loop(profile: str, severity: int, pieces: np.ndarray) -> None:
    rng = np.random.default_rng(severity)
    expected = np.stack([loop_glass(image, *CONSTANTS[profile][severity - 1], rng) for image in pieces]).astype(int)
    ours = shifts.corrupt(pieces, "glass_blur", severity, profile=profile).astype(int)
    assert np.abs(ours - pieces).mean() == pytest.approx(np.abs(expected - pieces).mean(), rel=0.03)
    assert ours.mean() == pytest.approx(expected.mean(), abs=0.3)
    roughness = [np.abs(np.diff(images, axis=2)).mean() for images in (ours, expected)]
    assert roughness[0] == pytest.approx(roughness[1], rel=0.03)


def test_frame_is_only_blurred(pieces: np.ndarray) -> None:
    """Without blur (severity 1) the first two rows and columns stay; no new colours appear anywhere."""
    ours = shifts.corrupt(pieces, "glass_blur", 1)
    np.testing.assert_array_equal(ours[:, :2], pieces[:, :2])
    np.testing.assert_array_equal(ours[:, :, :2], pieces[:, :, :2])
    for before, after in zip(pieces[:5], ours[:5], strict=True):
        assert {tuple(pixel) for pixel in after.reshape(-1, 3)} <= {tuple(pixel) for pixel in before.reshape(-1, 3)}
