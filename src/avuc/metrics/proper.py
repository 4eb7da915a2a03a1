"""Accuracy, the proper scores (NLL, Brier score) and the mean entropy: averages over predictions."""

from __future__ import annotations

from typing import Any

from avuc.metrics.checks import any_layout
from avuc.metrics.statistics import prediction_statistics


@any_layout
def accuracy(probs: Any, labels: Any) -> float:
    """Return the share of predictions whose most probable class is the label. Higher is better.

    If several classes have the largest probability, the first one is the prediction.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.

    >>> accuracy([[0.8, 0.2], [0.6, 0.4]], [0, 1])
    0.5
    """
    return float(prediction_statistics(probs, labels).correct.mean())


@any_layout
def nll(probs: Any, labels: Any) -> float:
    """Return the mean negative log-likelihood in nats. Lower is better; it is a proper score.

        NLL = −1/N Σ_i log max(p_i[label_i], 1e-12)

    The floor of 1e-12 keeps one wrong probability of 0 from making the mean infinite. Calibrators minimise the NLL
    with the same floor.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.

    >>> round(nll([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.5697
    """
    return float(prediction_statistics(probs, labels).nll.mean())


@any_layout
def brier(probs: Any, labels: Any) -> float:
    """Return the Brier score (Brier 1950), from 0 to 2. Lower is better; it is a proper score.

        Brier = 1/N Σ_i Σ_k (p_ik − 1[k = label_i])²

    The squares are summed over classes, not averaged.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.

    >>> round(brier([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.4
    """
    return float(prediction_statistics(probs, labels).brier.mean())


@any_layout
def mean_entropy(probs: Any, labels: Any) -> float:
    """Return the mean predictive entropy in nats, from 0 to log C.

        1/N Σ_i u_i,    u_i = −Σ_k p_ik log p_ik,    0 log 0 = 0

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers; they are checked but do not change the result.

    >>> round(mean_entropy([[1.0, 0.0], [0.5, 0.5]], [0, 1]), 4)
    0.3466
    """
    return float(prediction_statistics(probs, labels).entropy.mean())
