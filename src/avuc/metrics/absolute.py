"""The estimation error of calibration errors, where the ordinary bootstrap fails.

θ = Σ_b |g_b| is estimated by Σ_b |ĝ_b|. The absolute value makes noise add up instead of cancel: the estimate is too
high by up to the noise's own sum, the resampled one is too high once more, and the percentile interval of a well
calibrated model then lies above the truth with near certainty. What holds is

    Σ sign(g_b)(ĝ_b − g_b)  ≤  θ̂ − θ  ≤  the same with |ĝ_b − g_b| in the bins where g_b may be 0.

So the interval's upper end uses the left side and its lower end the right side, where "may be 0" means |ĝ_b| ≤ κ
standard errors (the directional derivative of Fang & Santos 2019, https://doi.org/10.1093/restud/rdy049). The estimate
is always inside, and the interval is rather too wide than too narrow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from avuc.metrics.statistics import Array, BinTable

__all__ = ["AbsoluteSum", "Errors", "maximum_errors", "root_errors"]

# standard errors within which a bin's gap may be 0
KAPPA = 3.0
# resamples that estimate the standard errors
PILOT = 64


class Errors(NamedTuple):
    """Draws of estimate − truth: large enough ones for the interval's lower end, small enough ones for the upper."""

    over: Array
    under: Array


class AbsoluteSum:
    """Collects resampled terms (B, K) of Σ_b |g_b| and yields the draws of its error, without keeping the terms."""

    def __init__(self, estimate: Array) -> None:
        self.estimate, self._may_be_zero = estimate, np.zeros(0, bool)
        self._waiting: list[Array] = []
        self._over: list[Array] = []
        self._under: list[Array] = []

    def add(self, terms: Array) -> None:
        noise = terms - self.estimate
        if len(self._may_be_zero) == 0:
            self._waiting.append(noise)
            if sum(map(len, self._waiting)) >= PILOT:
                self._settle()
        else:
            self._convert(noise)

    def errors(self) -> Errors:
        self._settle()
        return Errors(np.concatenate(self._over), np.concatenate(self._under))

    def _settle(self) -> None:
        if self._waiting:
            pilot = np.concatenate(self._waiting)
            self._waiting = []
            self._may_be_zero = np.abs(self.estimate) <= KAPPA * pilot.std(0)
            self._convert(pilot)

    def _convert(self, noise: Array) -> None:
        straight = noise * np.sign(self.estimate)
        self._under.append(straight.sum(-1))
        self._over.append(np.where(self._may_be_zero, np.abs(noise), straight).sum(-1))


def maximum_errors(table: BinTable, replicates: int, seed: int) -> Errors:
    """Draws of the error of the maximum gap.

    A bin of one row looks the same in every resample, so the bins' noise is drawn from the normal law instead, with the
    larger of the variances that accuracy and confidence imply. Every bin whose gap may be the largest takes part.
    """
    held = table.rows > 0
    rows, rate, stated = table.rows[held], table.event[held] / table.rows[held], table.value[held] / table.rows[held]
    gap = np.abs(rate - stated)
    # one row may state a confidence of 1.0000001
    spread = np.sqrt(np.maximum(np.maximum(rate * (1 - rate), stated * (1 - stated)), 0) / rows)
    candidate = gap + KAPPA * spread >= (gap - KAPPA * spread).max()
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(replicates, int(candidate.sum()), generator=generator, dtype=torch.float64).numpy()
    worst = np.abs(noise * spread[candidate]).max(-1)
    return Errors(worst, -worst)


def root_errors(square: float, errors: Array) -> Errors:
    """Draws of the error of √max(0, square), from draws of square − resampled square.

    A resampled square has the noise of two draws in it and is debiased for one: its mean is too high, so only its
    spread is used. The error is reflected on the square's scale, where it is nearly additive, and only then rooted.
    """
    truths = np.sqrt(np.maximum(square + (errors - errors.mean()), 0))
    return Errors(*2 * (np.sqrt(max(square, 0.0)) - truths,))
