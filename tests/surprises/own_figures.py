"""The figures again, in plain float64 loops that share no code with avuc: what every case is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["auroc", "avuc", "best_temperature", "entropies", "expected_calibration_error", "figures", "softmax"]

FLOOR = 1e-12  # the probability below which the log-likelihood is cut, as docs/design.md defines it
BINS = 15
Rows = Sequence[Sequence[float]]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row by row, along the last axis."""
    logits = np.asarray(logits, np.float64)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def figures(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, NLL, Brier score, ECE and UCE with 15 bins, mean entropy and mean confidence."""
    rows, count = [[float(p) for p in row] for row in probs], len(labels)
    classes = len(rows[0])
    right, nll, brier, entropy, confidence = [], [], [], [], []
    for row, label in zip(rows, labels, strict=True):
        top = max(range(classes), key=lambda k: row[k])  # the first of equals
        right.append(top == int(label))
        confidence.append(row[top])
        nll.append(-math.log(max(row[int(label)], FLOOR)))
        brier.append(sum((p - (k == int(label))) ** 2 for k, p in enumerate(row)))
        entropy.append(-sum(p * math.log(p) for p in row if p > 0))
    share = [u / math.log(classes) for u in entropy]
    return {
        "accuracy": sum(right) / count,
        "nll": sum(nll) / count,
        "brier": sum(brier) / count,
        "ece": expected_calibration_error(confidence, right),
        "uce": expected_calibration_error(share, [not r for r in right]),
        "mean_entropy": sum(entropy) / count,
        "mean_confidence": sum(confidence) / count,
    }


def expected_calibration_error(stated: Sequence[float], happened: Sequence[bool]) -> float:
    """Σ over the bins ((l−1)/15, l/15] of |Σ happened − Σ stated| / N."""
    gaps = [0.0] * BINS
    for value, event in zip(stated, happened, strict=True):
        place = min(max(math.ceil(value * BINS) - 1, 0), BINS - 1)
        gaps[place] += event - value
    return sum(abs(gap) for gap in gaps) / len(stated)


def auroc(inside: Sequence[float], outside: Sequence[float]) -> float:
    """Share of pairs in which the outside entropy is the larger one; equal ones count half."""
    wins = sum((o > i) + 0.5 * (o == i) for i in inside for o in outside)
    return wins / (len(inside) * len(outside))


def avuc(probs: np.ndarray, labels: np.ndarray, threshold: float) -> float:
    """log(1 + (AU + IC) / (AC + IU)) over the paper's soft cells."""
    good = bad = 0.0
    for row, label in zip(probs, labels, strict=True):
        top = int(np.argmax(row))
        u = -sum(p * math.log(p) for p in row if p > 0)
        certain = u <= threshold
        weight = (row[top] if top == label else 1 - row[top]) * (1 - math.tanh(u) if certain else math.tanh(u))
        if (top == label) == certain:
            good += weight
        else:
            bad += weight
    return math.log1p(bad / good)


def entropies(probs: np.ndarray) -> list[float]:
    return [-sum(p * math.log(p) for p in row if p > 0) for row in probs.tolist()]


def best_temperature(logits: np.ndarray, labels: np.ndarray, low: float = 0.05, high: float = 20.0) -> float:
    """The T that minimises the mean NLL of softmax(logits / T), by golden section on log T."""
    chosen = np.arange(len(labels)), np.asarray(labels)

    def loss(x: float) -> float:
        z = np.asarray(logits, np.float64) / math.exp(x)
        z = z - z.max(1, keepdims=True)
        return float(np.mean(np.log(np.exp(z).sum(1)) - z[chosen]))

    return math.exp(_golden(loss, math.log(low), math.log(high)))


def _golden(loss: Callable[[float], float], a: float, b: float) -> float:
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(80):
        c, d = b - ratio * (b - a), a + ratio * (b - a)
        if loss(c) < loss(d):
            b = d
        else:
            a = c
    return (a + b) / 2
