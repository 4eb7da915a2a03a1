"""Accuracy, the proper scores, and the mean entropy: averages over rows."""

from __future__ import annotations

from typing import Any

from avuc.metrics.statistics import summarise

__all__ = ["accuracy", "brier", "mean_entropy", "nll"]


def accuracy(probs: Any, labels: Any) -> float:
    """Share of rows whose most probable class is the label; of equal probabilities the first class counts.

    >>> accuracy([[0.8, 0.2], [0.6, 0.4]], [0, 1])
    0.5
    """
    return float(summarise(probs, labels).correct.mean())


def nll(probs: Any, labels: Any) -> float:
    """Negative log-likelihood −1/N Σ log max(p[label], 1e-12), in nats; calibrators minimise it with the same floor.

    >>> round(nll([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.5697
    """
    return float(summarise(probs, labels).nll.mean())


def brier(probs: Any, labels: Any) -> float:
    """Brier score 1/N Σ_i Σ_k (p_ik − 1[k = label_i])²: summed over classes, so between 0 and 2.

    >>> round(brier([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.4
    """
    return float(summarise(probs, labels).brier.mean())


def mean_entropy(probs: Any, labels: Any) -> float:
    """Mean predictive entropy 1/N Σ_i −Σ_k p_ik log p_ik, in nats; the labels are only checked.

    >>> round(mean_entropy([[1.0, 0.0], [0.5, 0.5]], [0, 1]), 4)
    0.3466
    """
    return float(summarise(probs, labels).entropy.mean())
