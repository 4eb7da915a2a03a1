"""The estimation error of calibration errors, for which the percentile bootstrap fails.

A calibration error θ = Σ_b |g_b| sums absolute gaps g_b over bins and is estimated by θ̂ = Σ_b |ĝ_b|. Because of the
absolute values, noise adds up instead of cancelling: the estimate is too high, and a resampled estimate is too high
once more. The percentile interval of a well calibrated model therefore nearly always lies above the truth. This holds:

    Σ_b sign(g_b)(ĝ_b − g_b)  ≤  θ̂ − θ  ≤  the same sum, with |ĝ_b − g_b| in the bins where g_b may be 0

The upper end of the interval uses the left side, the lower end the right side. "May be 0" means that |ĝ_b| is at most
κ standard errors (the directional derivative of Fang & Santos 2019, https://doi.org/10.1093/restud/rdy049). The
interval always contains the estimate, and it is too wide rather than too narrow.

Resamples of a bin whose predictions are all right, or all wrong, show no noise, and its gap would count as exact. Of 15
bins of equal mass, most are like that if 1 % of 300 predictions are wrong. `hidden_spread` gives such bins the noise
that their stated confidence implies.

Terms with few mistakes have too little noise, not none: resamples of one mistake where three are expected vary by one
mistake, and not by √3. `Implied` noise replaces theirs for the lower end, where it is larger and the term may be 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from avuc.metrics.arrays import Array
from avuc.metrics.binning import BinTable
from avuc.metrics.resampling.percentile import Errors

# κ: a gap within this many standard errors of 0 may be 0
KAPPA = 3.0
# resamples that estimate the standard errors
PILOT = 64
# a smaller gap is a rounding error, which has no sign
ROUNDING = 1e-12


class Implied(NamedTuple):
    """The noise of terms if every prediction is right with a probability of its confidence.

    spread  (K,) standard error of each term, if rows are independent
    draw    returns this noise for so many resamples, (B, K); rows of a group count as one
    """

    spread: Array
    draw: Callable[[int], Array]


class AbsoluteSum:
    """Collects resampled terms g_b of Σ_b |g_b| in blocks and returns its errors, without keeping the terms."""

    def __init__(
        self, estimate: Array, hidden: Array | None = None, seed: int = 0, implied: Implied | None = None
    ) -> None:
        """Args:
        estimate: (K,) signed terms ĝ_b of the data itself.
        hidden: (K,) standard errors of terms whose resamples show no noise, 0 for the others; None: all are 0.
        seed: of the noise of these terms; models on the same resamples have the same one.
        implied: noise for terms that may be 0 and whose resamples have less of it; None: resamples show all noise.
        """
        self.estimate: Array = estimate
        self._hidden = np.zeros(len(estimate)) if hidden is None else hidden
        self._generator = torch.Generator().manual_seed(seed)
        self._implied = implied
        self._quiet = np.zeros(len(estimate), bool)
        self._may_be_zero = np.zeros(0, bool)
        self._pilot: list[Array] = []
        self._over: list[Array] = []
        self._under: list[Array] = []
        self._moved: list[Array] = []

    def add(self, terms: Array) -> None:
        """Add the signed terms of a block of resamples, (B, K)."""
        noise = terms - self.estimate
        if len(self._may_be_zero) == 0:
            self._pilot.append(noise)
            if sum(map(len, self._pilot)) >= PILOT:
                self._choose_bins()
        else:
            self._convert(noise)

    def errors(self) -> Errors:
        """Return the errors of all resamples so far."""
        self._choose_bins()
        return Errors(np.concatenate(self._over), np.concatenate(self._under))

    def moved(self) -> Array:
        """Return Σ_b of the noise for the lower end, for each resample so far."""
        self._choose_bins()
        return np.concatenate(self._moved)

    def _choose_bins(self) -> None:
        if self._pilot:
            pilot = np.concatenate(self._pilot)
            self._pilot = []
            shown = np.maximum(pilot.std(0), self._hidden)
            spread = shown if self._implied is None else np.maximum(shown, self._implied.spread)
            self._may_be_zero = np.abs(self.estimate) <= KAPPA * spread
            self._quiet = self._may_be_zero & (spread > shown)
            self._convert(pilot)

    def _convert(self, noise: Array) -> None:
        straight = noise * np.sign(np.where(np.abs(self.estimate) > ROUNDING, self.estimate, 0.0))
        self._under.append(straight.sum(-1))
        if self._hidden.any():
            drawn = torch.randn(noise.shape, generator=self._generator, dtype=torch.float64, device="cpu").numpy()
            noise = np.where(self._hidden > 0, drawn * self._hidden, noise)
        if self._implied is not None and self._quiet.any():
            noise = np.where(self._quiet, self._implied.draw(len(noise)), noise)
        self._over.append(np.where(self._may_be_zero, np.abs(noise), straight).sum(-1))
        self._moved.append(noise.sum(-1))


def hidden_spread(rows: Array, right: Array, stated: Array, bins: int) -> Array:
    """Return the standard errors (bins,) of the terms of the adaptive error in bins with one outcome, 0 in the others.

    For a bin with n of N predictions and the mean confidence c it is √(n c (1 − c)) / N.

    Args:
        rows: (G + 1,) cumulative number of predictions, by ascending confidence.
        right: (G + 1,) cumulative number of correct predictions.
        stated: (G + 1,) cumulative sum of confidence.
        bins: number of bins of equal mass.

    >>> sums = np.arange(5.0)
    >>> hidden_spread(sums, np.array([0.0, 1, 1, 2, 3]), 0.8 * sums, bins=2).round(4)
    array([0.    , 0.1414])
    """
    cuts = np.linspace(0, rows[-1], bins + 1)
    many, hits, value = (np.diff(np.interp(cuts, rows, sums)) for sums in (rows, right, stated))
    confidence = np.clip(value / many, 0, 1)
    spread = np.sqrt(many * confidence * (1 - confidence)) / rows[-1]
    return np.where(np.minimum(hits, many - hits) > 1e-9, 0.0, spread)


def maximum_errors(table: BinTable, replicates: int, seed: int, least_spread: Array | None = None) -> Errors:
    """Return resampled errors of the maximum calibration error.

    A bin with one prediction looks the same in every resample. The noise of the bins is therefore drawn from a normal
    distribution, with the larger of the variances that accuracy and confidence imply. Every bin whose gap may be the
    largest takes part.

    Args:
        table: the bins of confidence.
        replicates: number of resamples.
        seed: of the normal numbers.
        least_spread: (bins,) standard errors of the gaps if rows of a group are not independent; None: they are.
    """
    held = table.rows > 0
    rows, rate, stated = table.rows[held], table.event[held] / table.rows[held], table.value[held] / table.rows[held]
    gap = np.abs(rate - stated)
    # float32 rounding can give a confidence of 1.0000001
    spread = np.sqrt(np.maximum(np.maximum(rate * (1 - rate), stated * (1 - stated)), 0) / rows)
    if least_spread is not None:
        spread = np.maximum(spread, least_spread[held])
    candidate = gap + KAPPA * spread >= (gap - KAPPA * spread).max()
    generator = torch.Generator().manual_seed(seed)
    shape = replicates, int(candidate.sum())
    noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").numpy()
    worst = np.abs(noise * spread[candidate]).max(-1)
    return Errors(worst, -worst)


def grouped_spread(residual: Array, bin_index: Array, groups: Array, bins: int) -> Array:
    """Return the standard error (bins,) of the mean residual in each bin, if rows of a group are not independent.

    Args:
        residual: (N,) correct − confidence.
        bin_index: (N,) bin of each row.
        groups: (N,) numbers of groups 0, 1, ….
        bins: number of bins.
    """
    rows = np.maximum(np.bincount(bin_index, minlength=bins), 1)
    rest = residual - (np.bincount(bin_index, residual, bins) / rows)[bin_index]
    cell, member = np.unique(bin_index + bins * groups, return_inverse=True)
    at, sums = cell % bins, np.bincount(member, rest)
    many = np.bincount(at, minlength=bins)
    spread = np.sqrt(np.bincount(at, sums**2, bins) * many / np.maximum(many - 1, 1)) / rows
    # rows of a single group say nothing about other groups, so such a bin counts as one row
    return np.where(many > 1, spread, 0.5)


def root_errors(square: float, errors: Array) -> Errors:
    """Return resampled errors of √max(0, square), for the debiased calibration error.

    A resampled square contains the noise of the data and of the resample but is debiased for one of them: its mean is
    too high, so only its spread is used. The error is reflected on the scale of the square, where it is nearly
    additive; the root is taken afterwards.

    Args:
        square: the estimated square; it can be negative.
        errors: (replicates,) square − resampled square.
    """
    truths = np.sqrt(np.maximum(square + (errors - errors.mean()), 0))
    return Errors(*2 * (np.sqrt(max(square, 0.0)) - truths,))
