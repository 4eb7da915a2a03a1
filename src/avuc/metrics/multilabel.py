"""Metrics of a multi-label model: for each label, their mean, and over all decisions together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX, Rows, multilabel_rows
from avuc.metrics.arrays import Array
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.suite import METRICS, from_statistics
from avuc.metrics.threshold import Threshold


class MultiLabelMetrics(NamedTuple):
    """The metrics of a multi-label model, as `multilabel` returns them; dicts with the names of `METRICS`.

    Args:
        per_label: the values of each label, (L,) arrays; NaN where a metric is not defined.
        macro: the mean over the labels that have a value; NaN if none has.
        counted: the number of labels in that mean.
        micro: the value over all decisions, pooled.
        rows: (L,) number of known decisions of each label.

    >>> multilabel([[0.9, 0.2], [0.6, 0.4]], [[1, 0], [0, 0]]).counted["accuracy"]
    2
    """

    per_label: dict[str, Array]
    macro: dict[str, float]
    counted: dict[str, int]
    micro: dict[str, float]
    rows: Array


def multilabel(
    probs: Any,
    labels: Any,
    *,
    threshold: Threshold = "auto",
    bins: int = 15,
    ignore_index: int | None = IGNORE_INDEX,
) -> MultiLabelMetrics:
    """Return every metric of `METRICS` for each label, as the mean over labels (macro), and pooled (micro).

    Each label of each row is one binary prediction with the probabilities [1 − p, p]; its class 1 is that the label
    applies. A metric can be undefined for a label, for example p(uncertain | inaccurate) if nothing is wrong, and a
    label without a known decision has none at all: such a value is NaN and does not count in the mean.

    Args:
        probs: (N, L) probabilities that a label applies; list, NumPy array or tensor. Rows need not sum to 1.
        labels: (N, L) of 0 and 1.
        threshold: entropy in nats up to which a prediction is certain; "auto": see `auto_threshold`, for each label
            and for all decisions its own.
        bins: number of bins of the calibration errors.
        ignore_index: decisions with this label are unknown and left out (default −100); None: none is.

    >>> result = multilabel([[0.9, 0.2], [0.6, 0.4]], [[1, 0], [0, 0]])
    >>> result.per_label["accuracy"], result.macro["accuracy"], result.micro["accuracy"]
    (array([0.5, 1. ]), 0.75, 0.75)
    """
    rows = multilabel_rows(probs, labels, kind="probs", ignore_index=ignore_index)
    if len(rows.shape) != 2:
        raise InputError(f"multi-label probabilities must have shape (N, L), found {rows.shape}")
    if not len(rows.scores):
        raise InputError("there is no known decision: every label is ignore_index, or there are no rows")
    options: dict[str, Any] = {"threshold": threshold, "bins": bins}
    decisions = _decisions(rows)
    table = np.full((len(METRICS), rows.shape[1]), np.nan)
    numbers = np.zeros(rows.shape[1], np.int64)
    for label, some in enumerate(decisions):
        numbers[label] = len(rows.scores[some])
        if numbers[label]:
            table[:, label] = list(_values(rows, some, options).values())
    known = ~np.isnan(table)
    counts = known.sum(1)
    means = np.where(known, table, 0).sum(1) / np.maximum(counts, 1)
    return MultiLabelMetrics(
        per_label=dict(zip(METRICS, table, strict=True)),
        macro={name: float(mean) if n else np.nan for name, mean, n in zip(METRICS, means, counts, strict=True)},
        counted=dict(zip(METRICS, counts.tolist(), strict=True)),
        micro=_values(rows, slice(None), options),
        rows=numbers,
    )


def _decisions(rows: Rows) -> list[Any]:
    """Return for each label an index of its decisions among all decisions."""
    labels = rows.shape[1]
    if rows.positions is None:
        return [slice(label, None, labels) for label in range(labels)]
    of_label = rows.positions.cpu().numpy() % labels
    # one sort: a search for each label would take time in N · L²
    ends = np.cumsum(np.bincount(of_label, minlength=labels))
    return np.split(np.argsort(of_label, kind="stable"), ends[:-1])


def _values(rows: Rows, some: Any, options: dict[str, Any]) -> dict[str, float]:
    assert rows.labels is not None
    statistics = prediction_statistics(rows.scores[some], rows.labels[some], bins=options["bins"])
    return from_statistics(statistics, **options)
