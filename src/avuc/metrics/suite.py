"""The list of metrics, and all of them from one pass over the probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Protocol

import avuc.metrics.calibration as calibration
import avuc.metrics.proper as proper
import avuc.metrics.selective as selective
from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.metrics.arrays import Array
from avuc.metrics.avu import (
    area,
    avu,
    avu_auc,
    p_accurate_given_certain,
    p_uncertain_given_inaccurate,
    quadrant_counts_at,
    quadrant_counts_between,
)
from avuc.metrics.binning import BinTable, bin_edges
from avuc.metrics.checks import metric_rows, rows_of
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.threshold import Threshold
from avuc.metrics.ties import group_ties

METRICS: dict[str, Callable[..., float]] = {
    "accuracy": proper.accuracy,
    "nll": proper.nll,
    "brier": proper.brier,
    "ece": calibration.ece,
    "classwise_ece": calibration.classwise_ece,
    "adaptive_ece": calibration.adaptive_ece,
    "debiased_ece": calibration.debiased_ece,
    "mce": calibration.mce,
    "uce": calibration.uce,
    "avu": avu,
    "avu_auc": avu_auc,
    "p_accurate_given_certain": p_accurate_given_certain,
    "p_uncertain_given_inaccurate": p_uncertain_given_inaccurate,
    "aurc": selective.aurc,
    "mean_entropy": proper.mean_entropy,
}
"""Every metric by its name: `metric(probs, labels, ...)` returns a float. A new metric is one line here."""


class HasProbabilities(Protocol):
    """The part of `avuc.Predictions` that metrics read."""

    @property
    def probs(self) -> Any: ...
    @property
    def labels(self) -> Any: ...


def evaluate(
    predictions: HasProbabilities | Any,
    labels: Any = None,
    *,
    threshold: Threshold = "auto",
    bins: int = 15,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
) -> dict[str, float]:
    """Return every metric of `METRICS`, computed from one pass over the probabilities.

    Each value equals that of the metric's own function.

    Args:
        predictions: anything with `probs` and `labels` of a layout that metrics take, such as `avuc.Predictions`; of
            `avuc.MultiLabelPredictions` all decisions together. Or the probabilities, with `labels`.
        labels: class numbers, if `predictions` are probabilities.
        threshold: entropy in nats up to which a prediction is certain; "auto": see `auto_threshold`.
        bins: number of bins of the calibration errors.
        class_dim: dimension of the classes. Default None: the last one for (N, C), else 1.
        ignore_index: rows with this label are left out (default −100); None: no row is.

    >>> evaluate([[0.8, 0.2], [0.6, 0.4]], [0, 1])["accuracy"]
    0.5
    """
    named = hasattr(predictions, "probs") and hasattr(predictions, "labels")
    if named == (labels is not None):
        raise InputError("evaluate needs Predictions, which have labels, or probabilities and labels")
    layout: dict[str, Any] = {"class_dim": class_dim, "ignore_index": ignore_index}
    rows = rows_of(predictions, **layout) if named else metric_rows(predictions, labels, **layout)
    statistics = prediction_statistics(*rows, bins=bins)
    return from_statistics(statistics, threshold=threshold, bins=bins)


def from_statistics(
    statistics: Statistics, *, threshold: Threshold = "auto", bins: int = 15, names: Iterable[str] = METRICS
) -> dict[str, float]:
    """Return every metric of `METRICS`, or those of `names`, from statistics that were made with the same `bins`.

    Only the class-wise error needs the statistics' class-wise table.
    """
    right, rows = statistics.correct, len(statistics)
    # one sort: only AURC and the adaptive error need an order
    sure = cache(lambda: group_ties(statistics.confidence, right))
    stated = cache(lambda: sure().values * (sure().right + sure().wrong))
    needed = set(names)
    counts = cache(lambda: quadrant_counts_at(statistics, threshold))

    @cache
    def by_confidence() -> BinTable:
        if needed & {"aurc", "adaptive_ece"}:  # the sorted confidences are there
            return calibration.table_from_ties(sure(), stated(), bin_edges(bins, statistics.dtype))
        return calibration.confidence_table(statistics, bins)

    def classwise() -> Array:
        assert statistics.classwise is not None
        return calibration.classwise_gap(statistics.classwise, rows)

    formulas: dict[str, Callable[[], Any]] = {
        "accuracy": right.mean,
        "nll": statistics.nll.mean,
        "brier": statistics.brier.mean,
        "ece": lambda: calibration.expected_gap(by_confidence()),
        "classwise_ece": classwise,
        "adaptive_ece": lambda: calibration.equal_mass_gap(sure().right, sure().wrong, stated(), bins),
        "debiased_ece": lambda: calibration.debiased_gap(by_confidence()),
        "mce": lambda: calibration.maximum_gap(by_confidence()),
        "uce": lambda: calibration.expected_gap(calibration.uncertainty_table(statistics, bins)),
        "avu": lambda: counts().avu,
        "avu_auc": lambda: area(quadrant_counts_between(statistics)[0].avu),
        "p_accurate_given_certain": lambda: counts().accurate_given_certain,
        "p_uncertain_given_inaccurate": lambda: counts().uncertain_given_inaccurate,
        "aurc": lambda: selective.risk_area(sure()),
        "mean_entropy": statistics.entropy.mean,
    }
    return {name: float(formula()) for name, formula in formulas.items() if name in needed}
