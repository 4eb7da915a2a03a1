"""Running sums over draws: the mean prediction, its expected entropy and how exact the mean is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from avuc.predictions import Predictions
from avuc.uncertainty import entropy

__all__ = ["DrawSums", "monte_carlo_error"]


def monte_carlo_error(sums: Tensor, squares: Tensor, draws: int, num_draws: int | None = None) -> float | None:
    """How far the mean of `draws` probabilities is from that of infinitely many: √(mean over images of max_c se²).

    se(n, c)² is the sample variance of p_s(n, c) over the draws divided by their number. The largest class stands for
    an image, so that many improbable classes do not dilute the figure. A posterior with `num_draws` members has no
    error once all are used (finite population); one draw of an unlimited one says nothing: None.

    >>> p = torch.tensor([[[0.2, 0.8]], [[0.4, 0.6]]])                      # two draws, one image
    >>> round(monte_carlo_error(p.sum(0), p.square().sum(0), 2), 4)         # √(0.02/2)
    0.1
    """
    left = 1.0 if num_draws is None else 1.0 - draws / num_draws
    if left == 0.0:
        return 0.0
    if draws < 2:
        return None
    variance = ((squares - sums.square() / draws) / (draws - 1)).clamp(min=0)
    return math.sqrt(float(variance.amax(-1).mean()) / draws * left)


class DrawSums:
    """Running sums over draws, in float64: (N, C), (N, C) and (N), whatever the number of draws."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows = rows
        # Apple's GPUs have no float64
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self.probs = self.squares = torch.empty(0)
        self.entropy = torch.zeros(rows, dtype=self.dtype, device=device)

    def add(self, rows: slice, probs: Tensor) -> Tensor:
        """Add one batch of a draw, (n, C), or of several, (D, n, C); says (on the device) which draws held NaN, (D)."""
        some = probs[None] if probs.ndim == 2 else probs
        if self.probs.numel() == 0:
            self.probs = torch.zeros(self.rows, some.shape[2], dtype=self.dtype, device=some.device)
            self.squares = torch.zeros_like(self.probs)
        exact = some.to(self.dtype)
        self.probs[rows] += exact.sum(0)
        self.squares[rows] += exact.square().sum(0)
        self.entropy[rows] += entropy(some).sum(0, dtype=self.dtype)
        return some.flatten(1).isnan().any(1)

    def predictions(self, labels: Tensor, draws: int, error: float | None) -> Predictions:
        probs, expected = (self.probs / draws).float(), (self.entropy / draws).float()
        return Predictions(probs, labels, expected, draws, error)
