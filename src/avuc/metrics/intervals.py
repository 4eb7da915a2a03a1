"""Bootstrap confidence intervals of metrics, and of the difference between two models.

Predictions are drawn with replacement. The intervals are percentile intervals, except for calibration errors (ECE,
class-wise, adaptive and debiased ECE, UCE, MCE): for these the percentile interval of a well calibrated model misses
the truth, see `avuc.metrics.resampling.absolute_error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, from_numpy

from avuc._old_names import forward
from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.metrics.arrays import Array
from avuc.metrics.blockwise import BlockwiseStatistics
from avuc.metrics.checks import metric_rows, rows_of
from avuc.metrics.resampling.grouped_rows import grouped_errors
from avuc.metrics.resampling.percentile import (
    Errors,
    Interval,
    check_bootstrap,
    clip_to_range,
    difference_interval,
    error_interval,
)
from avuc.metrics.resampling.rows import Advance, RowResampler, resampled_errors, resampled_rows
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.suite import METRICS, HasProbabilities, from_statistics
from avuc.metrics.threshold import Threshold

__getattr__: Callable[[str], object] = forward(__name__)


@dataclass(frozen=True)
class Bootstrap:
    """Settings of a bootstrap.

    replicates  number of resamples
    level       confidence level
    seed        of the resamples
    threshold   entropy in nats up to which a prediction is certain; "auto": recomputed on each resample
    bins        number of bins of the calibration errors
    advance     called with the number of resamples that were just finished; None: not called
    """

    replicates: int = 1000
    level: float = 0.95
    seed: int = 0
    threshold: Threshold = "auto"
    bins: int = 15
    advance: Advance | None = None

    def __post_init__(self) -> None:
        check_bootstrap(self.replicates, self.level)


def intervals(
    predictions: HasProbabilities,
    names: Iterable[str] | None = None,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    threshold: Threshold = "auto",
    bins: int = 15,
) -> dict[str, Interval]:
    """Return confidence intervals of metrics, all from the same resamples.

    Args:
        predictions: anything with `probs` and `labels` of a layout that metrics take, such as `avuc.Predictions`.
        names: metrics of `METRICS`; None: all.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        threshold: entropy in nats up to which a prediction is certain; "auto": recomputed on each resample.
        bins: number of bins of the calibration errors.

    >>> from avuc.predictions import Predictions
    >>> import torch
    >>> p = Predictions(torch.tensor([[0.8, 0.2], [0.6, 0.4]]).repeat(50, 1), torch.tensor([0, 1]).repeat(50))
    >>> intervals(p, ["accuracy"], replicates=200)["accuracy"].value
    0.5
    """
    probs, labels = rows_of(predictions)
    statistics = prediction_statistics(probs, labels, bins=bins)
    return intervals_of(probs, statistics, names, Bootstrap(replicates, level, seed, threshold, bins))


def intervals_of(
    probs: Any, statistics: Statistics, names: Iterable[str] | None, how: Bootstrap
) -> dict[str, Interval]:
    """Return `intervals` from statistics that were made with the bins of `how`.

    Args:
        probs: (N, C) probabilities.
        statistics: their statistics.
        names: metrics of `METRICS`; None: all.
        how: settings of the bootstrap.
    """
    wanted = _known(names)
    values = from_statistics(statistics, threshold=how.threshold, bins=how.bins)
    sampler = RowResampler(probs, statistics, wanted, threshold=how.threshold, bins=how.bins)
    (errors,) = resampled_errors([sampler], how.replicates, how.seed, how.advance)
    return {name: clip_to_range(name, error_interval(values[name], errors[name], how.level)) for name in wanted}


def blockwise_intervals(
    statistics: BlockwiseStatistics, how: Bootstrap, values: Mapping[str, float] | None = None
) -> dict[str, Interval]:
    """Return intervals of all metrics for large data; groups of predictions are resampled.

    Args:
        statistics: what was collected block by block, with `resampled=True`.
        how: settings of the bootstrap.
        values: the metrics, if they are known already.
    """
    values = statistics.metrics(threshold=how.threshold) if values is None else values
    errors = grouped_errors(statistics, how.replicates, how.seed, threshold=how.threshold, advance=how.advance)
    return {name: clip_to_range(name, error_interval(value, errors[name], how.level)) for name, value in values.items()}


def paired_intervals(
    a: HasProbabilities,
    b: HasProbabilities,
    names: Iterable[str] | None = None,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    threshold: Threshold = "auto",
    bins: int = 15,
) -> dict[str, Interval]:
    """Return intervals of metric(a) − metric(b) for two models on the same inputs, all from the same resamples.

    If an interval does not contain 0, the models differ significantly at this level.

    Args:
        a: predictions of the first model.
        b: predictions of the second model, for the same inputs in the same order.
        names: metrics of `METRICS`; None: all.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        threshold: entropy in nats up to which a prediction is certain; "auto": recomputed on each resample.
        bins: number of bins of the calibration errors.

    >>> from avuc.predictions import Predictions
    >>> import torch
    >>> labels = torch.tensor([0, 1]).repeat(50)
    >>> a, b = (Predictions(torch.tensor([[p, 1 - p], [0.5, 0.5]]).repeat(50, 1), labels) for p in (0.9, 0.6))
    >>> paired_intervals(a, b, ["nll"], replicates=200)["nll"].high < 0
    True
    """
    rows = [rows_of(one) for one in (a, b)]
    both = [prediction_statistics(*one, bins=bins) for one in rows]
    how = Bootstrap(replicates, level, seed, threshold, bins)
    compared = compared_intervals([one.probs for one in rows], both, names, how)
    return {name: one.difference for name, one in compared.items()}


class Compared(NamedTuple):
    """One metric of two models on the same inputs, and its difference a − b."""

    a: Interval
    b: Interval
    difference: Interval


def compared_intervals(
    probs: Sequence[Any], statistics: Sequence[Statistics], names: Iterable[str] | None, how: Bootstrap
) -> dict[str, Compared]:
    """Return intervals of both models and of their difference.

    Args:
        probs: (N, C) probabilities of the two models.
        statistics: their statistics, made with the bins of `how`.
        names: metrics of `METRICS`; None: all.
        how: settings of the bootstrap.
    """
    wanted = _known(names)
    if not np.array_equal(statistics[0].labels, statistics[1].labels):
        raise InputError("a paired bootstrap needs two models on the same rows; found different labels")
    options: dict[str, Any] = {"threshold": how.threshold, "bins": how.bins}
    first, second = (from_statistics(s, **options) for s in statistics)
    samplers = [RowResampler(p, s, wanted, **options) for p, s in zip(probs, statistics, strict=True)]
    error_a, error_b = resampled_errors(samplers, how.replicates, how.seed, how.advance)
    same = np.array_equal(np.asarray(probs[0]), np.asarray(probs[1]))

    def difference(name: str) -> Interval:
        change = difference_interval(name, first[name], error_a[name], second[name], error_b[name], how.level)
        return Interval(0.0, 0.0, 0.0) if same and change.value == 0 else change

    return {
        name: Compared(
            clip_to_range(name, error_interval(first[name], error_a[name], how.level)),
            clip_to_range(name, error_interval(second[name], error_b[name], how.level)),
            difference(name),
        )
        for name in wanted
    }


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
) -> Interval:
    """Return a bootstrap interval of any function `metric(probs, labels)`.

    Metrics of `METRICS` are resampled by weights, which is fast. Other functions are called on each resample and have
    percentile intervals.

    Args:
        metric: function of (N, C) probabilities and (N,) labels that returns a number; other layouts are rows here.
        probs: (N, C) probabilities, or another layout that metrics take; list, NumPy array or tensor.
        labels: (N,) class numbers.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        class_dim: dimension of the classes in `probs`. Default None: the last one for (N, C), else 1.
        ignore_index: rows with this label are left out (default −100); None: no row is.

    >>> from avuc.metrics import accuracy
    >>> bootstrap(accuracy, [[0.8, 0.2], [0.6, 0.4]] * 50, [0, 1] * 50, replicates=200).value
    0.5
    """
    check_bootstrap(replicates, level)
    rows = metric_rows(probs, labels, class_dim=class_dim, ignore_index=ignore_index)
    interval = error_interval(*_replicate(metric, *rows, replicates, seed), level)
    return clip_to_range(_name(metric), interval)


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

    >>> from avuc.metrics import nll
    >>> a, b = [[0.8, 0.2]] * 40, [[0.7, 0.3]] * 40
    >>> paired_bootstrap(nll, a, b, [0] * 40, replicates=100).high < 0
    True
    """
    check_bootstrap(replicates, level)
    both = (metric_rows(probs, labels, class_dim=class_dim, ignore_index=ignore_index) for probs in (probs_a, probs_b))
    (a, error_a), (b, error_b) = (_replicate(metric, *rows, replicates, seed) for rows in both)
    return difference_interval(_name(metric), a, error_a, b, error_b, level)


def _replicate(
    metric: Callable[..., float], probs: Any, labels: Any, replicates: int, seed: int
) -> tuple[float, Errors]:
    value, name = float(metric(probs, labels)), _name(metric)
    if name is not None:
        sampler = RowResampler(probs, prediction_statistics(probs, labels), [name], threshold="auto", bins=15)
        return value, resampled_errors([sampler], replicates, seed)[0][name]
    indices = resampled_rows(len(prediction_statistics(probs, labels)), replicates, seed)
    samples = np.array([metric(_take(probs, index), _take(labels, index)) for index in indices], np.float64)
    return value, Errors(value - samples, value - samples)


def _name(metric: Callable[..., float]) -> str | None:
    return next((name for name, known in METRICS.items() if known is metric), None)


def _take(values: Any, index: Array) -> Tensor | Array:
    if isinstance(values, Tensor):
        return values[from_numpy(index).to(values.device)]
    return np.asarray(np.asarray(values)[index])


def _known(names: Iterable[str] | None) -> list[str]:
    wanted = list(METRICS if names is None else names)
    unknown = [name for name in wanted if name not in METRICS]
    if unknown:
        raise InputError(f"unknown metric {unknown[0]!r}; known: {', '.join(METRICS)}")
    return wanted
