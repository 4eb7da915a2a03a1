"""Elastic distortion and spatter, step by step against OpenCV and SciPy, and as a whole by their mean change."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import ndimage

from avuc import shifts
from avuc.shifts import digital, edges, lens, resample
from avuc.shifts.streams import ImageStreams, image_keys

Bytes = NDArray[np.uint8]


def make(count: int) -> ImageStreams:
    return ImageStreams.of(image_keys(torch.arange(count), 0), 0)


@pytest.mark.parametrize("jitter", [0.5, 2.56, 6.4])
def test_affine_map_is_opencvs(jitter: float, pieces: Bytes) -> None:
    row = torch.arange(32.0).view(1, -1, 1)
    column = torch.arange(32.0).view(1, 1, -1)
    rows, columns = digital._affine(make(20), row, column, jitter)
    moved = make(20).uniform(3, 2).mul(2).sub(1).mul(jitter).numpy()
    corners = np.array([[26, 26], [26, 6], [6, 6]], dtype=np.float32)
    images = pieces[:20] / np.float32(255)
    ours = resample.bilinear(torch.from_numpy(images), rows, columns, "mirror").numpy()
    for image, shift, y, x, result in zip(images, moved, rows, columns, ours, strict=True):
        matrix = cv2.getAffineTransform(corners, corners + shift)
        back = cv2.invertAffineTransform(matrix)
        grid = np.stack([*np.meshgrid(np.arange(32), np.arange(32)), np.ones((32, 32))])
        expected = np.einsum("ij,jyx->iyx", back, grid)
        np.testing.assert_allclose(x.numpy(), expected[0], atol=1e-3)
        np.testing.assert_allclose(y.numpy(), expected[1], atol=1e-3)
        warped = cv2.warpAffine(image, matrix, (32, 32), borderMode=cv2.BORDER_REFLECT_101)
        # OpenCV may place samples on a grid of 1/32 pixel
        assert np.abs(result - warped).mean() < 0.01


@pytest.mark.parametrize(("mode", "opposite"), [("reflect", "mirror"), ("mirror", "reflect"), ("nearest", "reflect")])
def test_bilinear_is_scipys(mode: str, opposite: str, pieces: Bytes) -> None:
    rng = np.random.default_rng(0)
    image = pieces[0, :, :20, 0].astype(np.float64)
    place = rng.uniform(-70, 100, (2, 32, 20))
    values = torch.from_numpy(image)[None, ..., None]
    ours = resample.bilinear(values, *(torch.from_numpy(axis)[None] for axis in place), mode)[0, ..., 0].numpy()
    np.testing.assert_allclose(ours, ndimage.map_coordinates(image, place, order=1, mode=mode), atol=1e-6)
    assert not np.allclose(ours, ndimage.map_coordinates(image, place, order=1, mode=opposite))


def loop_elastic(image: Bytes, alpha: float, sigma: float, jitter: float, rng: np.random.Generator) -> Bytes:
    side = len(image)
    centre, reach = np.float32(side // 2), np.float32(side // 3)
    corners = np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32) * reach + centre
    moved = corners + rng.uniform(-jitter, jitter, (3, 2)).astype(np.float32)
    warped = cv2.warpAffine(
        image / np.float32(255), cv2.getAffineTransform(corners, moved), (side, side), borderMode=cv2.BORDER_REFLECT_101
    )
    down, right = (
        alpha * ndimage.gaussian_filter(rng.uniform(-1, 1, (side, side)), sigma, mode="reflect", truncate=3)
        for _ in range(2)
    )
    y, x = np.mgrid[:side, :side]
    layers = [ndimage.map_coordinates(warped[..., c], (y + down, x + right), order=1, mode="reflect") for c in range(3)]
    return (np.clip(np.stack(layers, axis=2), 0, 1) * 255).astype(np.uint8)


@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_elastic_change(profile: str, severity: int, pieces: Bytes) -> None:
    constants = {
        "cifar": ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        "imagenet": ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
    }[profile][severity - 1]
    side = 32 if profile == "cifar" else 32 * 244 / 224
    rng = np.random.default_rng(severity)
    repeated = np.tile(pieces, (4, 1, 1, 1))
    expected = np.stack([loop_elastic(image, *(c * side for c in constants), rng) for image in repeated]).astype(int)
    ours = np.concatenate(
        [shifts.corrupt(pieces, "elastic_transform", severity, profile=profile, seed=seed) for seed in range(4)]
    ).astype(int)
    assert np.abs(ours - repeated).mean() == pytest.approx(np.abs(expected - repeated).mean(), rel=0.06)
    roughness = [np.abs(np.diff(images, axis=1)).mean() for images in (ours, expected)]
    assert roughness[0] == pytest.approx(roughness[1], rel=0.06)


def drops(count: int, side: int, sigma: float, cut: float, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.65, 0.3, (count, side, side))
    liquid = ndimage.gaussian_filter(noise, (0, sigma, sigma), mode="nearest")
    return np.where(liquid < cut, 0, liquid).astype(np.float32)


@pytest.mark.parametrize(("side", "sigma"), [(32, 1), (32, 2), (100, 3)])
def test_canny_and_distance_are_opencvs(side: int, sigma: float) -> None:
    levels = (drops(12, side, sigma, 0.69, 1) * 255).astype(np.uint8)
    ours = edges.canny(torch.from_numpy(levels), 50, 150)
    away = edges.distance_to(ours, 20).numpy()
    for level, edge, distance in zip(levels, ours.numpy(), away, strict=True):
        expected = cv2.Canny(level, 50, 150) > 0
        assert (edge == expected).mean() > 0.999
        apart = cv2.distanceTransform((~edge).astype(np.uint8), cv2.DIST_L2, 5)
        np.testing.assert_allclose(distance, np.minimum(apart, 20), atol=0.01)


def test_canny_joins_weak_edges_to_strong_ones_only() -> None:
    """A ramp of brightness along a step: its faint end counts because the strong end touches it."""
    level = np.full((40, 40), 100, np.uint8)
    level[:, 20:] = (100 + np.linspace(5, 120, 40)[:, None]).astype(np.uint8)
    faint = np.full((40, 40), 100, np.uint8)
    faint[:, 20:] = 120
    for image in (level, faint):
        ours = edges.canny(torch.from_numpy(image)[None], 50, 150)[0].numpy()
        np.testing.assert_array_equal(ours, cv2.Canny(image, 50, 150) > 0)
    assert not ours.any()


def opencv_shine(liquid: NDArray[np.float32], strength: float) -> NDArray[np.float32]:
    depth = (liquid * 255).astype(np.uint8)
    apart = cv2.distanceTransform(255 - cv2.Canny(depth, 50, 150), cv2.DIST_L2, 5)
    relief = cv2.equalizeHist(cv2.blur(np.minimum(apart, 20), (3, 3)).astype(np.uint8))
    relief = cv2.filter2D(relief, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
    shine = cv2.blur(relief, (3, 3)) * depth.astype(np.float32)
    return shine / shine.max() * strength


@pytest.mark.parametrize(("side", "sigma"), [(32, 1), (64, 2), (100, 3)])
def test_water_is_opencvs(side: int, sigma: float) -> None:
    liquid = drops(12, side, sigma, 0.69, 2)
    ours = lens._shine(torch.from_numpy(liquid), 0.5).numpy()
    expected = np.stack([opencv_shine(layer, 0.5) for layer in liquid])
    assert (np.abs(ours - expected) < 2 / 255).mean() > 0.97
    assert ours.mean() == pytest.approx(expected.mean(), rel=0.02)


CONSTANTS = {
    "cifar": (
        (0.62, 0.1, 0.7, 0.7, 0.5), (0.65, 0.1, 0.8, 0.7, 0.5), (0.65, 0.3, 1, 0.69, 0.5),
        (0.65, 0.1, 0.7, 0.69, 0.6), (0.65, 0.1, 0.5, 0.68, 0.6),
    ),
    "imagenet": (
        (0.65, 0.3, 4, 0.69, 0.6), (0.65, 0.3, 3, 0.68, 0.6), (0.65, 0.3, 2, 0.68, 0.5),
        (0.65, 0.3, 1, 0.65, 1.5), (0.67, 0.4, 1, 0.65, 1.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_spatter_coverage(profile: str, severity: int) -> None:
    """How much of a grey image is hit, and how hard."""
    mean, std, sigma, cut, strength = CONSTANTS[profile][severity - 1]
    rng = np.random.default_rng(severity)
    covers = []
    for _ in range(150):
        liquid = ndimage.gaussian_filter(rng.normal(mean, std, (64, 64)), sigma, mode="nearest")
        liquid = np.where(liquid < cut, 0, liquid)
        if severity <= 3:
            shine = opencv_shine(liquid, strength) if liquid.any() else np.zeros_like(liquid)
            covers.append(np.nan_to_num(shine) * 238)
        else:
            cover = ndimage.gaussian_filter((liquid > cut).astype(np.float64), strength, mode="nearest")
            covers.append(np.where(cover < 0.8, 0, cover) * (100 - 42))
    expected = np.stack(covers)
    images = np.full((300, 64, 64, 3), 100, np.uint8)
    ours = np.abs(shifts.corrupt(images, "spatter", severity, profile=profile)[..., 1].astype(int) - 100)
    wet = [layers[layers > 8].size / layers.size for layers in (ours, expected)]
    assert wet[0] == pytest.approx(wet[1], rel=0.1, abs=0.002)
    capped = np.minimum(expected, 155)
    assert ours.mean() == pytest.approx(capped.mean(), rel=0.1)


def test_spatter_on_a_dry_lens_changes_nothing() -> None:
    """No noise passes the cut on most 1×1 images; nothing divides by zero."""
    images = np.full((50, 1, 1, 3), 77, np.uint8)
    result = shifts.corrupt(images, "spatter", 1)
    assert (result == 77).mean() > 0.5
