"""Bootstrap intervals of any function of probabilities and labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, from_numpy

from avuc.core.frames import check_all_rows
from avuc.core.tasks import IGNORE_INDEX
from avuc.metrics.arrays import Array
from avuc.metrics.checks import metric_rows
from avuc.metrics.dependent_rows import groups_of_labels, resampler
from avuc.metrics.resampling.one_outcome import units_within, widened, widened_difference
from avuc.metrics.resampling.percentile import (
    Errors,
    Interval,
    check_bootstrap,
    clip_to_range,
    difference_interval,
    error_interval,
)
from avuc.metrics.resampling.rows import resampled_errors, resampled_rows, wider
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.suite import METRICS


def bootstrap(
    metric: Callable[..., float],
    probs: Any,
    labels: Any,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
    groups: Any = None,
) -> Interval:
    """Return a bootstrap interval of any function `metric(probs, labels)`.

    Metrics of `METRICS` are resampled by weights, which is fast, and have the intervals of `intervals`; with more than
    100,000 independent rows, or 17 million probabilities, they resample random groups of rows, as `paired_intervals`
    does. Other functions are called
    on each resample and have percentile intervals; these have no width if all rows have one outcome.

    Args:
        metric: function of (N, C) probabilities and (N,) labels that returns a number; other layouts are rows here.
        probs: (N, C) probabilities, or another layout that metrics take; list, NumPy array or tensor.
        labels: (N,) class numbers.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        class_dim: dimension of the classes in `probs`. Default None: the last one for (N, C), else 1.
        ignore_index: rows with this label are left out (default −100); None: no row is.
        groups: the group of each row, as in `intervals`. Default None: of dense labels, those of one image are a group.

    >>> from avuc.metrics import accuracy
    >>> bootstrap(accuracy, [[0.8, 0.2], [0.6, 0.4]] * 50, [0, 1] * 50, replicates=200).value
    0.5
    """
    check_bootstrap(replicates, level)
    rows = metric_rows(probs, labels, class_dim=class_dim, ignore_index=ignore_index)
    check_all_rows(groups, "groups", probs=probs)
    units = groups_of_labels(labels, ignore_index, len(rows.labels), groups)
    name, statistics = _name(metric), prediction_statistics(*rows)
    interval = clip_to_range(name, error_interval(*_replicate(metric, *rows, replicates, seed, units), level))
    if name is None:
        return interval
    accuracy, many = float(statistics.correct.mean()), _units(statistics, units)
    return widened({name: interval}, accuracy, many, level, partial(units_within, statistics, "auto", units))[name]


def paired_bootstrap(
    metric: Callable[..., float],
    probs_a: Any,
    probs_b: Any,
    labels: Any,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
    groups: Any = None,
) -> Interval:
    """Return a bootstrap interval of metric(a) − metric(b) for two models on the same inputs.

    Both models are evaluated on the same resamples. The difficulty of the drawn inputs cancels, so the interval is much
    narrower than one from two independent bootstraps. If it does not contain 0, the models differ significantly at
    this level.

    Args:
        metric: function of (N, C) probabilities and (N,) labels that returns a number; other layouts are rows here.
        probs_a: (N, C) probabilities of the first model, or another layout that metrics take.
        probs_b: those of the second model, for the same inputs in the same order.
        labels: (N,) class numbers.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        class_dim: dimension of the classes in both. Default None: the last one for (N, C), else 1.
        ignore_index: rows with this label are left out (default −100); None: no row is.
        groups: the group of each row, as in `intervals`. Default None: of dense labels, those of one image are a group.

    >>> from avuc.metrics import nll
    >>> a, b = [[0.8, 0.2]] * 40, [[0.7, 0.3]] * 40
    >>> paired_bootstrap(nll, a, b, [0] * 40, replicates=100).high < 0
    True
    """
    check_bootstrap(replicates, level)
    both = [metric_rows(probs, labels, class_dim=class_dim, ignore_index=ignore_index) for probs in (probs_a, probs_b)]
    check_all_rows(groups, "groups", probs_a=probs_a, probs_b=probs_b)
    units = groups_of_labels(labels, ignore_index, len(both[0].labels), groups)
    (a, error_a), (b, error_b) = (_replicate(metric, *rows, replicates, seed, units) for rows in both)
    name, change = _name(metric), difference_interval(_name(metric), a, error_a, b, error_b, level)
    if name is None or (change.value == 0 and np.array_equal(np.asarray(both[0].probs), np.asarray(both[1].probs))):
        return change
    first, second = (prediction_statistics(*rows) for rows in both)
    accuracies = float(first.correct.mean()), float(second.correct.mean())
    ratios = [(value, partial(units_within, each, "auto", units)) for value, each in ((a, first), (b, second))]
    return widened_difference(name, change, accuracies, _units(first, units), level, ratios)


def _replicate(
    metric: Callable[..., float], probs: Any, labels: Any, replicates: int, seed: int, groups: Array | None
) -> tuple[float, Errors]:
    value, name = float(metric(probs, labels)), _name(metric)
    if name is not None:
        statistics = prediction_statistics(probs, labels)
        sampler = resampler(probs, statistics, [name], seed=seed, groups=groups)
        return value, resampled_errors([sampler], replicates, seed, groups=groups)[0][name]
    indices = resampled_rows(len(prediction_statistics(probs, labels)), replicates, seed, groups)
    samples = np.array([metric(_take(probs, index), _take(labels, index)) for index in indices], np.float64)
    errors = Errors(value - samples, value - samples)
    return value, errors if groups is None else wider(errors, int(groups.max()) + 1)


def _units(statistics: Statistics, groups: Array | None) -> int:
    return len(statistics) if groups is None else int(groups.max()) + 1


def _name(metric: Callable[..., float]) -> str | None:
    return next((name for name, known in METRICS.items() if known is metric), None)


def _take(values: Any, index: Array) -> Tensor | Array:
    if isinstance(values, Tensor):
        return values[from_numpy(index).to(values.device)]
    return np.asarray(np.asarray(values)[index])
