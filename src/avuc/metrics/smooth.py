"""SmoothECE: the calibration error with a kernel in place of bins.

The residuals confidence − correct are put on a grid of [0, 1], the mass of each between its two neighbours. Smoothing
with a Gaussian kernel reflected at 0 and 1 multiplies the k-th cosine wave by exp(−π² k² σ²/2), so one Fourier
transform serves all bandwidths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.metrics.arrays import Array
from avuc.metrics.checks import any_layout
from avuc.metrics.statistics import prediction_statistics

# cells of the grid
CELLS = 2000
# halvings in the search for the bandwidth
HALVINGS = 40


@any_layout
def smooth_ece(probs: Any, labels: Any) -> float:
    """Return SmoothECE (Błasiok & Nakkiran 2023, https://arxiv.org/abs/2309.12236) of the confidences.

        smECE_σ = ∫ |1/N Σ_n K_σ(t, confidence_n) (confidence_n − correct_n)| dt

    with the Gaussian kernel K_σ reflected at 0 and 1. The result is smECE_σ at the one bandwidth σ that equals it, so
    there is nothing to choose, unlike the number of bins of ECE. Lower is better; 0 to 1.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.

    >>> round(smooth_ece([[0.8, 0.2], [0.6, 0.4]] * 50, [0, 1] * 50), 4)
    0.2082
    """
    statistics = prediction_statistics(probs, labels)
    return smooth_error(statistics.confidence, statistics.correct)[0]


def smooth_error(confidence: Array, correct: Array) -> tuple[float, float]:
    """Return SmoothECE and its bandwidth.

    Args:
        confidence: (N,) numbers from 0 to 1.
        correct: (N,) bool.
    """
    waves = cosine_waves(residual_masses(*grid_positions(confidence), confidence - correct))
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < integral(smoothed(waves, middle)) else (low, middle)
    return integral(smoothed(waves, high)), high


def grid_positions(confidence: Array) -> tuple[Array, Array]:
    """Return the grid point below each confidence, and the distance to it as a share of a cell, from 0 to 1."""
    scaled = np.clip(confidence, 0, 1) * CELLS
    below = np.minimum(scaled.astype(np.int64), CELLS - 1)
    return below, scaled - below


def residual_masses(below: Array, share: Array, residual: Array) -> Array:
    """Return the mean residual at each of the grid points, (CELLS + 1,)."""
    masses: Array = np.bincount(below, weights=residual * (1 - share), minlength=CELLS + 1)
    masses += np.bincount(below + 1, weights=residual * share, minlength=CELLS + 1)
    return masses / len(residual)


def cosine_waves(masses: Array) -> Array:
    """Return the Fourier transform of masses (..., CELLS + 1), reflected at both ends."""
    doubled = masses.copy()
    doubled[..., [0, -1]] *= 2  # a mass at an end coincides with its mirror image
    waves: Array = np.fft.rfft(np.concatenate([doubled, doubled[..., -2:0:-1]], -1))
    return waves


def smoothed(waves: Array, bandwidth: float) -> Array:
    """Return the masses after smoothing, as terms (..., CELLS + 1) whose absolute values sum to the integral."""
    damping = np.exp(-0.5 * (np.pi * bandwidth * np.arange(waves.shape[-1])) ** 2)
    terms: Array = np.fft.irfft(waves * damping, 2 * CELLS)[..., : CELLS + 1]
    terms[..., [0, -1]] /= 2
    return terms


def integral(terms: Array) -> float:
    """Return the integral of the absolute value."""
    return float(np.abs(terms).sum())
