"""The noises: distribution at every grey level, against NumPy's generators."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from avuc import shifts

Draws = NDArray[np.int64]

GAUSSIAN = {"cifar": (0.04, 0.06, 0.08, 0.09, 0.10), "imagenet": (0.08, 0.12, 0.18, 0.26, 0.38)}
SPECKLE = {"cifar": (0.06, 0.1, 0.12, 0.16, 0.2), "imagenet": (0.15, 0.2, 0.35, 0.45, 0.6)}
SHOT = {"cifar": (500, 250, 100, 75, 50), "imagenet": (60, 25, 12, 5, 3)}
IMPULSE = {"cifar": (0.01, 0.02, 0.03, 0.05, 0.07), "imagenet": (0.03, 0.06, 0.09, 0.17, 0.27)}
LEVELS = (0, 1, 20, 128, 250, 255)


def ours(name: str, level: int, severity: int, profile: str) -> Draws:
    images = np.full((20, 32, 32, 3), level, dtype=np.uint8)
    return shifts.corrupt(images, name, severity, profile=profile).astype(int)


def agree(draws: Draws, expected: NDArray[np.float64]) -> None:
    """Mean and standard deviation of two large samples, within sampling error."""
    expected = np.clip(expected * 255, 0, 255).astype(np.uint8).astype(int)
    error = 5 * expected.std() * (1 / draws.size + 1 / expected.size) ** 0.5
    assert abs(draws.mean() - expected.mean()) <= error + 0.02
    assert draws.std() == pytest.approx(expected.std(), rel=0.03, abs=0.02)


@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_moments_at_every_level(profile: str, severity: int) -> None:
    rng = np.random.default_rng(severity)
    for level in LEVELS:
        x = np.full(60_000, level / 255)
        sigma = GAUSSIAN[profile][severity - 1]
        agree(ours("gaussian_noise", level, severity, profile), x + rng.normal(0, sigma, x.shape))
        sigma = SPECKLE[profile][severity - 1]
        agree(ours("speckle_noise", level, severity, profile), x + x * rng.normal(0, sigma, x.shape))
        photons = SHOT[profile][severity - 1]
        agree(ours("shot_noise", level, severity, profile), rng.poisson(x * photons) / photons)


@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 5])
def test_shot_noise_is_poisson(profile: str, severity: int) -> None:
    """Every outcome at a dim and at a bright level as often as Poisson's law says."""
    photons = SHOT[profile][severity - 1]
    for level in (10, 120):
        draws = ours("shot_noise", level, severity, profile).ravel()
        law = np.random.default_rng(0).poisson(level / 255 * photons, 400_000) / photons
        values = np.clip(law * 255, 0, 255).astype(np.uint8)
        assert set(np.unique(draws)) <= set(
            np.unique(np.clip(np.arange(2000) / photons * 255, 0, 255).astype(np.uint8))
        )
        cumulative = [np.cumsum(np.bincount(sample, minlength=256)) / sample.size for sample in (draws, values)]
        assert np.abs(cumulative[0] - cumulative[1]).max() < 0.01


@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_impulse_counts(profile: str, severity: int) -> None:
    amount = IMPULSE[profile][severity - 1]
    draws = ours("impulse_noise", 100, severity, profile)
    error = 5 * (amount / draws.size) ** 0.5
    assert abs((draws == 0).mean() - amount / 2) < error
    assert abs((draws == 255).mean() - amount / 2) < error
    assert set(np.unique(draws)) == {0, 100, 255}
    # coloured dots: a channel is hit on its own
    hit = draws != 100
    assert abs((hit[..., 0] & hit[..., 1]).mean() - amount**2) < 3 * error


@pytest.mark.parametrize("name", ["gaussian_noise", "speckle_noise", "shot_noise"])
def test_noise_is_white_and_channels_independent(name: str) -> None:
    noise = ours(name, 128, 5, "cifar").astype(np.float64)
    noise -= noise.mean()
    noise /= noise.std()
    power = (np.abs(np.fft.fft2(noise, axes=(1, 2))) ** 2 / 1024).mean(axis=(0, 3))
    assert power.mean() == pytest.approx(1, rel=0.01)
    assert power.max() < 2  # 60 exponentials a frequency, 1024 frequencies
    channels = np.corrcoef(noise.reshape(-1, 3).T)
    assert np.abs(channels - np.eye(3)).max() < 0.03


def test_black_has_no_light() -> None:
    assert ours("shot_noise", 0, 5, "imagenet").max() == 0
    assert ours("speckle_noise", 0, 5, "imagenet").max() == 0
