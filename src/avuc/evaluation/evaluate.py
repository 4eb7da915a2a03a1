"""Evaluate predictions: every metric with its interval, and the curves behind the charts.

`metric_values` computes the metrics. `avuc evaluate` and studies both call it, so they report the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc import metrics
from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.core.progress import delayed_progress
from avuc.core.row_groups import images_or_groups
from avuc.core.tasks import IGNORE_INDEX
from avuc.evaluation.result import EvaluationResult, Series, as_series, interval_bounds
from avuc.metrics.arrays import Array, as_scores, comparable
from avuc.metrics.avu import avu_curves_from_statistics
from avuc.metrics.blockwise import needs_blocks
from avuc.metrics.calibration import confidence_table, curve_from_table, uncertainty_table
from avuc.metrics.dependent_rows import groups_of
from avuc.metrics.detection import detection_from_sorted
from avuc.metrics.detection_bootstrap import blockwise_detection_intervals, detection_intervals
from avuc.metrics.intervals import Bootstrap, intervals_of
from avuc.metrics.selective import risk_curve
from avuc.metrics.sorted_samples import CHUNK, SortedPair
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.suite import from_statistics
from avuc.metrics.threshold import Threshold, resolve_threshold
from avuc.metrics.ties import group_ties
from avuc.predictions import MultiLabelPredictions, Predictions

HISTOGRAM_BINS = 40
CHART_POINTS = 400


@dataclass(frozen=True)
class MetricValues:
    """The metrics of one set of predictions, without intervals and curves."""

    metrics: dict[str, float]  # every metric of `avuc.metrics.METRICS`; only mean_entropy without labels
    threshold: float | None  # the uncertainty threshold in nats; None without labels
    mean_confidence: float
    expected_entropy: float  # means over the rows, in nats
    mutual_information: float


def metric_values(
    predictions: Predictions | MultiLabelPredictions,
    statistics: Statistics | None = None,
    *,
    threshold: Threshold = "auto",
    bins: int = 15,
) -> MetricValues:
    """Return every metric of the predictions.

    Args:
        predictions: N rows of probabilities on the CPU. If any label is negative (out-of-distribution data), only the
            figures that need no labels are returned. Of a multi-label model, all decisions together.
        statistics: `prediction_statistics(predictions.probs, predictions.labels, bins=bins)`, if it is already known.
        threshold: entropy in nats up to which a prediction counts as certain; "auto": learned from these rows.
        bins: bins of ECE and UCE.

    >>> import torch
    >>> p = Predictions(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))
    >>> metric_values(p).metrics["accuracy"]
    0.5
    """
    if isinstance(predictions, MultiLabelPredictions):
        predictions = predictions.flatten()
    expected_entropy = float(predictions.expected_entropy.double().mean())
    mutual_information = float(predictions.mutual_information.double().mean())
    if statistics is None and not bool((predictions.labels >= 0).all()):
        mean_entropy = float(predictions.entropy.numpy().mean(dtype=np.float64))
        confidence = float(predictions.confidence.double().mean())
        return MetricValues({"mean_entropy": mean_entropy}, None, confidence, expected_entropy, mutual_information)
    if statistics is None:
        statistics = prediction_statistics(predictions.probs, predictions.labels, bins=bins)
    return MetricValues(
        metrics=from_statistics(statistics, threshold=threshold, bins=bins),
        threshold=resolve_threshold(statistics, threshold),
        mean_confidence=float(statistics.confidence.mean()),
        expected_entropy=expected_entropy,
        mutual_information=mutual_information,
    )


def evaluate(
    predictions: Predictions | MultiLabelPredictions | Any,
    labels: Any = None,
    *,
    outside_entropy: Any = None,
    threshold: Threshold = "auto",
    bins: int = 15,
    replicates: int = 1000,
    seed: int = 0,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
    groups: Any = None,
    outside_groups: Any = None,
) -> EvaluationResult:
    """Return every metric with its 95 % bootstrap interval, and the curves for the charts.

    With more than 100,000 independent rows, intervals resample groups of similar rows, as `evaluate_large` does.
    Pixels of an image, tokens of a sentence, rows of a group and labels of a row are not independent: images or groups
    are resampled then, for some metrics with a random sample of 20,000 rows if there are more. One image has no
    intervals.

    Args:
        predictions: labelled predictions of any kind: one class of many, dense, binary, or `MultiLabelPredictions`,
            whose metrics are over all decisions, with those of each label in `per_label` and their mean in `macro`.
            Or probabilities, together with `labels`.
        labels: class numbers, if `predictions` are probabilities (N, C), (N, C, *spatial) or (N,). Default None: the
            predictions have them.
        outside_entropy: (M) entropies in nats of out-of-distribution rows; adds the detection metrics. With further
            dimensions (M, *spatial) those of one image or sentence belong together.
        threshold: entropy in nats up to which a prediction counts as certain; "auto": the midpoint of the mean
            entropies of right and wrong predictions.
        bins: bins of ECE and UCE.
        replicates: bootstrap resamples behind the intervals; 0: no intervals.
        seed: seed of the bootstrap.
        class_dim: dimension of the classes, if `predictions` are probabilities. Default None: the last one for (N, C),
            else 1.
        ignore_index: rows with this label are left out (default −100), if `predictions` are probabilities.
        groups: the group of each row, such as a patient: names or numbers (N,). Default None: pixels and tokens belong
            to their image or sentence, labels of a multi-label model to their row; other rows are independent.
        outside_groups: the group of each entropy in `outside_entropy`, (M). Default None: those of one image belong
            together, if there are further dimensions; others are independent.

    >>> import torch
    >>> p = Predictions(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))
    >>> evaluate(p, replicates=0).metrics["accuracy"]
    0.5
    """
    if labels is not None or not isinstance(predictions, Predictions | MultiLabelPredictions):
        predictions = _as_predictions(predictions, labels, class_dim, ignore_index)
    if outside_entropy is not None:
        outside_entropy = as_tensor(outside_entropy, "outside_entropy")
        shape, scores = outside_entropy.shape, as_scores(outside_entropy.flatten(), "outside_entropy", narrow=True)
        outside_entropy = torch.from_numpy(scores)
        outside_groups = images_or_groups(shape, None, len(outside_entropy), outside_groups, name="outside_groups")
    fields: dict[str, Any] = {}
    if isinstance(predictions, MultiLabelPredictions):
        fields = _label_fields(predictions, threshold, bins)
        predictions = predictions.flatten()
    units = groups_of(predictions, len(predictions), groups)
    statistics = prediction_statistics(predictions.probs, predictions.labels, bins=bins)
    result = evaluate_statistics(
        predictions, statistics, outside_entropy=outside_entropy, threshold=threshold, bins=bins
    )
    with delayed_progress("intervals", replicates * (1 if outside_entropy is None else 2)) as advance:
        if replicates and (units is None or units.max() > 0):
            bootstrap = Bootstrap(replicates, seed=seed, threshold=threshold, bins=bins, advance=advance, groups=units)
            bounds = interval_bounds(intervals_of(predictions.probs, statistics, None, bootstrap))
            how = "groups" if units is not None else "cells" if bootstrap.resamples_cells(statistics) else "rows"
            result = replace(result, intervals=bounds, replicates=replicates, bootstrap=how)
        if outside_entropy is not None:
            # both sides in the same arithmetic, so that equal predictions have equal entropies
            given = (x.detach().cpu().numpy().copy() for x in (predictions.entropy, outside_entropy))
            inside, outside = comparable(*given)
            both = units, outside_groups
            fields |= detection_fields(inside, outside, both, replicates=replicates, seed=seed, advance=advance)
    return replace(result, **fields)


def _as_predictions(probs: Any, labels: Any, class_dim: int | None, ignore_index: int | None) -> Predictions:
    if isinstance(probs, str | Path):
        raise InputError(f"{probs}: evaluate takes arrays; the command 'avuc evaluate {probs}' reads files")
    if labels is None:
        raise InputError("evaluate needs Predictions, or probabilities with labels: evaluate(probs, labels)")
    if isinstance(probs, Predictions | MultiLabelPredictions):
        raise InputError("these predictions have labels of their own; leave `labels` out")
    return Predictions(probs, labels, class_dim=class_dim, ignore_index=ignore_index)


def _label_fields(predictions: MultiLabelPredictions, threshold: Threshold, bins: int) -> dict[str, Any]:
    """Return the fields of `EvaluationResult` about the labels of a multi-label model."""
    if bool((predictions.labels == -1).any()):
        raise InputError("these predictions have no labels; give labels (N, L) of 0 and 1 to MultiLabelPredictions")
    each = metrics.multilabel(predictions.probs, predictions.labels, threshold=threshold, bins=bins)
    names = predictions.names or [str(number) for number in range(predictions.num_labels)]
    per_label = {name: values.tolist() for name, values in each.per_label.items()}
    return {"per_label": per_label, "macro": each.macro, "label_names": tuple(names)}


def evaluate_statistics(
    predictions: Predictions,
    statistics: Statistics,
    *,
    outside_entropy: Tensor | None = None,
    threshold: Threshold = "auto",
    bins: int = 15,
) -> EvaluationResult:
    """Return the result without intervals and detection metrics, from statistics computed with the same `bins`."""
    values = metric_values(predictions, statistics, threshold=threshold, bins=bins)
    assert values.threshold is not None
    return EvaluationResult(
        n=len(predictions),
        num_classes=predictions.num_classes,
        samples=predictions.samples,
        threshold=values.threshold,
        bins=bins,
        confidence=values.mean_confidence,
        metrics=values.metrics,
        intervals={},
        outside=0 if outside_entropy is None else len(outside_entropy),
        curves=_curves(statistics, outside_entropy, bins),
        expected_entropy=values.expected_entropy,
        mutual_information=values.mutual_information,
    )


def detection_fields(
    inside: Array,
    outside: Array,
    groups: tuple[Array | None, Array | None],
    *,
    replicates: int,
    seed: int,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    """Return the fields of `EvaluationResult` about detection by entropy; large arrays are sorted in place.

    Args:
        inside: (N,) entropies of in-distribution rows.
        outside: (M,) entropies of out-of-distribution rows.
        groups: numbers of the groups of both; None: rows are independent.
        replicates, seed, advance: of the bootstrap.
    """
    if any(each is not None for each in groups):
        fields: dict[str, Any] = {"detection": metrics.detection(inside, outside), "detection_bootstrap": "groups"}
        if replicates and all(each is None or each.max() > 0 for each in groups):
            options: dict[str, Any] = {"replicates": replicates, "seed": seed, "advance": advance}
            intervals = detection_intervals(inside, outside, in_groups=groups[0], out_groups=groups[1], **options)
            fields["detection_intervals"] = interval_bounds(intervals)
        return fields
    if not needs_blocks(len(inside) + len(outside), 1):
        fields = {"detection": metrics.detection(inside, outside)}
        if replicates:
            intervals = detection_intervals(inside, outside, replicates=replicates, seed=seed, advance=advance)
            fields["detection_intervals"] = interval_bounds(intervals)
        return fields
    ranking = SortedPair(inside, outside)
    fields = {"detection": detection_from_sorted(ranking), "detection_bootstrap": "cells"}
    if replicates:
        intervals = blockwise_detection_intervals(ranking, replicates=replicates, seed=seed, advance=advance)
        fields["detection_intervals"] = interval_bounds(intervals)
    return fields


def entropy_histogram(entropies: Array, edges: Array) -> Array:
    """Count the entropies between the edges; values that rounding puts beyond an end count in the bin at that end."""
    counts = np.zeros(len(edges) - 1)
    # a chunk at a time: all in float64 would double the memory of a large file
    for start in range(0, len(entropies), CHUNK):
        chunk = entropies[start : start + CHUNK].astype(np.float64).clip(edges[0], edges[-1])
        counts += np.histogram(chunk, edges)[0]
    return counts


def _curves(statistics: Statistics, outside: Tensor | None, bins: int) -> dict[str, Series]:
    risk = risk_curve(group_ties(statistics.confidence, statistics.correct))
    keep = np.unique(np.linspace(0, len(risk.coverage) - 1, CHART_POINTS).round().astype(int))
    curves = {
        "reliability": as_series(curve_from_table(confidence_table(statistics, bins))),
        "uncertainty": as_series(curve_from_table(uncertainty_table(statistics, bins))),
        "avu": as_series(avu_curves_from_statistics(statistics, CHART_POINTS // 4)),
        "risk": {"coverage": risk.coverage[keep].tolist(), "risk": risk.risk[keep].tolist()},
    }
    entropy, right = statistics.entropy, statistics.correct
    groups = {"right": entropy[right], "wrong": entropy[~right]}
    if outside is not None:
        groups["outside"] = outside.detach().cpu().numpy()
    edges = np.linspace(0, math.log(statistics.num_classes), HISTOGRAM_BINS + 1)
    curves["entropy"] = {"edges": edges.tolist()} | {
        name: entropy_histogram(values, edges).tolist() for name, values in groups.items()
    }
    return curves
