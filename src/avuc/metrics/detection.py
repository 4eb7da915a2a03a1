"""Detection of out-of-distribution (OOD) inputs by their predictive entropy. NumPy only.

OOD inputs are the positive class: they should have the higher entropy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from avuc._old_names import forward
from avuc.core.errors import InputError
from avuc.metrics.arrays import Array, as_scores, comparable
from avuc.metrics.sorted_samples import SortedPair
from avuc.metrics.ties import TieGroups, group_ties_in_parts

__getattr__: Callable[[str], object] = forward(__name__)

DETECTION = ("auroc", "aupr_in", "aupr_out", "detection_accuracy", "fpr95", "wasserstein")


def detection(in_entropy: Any, out_entropy: Any) -> dict[str, float]:
    """Return six measures of how well the entropy separates OOD inputs from in-distribution inputs.

    auroc               area under the ROC curve: P(u_out > u_in) + P(u_out = u_in)/2. Higher is better.
    aupr_in, aupr_out   average precision with in-distribution, or OOD, as the positive class. Higher is better.
    detection_accuracy  max over thresholds of (TPR + TNR)/2. Higher is better.
    fpr95               lowest false-positive rate among thresholds with TPR ≥ 0.95. Lower is better.
    wasserstein         Wasserstein-1 distance ∫ |F_in(u) − F_out(u)| du of the two samples. Higher is better.

    Tied entropies are one threshold. The measures are those of Hendrycks & Gimpel 2017
    (https://arxiv.org/abs/1610.02136) and Liang et al. 2018 (https://arxiv.org/abs/1706.02690).

    Args:
        in_entropy: (N,) entropies of in-distribution inputs; list, NumPy array or tensor.
        out_entropy: (M,) entropies of OOD inputs.

    >>> detection([0.1, 0.2, 0.3], [0.3, 0.9])["auroc"]
    0.9166666666666666
    """
    inside, outside = comparable(
        as_scores(in_entropy, "in_entropy", narrow=True), as_scores(out_entropy, "out_entropy", narrow=True)
    )
    is_out = np.ones(len(inside) + len(outside), bool)
    is_out[: len(inside)] = False
    parts = group_ties_in_parts(np.concatenate([inside, outside]), is_out)
    return _from_parts(parts, len(inside), len(outside))


def detection_from_counts(values: Array, negative: Array, positive: Array, *, spread: bool = False) -> dict[str, Array]:
    """Return all detection metrics from counts.

    Args:
        values: (G,) ascending entropies.
        negative: (..., G) in-distribution inputs with each entropy.
        positive: (..., G) OOD inputs with each entropy.
        spread: whether a value stands for a group of inputs spread evenly around it; the threshold of `fpr95` may then
            lie inside a group.
    """
    return detection_and_gains(values, negative, positive, spread=spread)[0]


def detection_and_gains(
    values: Array, negative: Array, positive: Array, *, spread: bool = False
) -> tuple[dict[str, Array], Array]:
    """Return `detection_from_counts`, and TPR − FPR (..., G) of every threshold from the highest entropy down."""
    n_in, n_out = negative.sum(-1, keepdims=True), positive.sum(-1, keepdims=True)
    below_in, below_out = np.cumsum(negative, -1), np.cumsum(positive, -1)
    # inputs flagged as OOD: those with this entropy and above; as rates, from the highest entropy down
    flagged_in, flagged_out = n_in - below_in + negative, n_out - below_out + positive
    tpr, fpr = flagged_out[..., ::-1] / n_out, flagged_in[..., ::-1] / n_in
    gaps = np.abs(below_in / n_in - below_out / n_out)[..., :-1]
    reached = (tpr >= 0.95).argmax(-1)[..., None]
    gains = tpr - fpr
    metrics = {
        # an OOD input wins against all in-distribution inputs below it and against half of those tied with it
        "auroc": (positive * (below_in - negative / 2)).sum(-1) / (n_in * n_out)[..., 0],
        "aupr_in": _mean_precision(negative, below_in, below_out),
        "aupr_out": _mean_precision(positive, flagged_out, flagged_in),
        # before the first threshold nothing is flagged: TPR 0, TNR 1
        "detection_accuracy": np.maximum(0.5, (gains.max(-1) + 1) / 2),
        "fpr95": _fpr95_inside(tpr, fpr, reached) if spread else np.take_along_axis(fpr, reached, -1)[..., 0],
        "wasserstein": gaps @ np.diff(values),
    }
    return metrics, gains


def detection_from_sorted(entropies: SortedPair) -> dict[str, float]:
    """Return the metrics of `detection` for samples that are too large for float64 copies.

    Args:
        entropies: in-distribution entropies as its negative sample, OOD entropies as its positive one.
    """
    inside, outside = entropies.negative, entropies.positive
    n_in, n_out = len(inside), len(outside)
    if n_in == 0 or n_out == 0:
        raise InputError(f"both kinds of entropies are needed, found {n_in} in and {n_out} out")
    return _from_parts(entropies.tie_groups(), n_in, n_out)


def _from_parts(parts: Iterable[TieGroups], n_in: int, n_out: int) -> dict[str, float]:
    """Return the metrics from groups of ascending entropy, in parts; `right` counts OOD inputs."""
    sums: dict[str, list[float]] = {"auroc": [], "aupr_in": [], "aupr_out": [], "wasserstein": []}
    # with the threshold above all entropies nothing is flagged: TPR 0, TNR 1
    best, fpr95, before_in, before_out, last, falling = 0.5, 1.0, 0.0, 0.0, None, True
    for values, positive, negative in parts:
        below_in, below_out = before_in + np.cumsum(negative), before_out + np.cumsum(positive)
        below = below_in + below_out
        # inputs flagged as OOD: those with this entropy and above
        flagged_out = n_out - below_out + positive
        # not @: BLAS would start threads for each part, which takes longer than the sum
        sums["auroc"].append(float((positive * (below_in - negative / 2)).sum()))
        sums["aupr_in"].append(float((negative * (below_in / below)).sum()))
        sums["aupr_out"].append(float((positive * (flagged_out / (n_in + n_out - below + positive + negative))).sum()))
        if falling:  # the rates fall; the last threshold with TPR ≥ 0.95 counts
            reached = np.count_nonzero(flagged_out / n_out >= 0.95)
            fpr95 = float(n_in - below_in[reached - 1] + negative[reached - 1]) / n_in if reached else fpr95
            falling = reached == len(values)
        # the shares of the two samples up to each entropy: TNR and 1 − TPR of a threshold just above it
        gaps = below_in / n_in - below_out / n_out
        best = max(best, float(gaps.max() + 1) / 2)
        if last is not None:
            sums["wasserstein"].append(abs(before_in / n_in - before_out / n_out) * (values[0] - last))
        sums["wasserstein"].append(float((np.abs(gaps[:-1]) * np.diff(values)).sum()))
        before_in, before_out, last = float(below_in[-1]), float(below_out[-1]), float(values[-1])
    total = {name: math.fsum(parts) for name, parts in sums.items()}
    return {
        "auroc": total["auroc"] / (n_in * n_out),
        "aupr_in": total["aupr_in"] / n_in,
        "aupr_out": total["aupr_out"] / n_out,
        "detection_accuracy": best,
        "fpr95": fpr95,
        "wasserstein": total["wasserstein"],
    }


def _fpr95_inside(tpr: Array, fpr: Array, reached: Array) -> Array:
    """Return the false-positive rate where the line between two thresholds reaches a true-positive rate of 0.95."""
    before = np.maximum(reached - 1, 0)
    (t0, f0), (t1, f1) = ((np.take_along_axis(x, at, -1) for x in (tpr, fpr)) for at in (before, reached))
    t0, f0 = np.where(reached > 0, t0, 0), np.where(reached > 0, f0, 0)
    share = (0.95 - t0) / np.maximum(t1 - t0, np.finfo(np.float64).tiny)
    return np.asarray((f0 + share * (f1 - f0))[..., 0])


def _mean_precision(hits: Array, true: Array, false: Array) -> Array:
    """Return the average precision Σ (recall_i − recall_{i−1}) precision_i.

    Args:
        hits: (..., G) positive inputs of each group.
        true: (..., G) positive inputs that are flagged with that group and with all better ones.
        false: (..., G) negative inputs that are flagged.
    """
    flagged = true + false
    return np.asarray((hits * (true / np.maximum(flagged, 1, out=flagged))).sum(-1) / hits.sum(-1))
