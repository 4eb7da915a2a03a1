"""Uncertainty of predictions: entropy, expected entropy, mutual information, variation ratio, and thresholds.

Entropies are in nats, differentiable, and computed in float32 or better for inputs of any precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError

__all__ = [
    "entropy",
    "expected_entropy",
    "highest_certain",
    "midpoint_threshold",
    "mutual_information",
    "variation_ratio",
]

# Rounding of an entropy in float32: two ways to compute the entropy of one prediction differ by less than this.
RELATIVE_ROUNDING, ABSOLUTE_ROUNDING = 2.0**-18, 2.0**-20
# numbers of S × N × C probabilities whose entropies are computed at once
SMALL = 1 << 22


def entropy(probs: Tensor, dim: int = -1) -> Tensor:
    """Return the Shannon entropy −Σ p log p in nats, with 0 log 0 = 0.

    The gradient at p = 0 is 0, not infinite.

    Args:
        probs: probabilities of any shape.
        dim: dimension of the classes (default −1); the result does not have it.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000])
    """
    probs = _at_least_float32(probs)
    # −p log p has slope +inf at 0. A probability of exactly 0 is an underflow of softmax, and the product with the
    # slope of softmax has the limit 0. Using 1 log 1 there gives this limit instead of inf · 0 = NaN.
    safe = torch.where(probs == 0, torch.ones_like(probs), probs)
    return (-safe * safe.log()).sum(dim)


def highest_certain(threshold: Any) -> Any:
    """Return the largest uncertainty that counts as certain: the threshold plus an allowance for rounding.

        threshold·(1 + 2⁻¹⁸) + 2⁻²⁰

    Losses compute entropies in float32 from logits, metrics in float64 from probabilities, calibrators in float64 from
    logits. All compare with this number, so a prediction whose entropy equals the threshold is certain in all of them.

    Args:
        threshold: a float, an array or a tensor, in nats.

    >>> highest_certain(1.0) - 1.0 < 5e-6
    True
    """
    return threshold * (1 + RELATIVE_ROUNDING) + ABSOLUTE_ROUNDING


def midpoint_threshold(
    accurate_sum: Any,
    inaccurate_sum: Any,
    accurate_count: Any,
    inaccurate_count: Any,
    *,
    low: Any = None,
    high: Any = None,
) -> Any:
    """Return the middle between the mean uncertainties of accurate and of inaccurate predictions.

        u_th = (ū_accurate + ū_inaccurate) / 2

    If one of the two groups is empty, u_th is the mean of the other. There must be at least one prediction.

    Args:
        accurate_sum: summed uncertainty of the accurate predictions; any shape, for many thresholds at once.
        inaccurate_sum: summed uncertainty of the inaccurate predictions; same shape.
        accurate_count: number of accurate predictions, or their summed weight; same shape.
        inaccurate_count: number of inaccurate predictions, or their summed weight; same shape.
        low: smallest uncertainty. Rounding can put the mean of equal uncertainties just below all of them, which
            would make them all uncertain; `low` and `high` prevent that. Default None: no bound.
        high: largest uncertainty. Default None: no bound.

    Returns:
        A tensor if `accurate_sum` is a tensor, otherwise a NumPy array (float64).

    >>> float(midpoint_threshold(0.4, 1.8, 4, 2))  # means 0.1 and 0.9
    0.5
    >>> midpoint_threshold(torch.tensor(0.4), torch.tensor(0.0), torch.tensor(4), torch.tensor(0))
    tensor(0.1000)
    """
    xp: Any = torch if isinstance(accurate_sum, Tensor) else np
    if xp is np:
        accurate_count, inaccurate_count = (np.asarray(n, np.float64) for n in (accurate_count, inaccurate_count))
    some_accurate, some_inaccurate = accurate_count > 0, inaccurate_count > 0
    accurate_mean = accurate_sum / xp.where(some_accurate, accurate_count, 1)
    inaccurate_mean = inaccurate_sum / xp.where(some_inaccurate, inaccurate_count, 1)
    overall = (accurate_sum + inaccurate_sum) / (accurate_count + inaccurate_count)
    threshold = xp.where(some_accurate & some_inaccurate, (accurate_mean + inaccurate_mean) / 2, overall)
    return threshold if low is None and high is None else xp.clip(threshold, low, high)


def expected_entropy(sample_probs: Tensor) -> Tensor:
    """Return the mean over samples of each sample's entropy, (N): the uncertainty that is in the data.

        (1/S) Σ_s H(p_s)

    Args:
        sample_probs: probabilities of S posterior samples, (S, N, C).

    >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]))
    tensor([0.3466])
    """
    samples = _samples(sample_probs)
    if samples.numel() <= SMALL:
        return entropy(samples).mean(0)
    # one sample at a time: intermediate results of N × C numbers instead of S × N × C
    return torch.stack([entropy(sample) for sample in samples]).mean(0)


def mutual_information(sample_probs: Tensor) -> Tensor:
    """Return the mutual information of prediction and weights, (N): the uncertainty that is in the weights.

        H(p̄) − (1/S) Σ_s H(p_s), p̄ the mean of the samples' probabilities; rounding errors below 0 become 0.

    Args:
        sample_probs: probabilities of S posterior samples, (S, N, C).

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    tensor([0.6931])
    """
    probs = _at_least_float32(_samples(sample_probs))
    return (entropy(probs.mean(0)) - expected_entropy(probs)).clamp(min=0)


def variation_ratio(sample_probs: Tensor) -> Tensor:
    """Return the fraction of samples whose predicted class is not the most frequent one, (N); it has no gradient.

    Args:
        sample_probs: probabilities of S posterior samples, (S, N, C).

    >>> variation_ratio(torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.3, 0.7]]]))
    tensor([0.3333])
    """
    probs = _samples(sample_probs)
    samples, rows, classes = probs.shape
    # one sample at a time: N × C counts instead of S × N × C
    votes = torch.zeros(rows, classes, device=probs.device)
    for sample in probs:
        votes.scatter_add_(1, sample.argmax(-1, keepdim=True), torch.ones(rows, 1, device=probs.device))
    return 1 - votes.amax(-1) / samples


def _at_least_float32(probs: Tensor) -> Tensor:
    if not probs.is_floating_point():
        raise InputError(f"probabilities must be a floating-point tensor, found {probs.dtype}: convert with .float()")
    return probs if probs.dtype in (torch.float32, torch.float64) else probs.float()


def _samples(sample_probs: Tensor) -> Tensor:
    if sample_probs.ndim != 3 or 0 in (sample_probs.shape[0], sample_probs.shape[2]):
        raise InputError(
            f"probabilities of samples must have shape (S, N, C) with S, C ≥ 1, found {tuple(sample_probs.shape)}; "
            "for one sample, use probs[None]"
        )
    return sample_probs
