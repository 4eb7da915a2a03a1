"""Fog, frost and snow against plain NumPy loops: moments, spectra, mean change."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from avuc import shifts
from avuc.core.errors import InputError
from avuc.shifts import frost_pictures as pictures
from avuc.shifts.procedural_frost import procedural_frost
from avuc.shifts.resample import motion_blur
from avuc.shifts.streams import ImageStreams, image_keys
from avuc.shifts.weather import plasma

Floats = NDArray[np.float64]


def loop_plasma(side: int, decay: float, rng: np.random.Generator) -> Floats:
    """Diamond-square on a torus, one point at a time."""
    cloud = np.zeros((side, side))
    step, wibble = side, 100.0
    while step >= 2:
        half = step // 2
        for y in range(half, side, step):
            for x in range(half, side, step):
                corners = [cloud[(y + a) % side, (x + b) % side] for a in (-half, half) for b in (-half, half)]
                cloud[y, x] = sum(corners) / 4 + wibble * wibble * (2 * rng.random() - 1)
        for y in range(0, side, half):
            for x in range(half if y % step == 0 else 0, side, step):
                cross = [
                    cloud[(y + a) % side, (x + b) % side] for a, b in ((-half, 0), (half, 0), (0, -half), (0, half))
                ]
                cloud[y, x] = sum(cross) / 4 + wibble * wibble * (2 * rng.random() - 1)
        step, wibble = half, wibble / decay
    return (cloud - cloud.min()) / (cloud.max() - cloud.min())


def spectrum(clouds: Floats) -> Floats:
    """Mean power in rings of growing frequency."""
    side = clouds.shape[1]
    power = (np.abs(np.fft.fft2(clouds - clouds.mean((1, 2), keepdims=True))) ** 2).mean(0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))) * side
    edges = [0.5, 1.5, 2.5, 4.5, 8.5, 16.5]
    return np.array([power[(frequency > a) & (frequency <= b)].mean() for a, b in itertools.pairwise(edges)])


@pytest.mark.parametrize("decay", [3, 2, 1.4])
def test_plasma_spectrum(decay: float) -> None:
    rng = np.random.default_rng(0)
    expected = np.stack([loop_plasma(32, decay, rng) for _ in range(100)])
    ours = plasma(ImageStreams.of(image_keys(torch.arange(1500), 0), 0), 32, 32, decay).double().numpy()
    assert ours.mean() == pytest.approx(expected.mean(), abs=0.03)
    assert ours.std() == pytest.approx(expected.std(), rel=0.05)
    np.testing.assert_allclose(spectrum(ours), spectrum(expected), rtol=0.25)
    assert ours.min() == 0
    assert ours.max() == 1


@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_fog(profile: str, severity: int, pieces: NDArray[np.uint8]) -> None:
    weight, decay = {
        "cifar": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    }[profile][severity - 1]
    rng = np.random.default_rng(severity)
    x = pieces / 255
    cloud = np.stack([loop_plasma(32, decay, rng) for _ in pieces])[..., None]
    most = x.max((1, 2, 3), keepdims=True)
    expected = ((x + weight * cloud) * most / (most + weight) * 255).astype(int)
    ours = np.concatenate([shifts.corrupt(pieces, "fog", severity, profile=profile, seed=s) for s in range(4)])
    change = np.abs(ours.astype(int) - np.tile(pieces, (4, 1, 1, 1))).mean()
    assert change == pytest.approx(np.abs(expected - pieces).mean(), rel=0.08)
    assert ours.std() == pytest.approx(expected.std(), rel=0.06)


def test_fog_leaves_black_black() -> None:
    assert shifts.corrupt(np.zeros((2, 20, 30, 3), np.uint8), "fog", 5).max() == 0


def loop_motion(image: Floats, radius: int, sigma: float, degrees: float) -> Floats:
    """ImageMagick's sum, pixel by pixel, edges repeated."""
    height, width = image.shape[:2]
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    turn = math.radians(degrees)
    steps = [(math.ceil(i * math.sin(turn) - 0.5), math.ceil(i * math.cos(turn) - 0.5)) for i in range(len(weights))]
    result = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            for weight, (down, right) in zip(weights, steps, strict=True):
                result[y, x] += weight * image[min(max(y + down, 0), height - 1), min(max(x + right, 0), width - 1)]
    return result / sum(weights)


@pytest.mark.parametrize(("radius", "sigma"), [(6, 1), (9, 2.5), (20, 15)])
def test_motion_blur_kernel(radius: int, sigma: float, pieces: NDArray[np.uint8]) -> None:
    angles = [-45.0, -13.7, 0.0, 31.4, 45.0, -90.0, -135.0]
    images = pieces[: len(angles), :20].astype(np.float64)
    ours = motion_blur(torch.from_numpy(images), radius, sigma, torch.tensor(angles)).numpy()
    for image, angle, result in zip(images, angles, ours, strict=True):
        np.testing.assert_allclose(result, loop_motion(image, radius, sigma, float(np.float32(angle))), atol=1e-4)


@pytest.mark.parametrize("severity", [1, 5])
def test_motion_blur_change(severity: int, pieces: NDArray[np.uint8]) -> None:
    radius, sigma = {1: (6, 1), 5: (9, 2.5)}[severity]
    rng = np.random.default_rng(0)
    images = pieces[:24]
    expected = [loop_motion(image.astype(np.float64), radius, sigma, rng.uniform(-45, 45)) for image in images]
    ours = np.concatenate([shifts.corrupt(images, "motion_blur", severity, seed=seed) for seed in range(8)]).astype(int)
    change = np.abs(ours - np.tile(images, (8, 1, 1, 1))).mean()
    assert change == pytest.approx(np.abs(np.stack(expected) - images).mean(), rel=0.1)


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_snow(severity: int, pieces: NDArray[np.uint8]) -> None:
    mean, std, factor, cut, radius, sigma, keep = {
        1: (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        3: (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        5: (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    }[severity]
    rng = np.random.default_rng(0)
    images, expected = pieces[:24], []
    for image in images:
        x = image / 255
        flakes = rng.normal(mean, std, (32, 32))
        crop = math.ceil(32 / factor)
        first = (32 - crop) // 2
        flakes = ndimage.zoom(flakes[first : first + crop, first : first + crop], factor, order=1)
        first = (len(flakes) - 32) // 2
        flakes = np.clip(flakes[first : first + 32, first : first + 32], 0, 1)
        flakes = np.floor(np.where(flakes < cut, 0, flakes) * 255)
        layer = np.round(loop_motion(flakes, radius, sigma, rng.uniform(-135, -45)))[..., None] / 255
        luma = cv2.cvtColor(x.astype(np.float32), cv2.COLOR_RGB2GRAY)[..., None]
        ground = keep * x + (1 - keep) * np.maximum(x, luma * 1.5 + 0.5)
        expected.append(np.clip(ground + layer + layer[::-1, ::-1], 0, 1) * 255)
    ours = np.concatenate([shifts.corrupt(images, "snow", severity, seed=seed) for seed in range(8)]).astype(int)
    change = np.abs(ours - np.tile(images, (8, 1, 1, 1))).mean()
    assert change == pytest.approx(np.abs(np.stack(expected).astype(int) - images).mean(), rel=0.08)


@pytest.fixture
def frost_folder(tmp_path: Path, photographs: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two pictures, in use for one test."""
    for index, image in enumerate(photographs):
        Image.fromarray(image).save(tmp_path / f"{index}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    monkeypatch.setattr(pictures, "_folder", tmp_path)
    return tmp_path


def test_frost_is_a_crop_of_a_picture(frost_folder: Path, photographs: NDArray[np.uint8]) -> None:
    assert shifts.frost_source() == f"folder {frost_folder}"
    black = np.zeros((30, 16, 16, 3), np.uint8)
    for profile, weight, scaled in (("cifar", 0.2, photographs[:, 2::5, 2::5]), ("imagenet", 0.4, photographs)):
        for result in shifts.corrupt(black, "frost", 1, profile=profile)[:6]:
            found = [
                (index, y, x)
                for index, picture in enumerate(scaled)
                for y in range(picture.shape[0] - 16)
                for x in np.flatnonzero((result[0, 0] == (weight * picture[y, :-16] + 0.001).astype(int)).all(axis=1))
                if (result == (weight * picture[y : y + 16, x : x + 16] + 0.001).astype(np.uint8)).all()
            ]
            assert len(found) >= 1


def test_frost_uses_every_picture_and_place(frost_folder: Path) -> None:
    results = shifts.corrupt(np.zeros((60, 16, 16, 3), np.uint8), "frost", 1, profile="imagenet")
    assert len(np.unique(results.reshape(60, -1), axis=0)) == 60


def test_frost_enlarges_pictures_that_are_too_small(frost_folder: Path) -> None:
    assert shifts.corrupt(np.zeros((1, 300, 200, 3), np.uint8), "frost", 3).mean() > 10


def test_frost_folder_comes_from_argument_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no frost pictures here"):
        shifts.use_frost_folder(tmp_path)
    Image.fromarray(np.full((50, 60, 3), 200, np.uint8)).save(tmp_path / "ice.png")
    monkeypatch.setenv("AVUC_FROST_DIR", str(tmp_path))
    assert shifts.frost_source() == f"folder {tmp_path}"
    result = shifts.corrupt(np.full((1, 4, 4, 3), 10, np.uint8), "frost", 2, profile="imagenet")
    assert (result == int(0.8 * 10 + 0.6 * 200)).all()
    monkeypatch.setenv("AVUC_FROST_DIR", str(tmp_path / "missing"))
    with pytest.raises(InputError, match="AVUC_FROST_DIR"):
        shifts.frost_source()
    shifts.use_frost_folder(tmp_path)
    assert shifts.frost_source() == f"folder {tmp_path}"
    shifts.use_frost_folder(None)


def test_unreadable_picture_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.png").write_bytes(b"not a png")
    monkeypatch.setattr(pictures, "_folder", tmp_path)
    with pytest.raises(InputError, match=r"broken\.png: not a readable picture"):
        shifts.corrupt(np.zeros((1, 4, 4, 3), np.uint8), "frost", 1)


def test_procedural_frost_has_the_photographs_statistics() -> None:
    """Mean and spread of each channel as measured on the five photographs."""
    means = [
        (77.7, 149.1, 165.7),
        (200.8, 205.4, 214.5),
        (200.8, 205.4, 214.5),
        (137.6, 152.8, 165.2),
        (112.4, 123.4, 134.8),
    ]
    spreads = [(26.9, 16.5, 15.3), (21.4, 22.1, 22.6), (21.4, 22.1, 22.6), (28.5, 28.5, 29.9), (44.4, 43.3, 41.7)]
    for picture, mean, spread in zip(procedural_frost(), means, spreads, strict=True):
        pixels = picture.numpy().reshape(-1, 3)
        np.testing.assert_allclose(pixels.mean(0), mean, atol=3)
        np.testing.assert_allclose(pixels.std(0), spread, rtol=0.2)
    # neighbouring pixels differ as much, at full scale and at a fifth of it
    for index, fine, coarse in ((0, 7.6, 10.8), (1, 7.9, 14.3), (3, 13.2, 21.7), (4, 17.4, 29.4)):
        luma = procedural_frost()[index].numpy() @ np.array([0.299, 0.587, 0.114])
        assert np.abs(np.diff(luma, axis=1)).mean() == pytest.approx(fine, rel=0.25)
        assert np.abs(np.diff(luma[2::5, 2::5], axis=1)).mean() == pytest.approx(coarse, rel=0.15)
    first, again = (procedural_frost()[0] for _ in range(2))
    assert torch.equal(first, again)


def test_procedural_frost_is_used_and_named_without_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AVUC_FROST_DIR", raising=False)
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda name: None)
    assert shifts.frost_source() == "procedural"
    result = shifts.corrupt(np.full((50, 32, 32, 3), 100, np.uint8), "frost", 5)
    assert 120 < result.mean() < 160
