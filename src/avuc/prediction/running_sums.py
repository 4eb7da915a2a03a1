"""Running sums over samples: the mean prediction, the expected entropy and the Monte Carlo error of the mean."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from avuc.predictions import Predictions
from avuc.uncertainty import entropy


def monte_carlo_error(sums: Tensor, squares: Tensor, samples: int, num_samples: int | None = None) -> float | None:
    """Return the standard error of the mean probabilities: √(mean over images n of max_c se(n, c)²).

    se(n, c)² is the variance of p_s(n, c) over the samples s, divided by the number of samples. Each image counts with
    its most uncertain class, so that many improbable classes do not hide the error.

    Args:
        sums: Σ p_s, (N, C).
        squares: Σ p_s², (N, C).
        samples: number of samples in the sums.
        num_samples: how many samples the posterior has. The error is 0 once all are used (correction for a finite
            population). None: no limit.

    Returns None for a single sample of a posterior without a limit: one sample does not show the spread.

    >>> p = torch.tensor([[[0.2, 0.8]], [[0.4, 0.6]]])                      # two samples, one image
    >>> round(monte_carlo_error(p.sum(0), p.square().sum(0), 2), 4)         # √(0.02/2)
    0.1
    """
    left = 1.0 if num_samples is None else 1.0 - samples / num_samples
    if left == 0.0 or not len(sums):
        return 0.0
    if samples < 2:
        return None
    variance = ((squares - sums.square() / samples) / (samples - 1)).clamp(min=0)
    return math.sqrt(float(variance.amax(-1).mean()) / samples * left)


class SampleSums:
    """Σ p_s (N, C), Σ p_s² (N, C) and Σ H[p_s] (N) in float64. Their size does not depend on the number of samples."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows = rows
        # Apple GPUs have no float64
        self.dtype: torch.dtype = torch.float32 if device.type == "mps" else torch.float64
        self.probs: Tensor = torch.empty(0)
        self.squares: Tensor = self.probs
        self.entropy: Tensor = torch.zeros(rows, dtype=self.dtype, device=device)

    def add(self, rows: slice, probs: Tensor) -> Tensor:
        """Add one batch of probabilities, (n, C) of one sample or (S, n, C) of several.

        Returns which samples held NaN, (S,) on the device.
        """
        batch = probs[None] if probs.ndim == 2 else probs
        if self.probs.numel() == 0:
            self.probs = torch.zeros(self.rows, batch.shape[2], dtype=self.dtype, device=batch.device)
            self.squares = torch.zeros_like(self.probs)
        exact = batch.to(self.dtype)
        self.probs[rows] += exact.sum(0)
        self.squares[rows] += exact.square().sum(0)
        self.entropy[rows] += entropy(batch).sum(0, dtype=self.dtype)
        return batch.flatten(1).isnan().any(1)

    def means(self, samples: int) -> tuple[Tensor, Tensor]:
        """Return the mean probabilities (N, C) and the mean entropy (N,) over so many samples, in float32."""
        return (self.probs / samples).float(), (self.entropy / samples).float()

    def predictions(self, labels: Tensor, samples: int, error: float | None) -> Predictions:
        """Return the means over so many samples."""
        probs, expected = self.means(samples)
        return Predictions(probs, labels, expected, samples, error)
