"""Telling inputs of another kind from those of the training kind by their entropy; and rank correlation with a shift's
intensity. Out-of-distribution is the positive class: it should have the higher entropy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from avuc.core.errors import InputError
from avuc.metrics.ranking import Ranking
from avuc.metrics.statistics import Array, group

__all__ = ["DETECTION", "detection", "detection_of", "spearman"]

DETECTION = ("auroc", "aupr_in", "aupr_out", "detection_accuracy", "fpr95", "wasserstein")


def detection(in_entropy: Any, out_entropy: Any) -> dict[str, float]:
    """AUROC, AUPR (average precision) with either side positive, best mean of TPR and TNR, FPR at 95 % TPR, and the
    Wasserstein-1 distance ∫|F_in − F_out| between the two entropy samples.

    Equal scores are one threshold. `fpr95` is the lowest false-positive rate among thresholds with TPR ≥ 0.95.

    >>> detection([0.1, 0.2, 0.3], [0.3, 0.9])["auroc"]
    0.9166666666666666
    """
    inside, outside = scores_of(in_entropy, "in_entropy"), scores_of(out_entropy, "out_entropy")
    is_out = np.arange(len(inside) + len(outside)) >= len(inside)
    groups = group(np.concatenate([inside, outside]), is_out)
    found = from_counts(groups.values, negative=groups.wrong, positive=groups.right)
    return {name: float(value) for name, value in found.items()}


def spearman(values: Any, intensities: Any) -> float:
    """Spearman's ρ: the correlation of the ranks, equal values sharing their mean rank; NaN when one side is constant.

    >>> round(spearman([0.1, 0.2, 0.3, 0.25], [1, 2, 3, 4]), 4)
    0.8
    """
    a, b = scores_of(values, "values"), scores_of(intensities, "intensities")
    if len(a) != len(b) or len(a) < 2:
        raise InputError(f"spearman needs two samples of equal length ≥ 2, found {len(a)} and {len(b)}")
    ra, rb = (r - r.mean() for r in (_ranks(a), _ranks(b)))
    scale = float(np.sqrt((ra @ ra) * (rb @ rb)))
    return float(np.clip(ra @ rb / scale, -1, 1)) if scale > 0 else float("nan")


def from_counts(values: Array, negative: Array, positive: Array, *, spread: bool = False) -> dict[str, Array]:
    """All detection metrics from the number (..., G) of in- and out-rows at each ascending value.

    With `spread`, a value stands for a cell of rows spread evenly, and the threshold of `fpr95` may lie inside it.
    """
    n_in, n_out = negative.sum(-1, keepdims=True), positive.sum(-1, keepdims=True)
    tpr, fpr = (np.cumsum(counts[..., ::-1], -1) / total for counts, total in ((positive, n_out), (negative, n_in)))
    # a row scores against all negatives below it and half of its equals
    below = np.cumsum(negative, -1)
    gaps = np.abs(below / n_in - np.cumsum(positive, -1) / n_out)[..., :-1]
    reached = (tpr >= 0.95).argmax(-1)[..., None]
    return {
        "auroc": (positive * (below - negative / 2)).sum(-1) / (n_in * n_out)[..., 0],
        "aupr_in": average_precision(negative, positive),
        "aupr_out": average_precision(positive[..., ::-1], negative[..., ::-1]),
        # before the first threshold nothing is flagged: TPR 0, TNR 1
        "detection_accuracy": np.maximum(0.5, ((tpr + 1 - fpr) / 2).max(-1)),
        "fpr95": _inside(tpr, fpr, reached) if spread else np.take_along_axis(fpr, reached, -1)[..., 0],
        "wasserstein": gaps @ np.diff(values),
    }


def detection_of(entropies: Ranking) -> dict[str, float]:
    """The metrics of `detection` for samples too large for one array: inside rows negative, outside rows positive."""
    inside, outside = entropies.negative, entropies.positive
    n_in, n_out = len(inside), len(outside)
    if n_in == 0 or n_out == 0:
        raise InputError(f"both kinds of entropies are needed, found {n_in} in and {n_out} out")
    sums: dict[str, list[float]] = {"auroc": [], "aupr_in": [], "aupr_out": [], "wasserstein": []}
    best, before_in, before_out, last = 0.5, 0.0, 0.0, None
    for values, positive, negative in entropies.groups():
        below_in, below_out = before_in + np.cumsum(negative), before_out + np.cumsum(positive)
        # flagged: the value itself and all above
        flagged_in, flagged_out = n_in - below_in + negative, n_out - below_out + positive
        sums["auroc"].append(float(positive @ (below_in - negative / 2)))
        sums["aupr_in"].append(float(negative @ (below_in / (below_in + below_out))))
        sums["aupr_out"].append(float(positive @ (flagged_out / (flagged_in + flagged_out))))
        best = max(best, float(((flagged_out / n_out + 1 - flagged_in / n_in) / 2).max()))
        if last is not None:
            sums["wasserstein"].append(abs(before_in / n_in - before_out / n_out) * (values[0] - last))
        sums["wasserstein"].append(float(np.abs(below_in / n_in - below_out / n_out)[:-1] @ np.diff(values)))
        before_in, before_out, last = float(below_in[-1]), float(below_out[-1]), float(values[-1])
    flagged = next(k for k in range(max(1, math.floor(0.95 * n_out) - 1), n_out + 1) if k / n_out >= 0.95)
    threshold = outside.values[n_out - flagged : n_out - flagged + 1].astype(np.float64)
    total = {name: math.fsum(parts) for name, parts in sums.items()}
    return {
        "auroc": total["auroc"] / (n_in * n_out),
        "aupr_in": total["aupr_in"] / n_in,
        "aupr_out": total["aupr_out"] / n_out,
        "detection_accuracy": best,
        "fpr95": float(n_in - inside.below(threshold)[0]) / n_in,
        "wasserstein": total["wasserstein"],
    }


def _inside(tpr: Array, fpr: Array, reached: Array) -> Array:
    """The false-positive rate where the line between two thresholds reaches a true-positive rate of 0.95."""
    before = np.maximum(reached - 1, 0)
    (t0, f0), (t1, f1) = ((np.take_along_axis(x, at, -1) for x in (tpr, fpr)) for at in (before, reached))
    t0, f0 = np.where(reached > 0, t0, 0), np.where(reached > 0, f0, 0)
    share = (0.95 - t0) / np.maximum(t1 - t0, np.finfo(np.float64).tiny)
    return np.asarray((f0 + share * (f1 - f0))[..., 0])


def average_precision(hits: Array, misses: Array) -> Array:
    """Σ (recall_i − recall_{i−1}) precision_i over groups from the best score to the worst."""
    tp, fp = np.cumsum(hits, -1), np.cumsum(misses, -1)
    return np.asarray((hits * (tp / np.maximum(tp + fp, 1))).sum(-1) / tp[..., -1])


def _ranks(values: Array) -> Array:
    _, where, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[where]


def scores_of(values: Any, name: str) -> Array:
    array = values.detach().double().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values, np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"{name} must be one-dimensional and not empty, found shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError(f"{name} contains NaN or infinity (position {int(np.flatnonzero(~np.isfinite(array))[0])})")
    return array
