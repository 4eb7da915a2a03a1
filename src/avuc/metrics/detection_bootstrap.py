"""Bootstrap confidence intervals of the metrics of `detection`."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from avuc.metrics.arrays import Array, as_scores
from avuc.metrics.detection import detection, detection_from_counts, detection_from_sorted
from avuc.metrics.resampling.grouped_rows import grouped_detection_errors
from avuc.metrics.resampling.percentile import Errors, Interval, check_bootstrap, error_interval
from avuc.metrics.resampling.rows import BLOCK, Advance, resampled_rows
from avuc.metrics.sorted_samples import SortedPair


def detection_intervals(
    in_entropy: Any,
    out_entropy: Any,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    advance: Advance | None = None,
) -> dict[str, Interval]:
    """Return percentile intervals of the metrics of `detection`; each of the two samples is resampled.

    Args:
        in_entropy: (N,) entropies of in-distribution inputs; list, NumPy array or tensor.
        out_entropy: (M,) entropies of OOD inputs.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        advance: called with the number of resamples that were just finished.

    >>> inside, outside = [0.1, 0.2, 0.3] * 20, [0.25, 0.8, 0.9] * 20
    >>> interval = detection_intervals(inside, outside, replicates=200)["auroc"]
    >>> interval.low < interval.value < interval.high
    True
    """
    check_bootstrap(replicates, level)
    values = detection(in_entropy, out_entropy)
    sides = as_scores(in_entropy, "in_entropy"), as_scores(out_entropy, "out_entropy")
    distinct, where = np.unique(np.concatenate(sides), return_inverse=True)
    index = where[: len(sides[0])], where[len(sides[0]) :]
    # the two samples are drawn independently
    drawn = zip(*(resampled_rows(len(side), replicates, seed + k) for k, side in enumerate(sides)), strict=True)
    errors: dict[str, list[Array]] = {name: [] for name in values}
    step = max(1, BLOCK // len(distinct))
    while resamples := list(islice(drawn, step)):
        counts = [
            np.stack([np.bincount(group[pair[k]], minlength=len(distinct)) for pair in resamples])
            for k, group in enumerate(index)
        ]
        for name, samples in detection_from_counts(distinct, negative=counts[0], positive=counts[1]).items():
            errors[name].append(values[name] - samples)
        if advance is not None:
            advance(len(resamples))
    both = {name: np.concatenate(parts) for name, parts in errors.items()}
    return {name: error_interval(values[name], Errors(error, error), level) for name, error in both.items()}


def blockwise_detection_intervals(
    entropies: SortedPair, *, replicates: int, level: float = 0.95, seed: int = 0, advance: Advance | None = None
) -> dict[str, Interval]:
    """Return `detection_intervals` for large samples; groups of entropies are resampled.

    Args:
        entropies: in-distribution entropies as its negative sample, OOD entropies as its positive one.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        advance: called with the number of resamples that were just finished.
    """
    check_bootstrap(replicates, level)
    values = detection_from_sorted(entropies)
    errors = grouped_detection_errors(entropies, replicates, seed, advance)
    return {name: error_interval(value, errors[name], level) for name, value in values.items()}
