"""Bootstrap confidence intervals of metrics, and of the difference between two models.

Predictions are drawn with replacement; for pixels, tokens and rows of groups, whole images or groups are drawn. The
intervals are percentile intervals, except for calibration errors (ECE, class-wise, adaptive and debiased ECE, UCE,
MCE): for these the percentile interval of a well calibrated model misses the truth, see
`avuc.metrics.resampling.absolute_error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from avuc._old_names import forward
from avuc.core.errors import InputError
from avuc.metrics.arrays import Array
from avuc.metrics.blockwise import BlockCollector, BlockwiseStatistics, needs_blocks
from avuc.metrics.checks import rows_of
from avuc.metrics.dependent_rows import bootstrap_errors, groups_of
from avuc.metrics.function_intervals import bootstrap as bootstrap
from avuc.metrics.function_intervals import paired_bootstrap as paired_bootstrap
from avuc.metrics.resampling.cells import cell_errors
from avuc.metrics.resampling.one_outcome import RATIOS, Condition, units_within, widened, widened_difference
from avuc.metrics.resampling.percentile import (
    Errors,
    Interval,
    check_bootstrap,
    clip_to_range,
    difference_interval,
    error_interval,
)
from avuc.metrics.resampling.rows import Advance
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.suite import METRICS, HasProbabilities, from_statistics
from avuc.metrics.threshold import Threshold
from avuc.uncertainty import highest_certain

__getattr__: Callable[[str], object] = forward(__name__)

# rows that are collected at a time for the intervals of large data
BLOCK_ROWS = 1 << 17


@dataclass(frozen=True)
class Bootstrap:
    """Settings of a bootstrap.

    replicates  number of resamples
    level       confidence level
    seed        of the resamples
    threshold   entropy in nats up to which a prediction is certain; "auto": recomputed on each resample
    bins        number of bins of the calibration errors
    advance     called with the number of resamples that were just finished; None: not called
    groups      (N,) numbers 0, 1, … of the groups of dependent rows, which are resampled as a whole; None: rows are
    """

    replicates: int = 1000
    level: float = 0.95
    seed: int = 0
    threshold: Threshold = "auto"
    bins: int = 15
    advance: Advance | None = None
    groups: Array | None = None

    def __post_init__(self) -> None:
        check_bootstrap(self.replicates, self.level)

    def resamples_cells(self, statistics: Statistics) -> bool:
        """Return whether the intervals of one model resample cells of similar rows, because there are many rows."""
        return self.groups is None and needs_blocks(len(statistics), statistics.num_classes)

    def errors(
        self,
        probs: Sequence[Any],
        statistics: Sequence[Statistics],
        names: Sequence[str],
        squares: Sequence[float] | None = None,
    ) -> list[dict[str, Errors]]:
        """Return the resampled errors of each model, on the same resamples; `squares` as in `bootstrap_errors`."""
        settings = {key: getattr(self, key) for key in ("threshold", "bins", "replicates", "seed", "advance", "groups")}
        return bootstrap_errors(probs, statistics, names, squares=squares, **settings)


def intervals(
    predictions: HasProbabilities,
    names: Iterable[str] | None = None,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    threshold: Threshold = "auto",
    bins: int = 15,
    groups: Any = None,
) -> dict[str, Interval]:
    """Return confidence intervals of metrics, all from the same resamples.

    With more than 100,000 independent rows, groups of similar rows are resampled, as `avuc.evaluation.evaluate` does: a
    resample of all rows would take a tenth of a second for a million of them.

    Args:
        predictions: anything with `probs` and `labels` of a layout that metrics take, such as `avuc.Predictions`.
        names: metrics of `METRICS`; None: all.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        threshold: entropy in nats up to which a prediction is certain; "auto": recomputed on each resample.
        bins: number of bins of the calibration errors.
        groups: the group of each row, such as a patient: names or numbers (N,). Groups are resampled as a whole, so
            rows of one group may depend on each other. Default None: pixels and tokens belong to their image or
            sentence, decisions of a multi-label model to their row; other rows are independent.

    >>> from avuc.predictions import Predictions
    >>> import torch
    >>> p = Predictions(torch.tensor([[0.8, 0.2], [0.6, 0.4]]).repeat(50, 1), torch.tensor([0, 1]).repeat(50))
    >>> intervals(p, ["accuracy"], replicates=200)["accuracy"].value
    0.5
    """
    probs, labels = rows_of(predictions)
    statistics = prediction_statistics(probs, labels, bins=bins)
    units = groups_of(predictions, len(statistics), groups)
    return intervals_of(probs, statistics, names, Bootstrap(replicates, level, seed, threshold, bins, groups=units))


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
    if how.resamples_cells(statistics):
        found = blockwise_intervals(_collected(probs, statistics, how), how, values)
        return {name: found[name] for name in wanted}
    (errors,) = how.errors([probs], [statistics], wanted)
    return _ends(
        wanted, values, errors, how, len(statistics), partial(units_within, statistics, how.threshold, how.groups)
    )


def _collected(probs: Any, statistics: Statistics, how: Bootstrap) -> BlockwiseStatistics:
    rows = len(statistics)
    collector = BlockCollector(rows, statistics.num_classes, bins=how.bins, dtype=statistics.dtype, seed=how.seed)
    for start in range(0, rows, BLOCK_ROWS):
        collector.add(probs[start : start + BLOCK_ROWS], statistics.labels[start : start + BLOCK_ROWS])
    return collector.finish()


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
    errors = cell_errors(statistics, how.replicates, how.seed, threshold=how.threshold, advance=how.advance)
    return _ends(
        list(values), values, errors, how, len(statistics), partial(_blockwise_units, statistics, how.threshold)
    )


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
    groups: Any = None,
) -> dict[str, Interval]:
    """Return intervals of metric(a) − metric(b) for two models on the same inputs, all from the same resamples.

    If an interval does not contain 0, the models differ significantly at this level. With more than 100,000 independent
    rows or 17 million probabilities, random groups of rows are resampled (`resampling/cell_units.py`), the same ones
    for both models.

    Args:
        a: predictions of the first model.
        b: predictions of the second model, for the same inputs in the same order.
        names: metrics of `METRICS`; None: all.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        threshold: entropy in nats up to which a prediction is certain; "auto": recomputed on each resample.
        bins: number of bins of the calibration errors.
        groups: the group of each row, such as a patient: names or numbers (N,). Groups are resampled as a whole, so
            rows of one group may depend on each other. Default None: pixels and tokens belong to their image or
            sentence, decisions of a multi-label model to their row; other rows are independent.

    >>> from avuc.predictions import Predictions
    >>> import torch
    >>> labels = torch.tensor([0, 1]).repeat(50)
    >>> a, b = (Predictions(torch.tensor([[p, 1 - p], [0.5, 0.5]]).repeat(50, 1), labels) for p in (0.9, 0.6))
    >>> paired_intervals(a, b, ["nll"], replicates=200)["nll"].high < 0
    True
    """
    rows = [rows_of(predictions) for predictions in (a, b)]
    both = [prediction_statistics(*probs_and_labels, bins=bins) for probs_and_labels in rows]
    how = Bootstrap(replicates, level, seed, threshold, bins, groups=groups_of(a, len(both[0]), groups))
    compared = compared_intervals([probs_and_labels.probs for probs_and_labels in rows], both, names, how)
    return {name: comparison.difference for name, comparison in compared.items()}


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
    error_a, error_b = how.errors(probs, statistics, wanted)
    same = np.array_equal(np.asarray(probs[0]), np.asarray(probs[1]))
    rows = len(statistics[0])
    units = _units(how, rows)
    within_a, within_b = (partial(units_within, each, how.threshold, how.groups) for each in statistics)

    def difference(name: str) -> Interval:
        change = difference_interval(name, first[name], error_a[name], second[name], error_b[name], how.level)
        if same and change.value == 0:
            return Interval(0.0, 0.0, 0.0)
        ratios = (first[name], within_a), (second[name], within_b)
        return widened_difference(name, change, (first["accuracy"], second["accuracy"]), units, how.level, ratios)

    of_a = _ends(wanted, first, error_a, how, rows, within_a)
    of_b = _ends(wanted, second, error_b, how, rows, within_b)
    return {name: Compared(of_a[name], of_b[name], difference(name)) for name in wanted}


def _ends(
    names: Sequence[str],
    values: Mapping[str, float],
    errors: Mapping[str, Errors],
    how: Bootstrap,
    rows: int,
    within: Condition,
) -> dict[str, Interval]:
    """Return the interval of each metric from its resampled errors."""
    found = {name: clip_to_range(name, error_interval(values[name], errors[name], how.level)) for name in names}
    return widened(found, values["accuracy"], _units(how, rows), how.level, within)


def _blockwise_units(statistics: BlockwiseStatistics, threshold: Threshold) -> dict[str, int]:
    """Return `units_within` for large data."""
    counts = statistics.counts(np.array([highest_certain(statistics.threshold(threshold))]))
    certain, wrong = int((counts.ac + counts.ic)[0]), len(statistics) - statistics.right
    return dict(zip(RATIOS, (len(statistics), certain, wrong), strict=True))


def _units(how: Bootstrap, rows: int) -> int:
    """Return the number of rows or groups that are resampled."""
    return rows if how.groups is None else int(how.groups.max()) + 1


def _known(names: Iterable[str] | None) -> list[str]:
    wanted = list(METRICS if names is None else names)
    unknown = [name for name in wanted if name not in METRICS]
    if unknown:
        raise InputError(f"unknown metric {unknown[0]!r}; known: {', '.join(METRICS)}")
    return wanted
