"""Metrics of a multi-label model: for each label, their mean, and over all decisions together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.core.frames import check_same_rows
from avuc.core.tasks import IGNORE_INDEX, Rows, multilabel_rows, not_ignored
from avuc.metrics.arrays import Array
from avuc.metrics.blockwise import BlockCollector
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.suite import METRICS, from_statistics
from avuc.metrics.threshold import Threshold

# decisions that are worked on at a time, at least those of one label
BLOCK = 1 << 19


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
    check_same_rows(probs, labels)
    scores, targets = as_tensor(probs, "scores").detach(), as_tensor(labels, "labels").detach()
    if scores.ndim != 2 or scores.shape != targets.shape or not scores.shape[1]:
        found = multilabel_rows(scores, targets, kind="probs", ignore_index=ignore_index).shape
        raise InputError(f"multi-label probabilities must have shape (N, L), found {found}")
    options: dict[str, Any] = {"threshold": threshold, "bins": bins}
    known = sum(int(not_ignored(some, ignore_index).sum()) for some in targets.split(1 + BLOCK // targets.shape[1]))
    if not known:
        raise InputError("there is no known decision: every label is ignore_index, or there are no rows")
    wide = scores.dtype if scores.dtype == torch.float64 else torch.float32
    together = BlockCollector(known, 2, bins=bins, dtype=wide, resampled=False)
    table = np.full((len(METRICS), scores.shape[1]), np.nan)
    numbers = np.zeros(scores.shape[1], np.int64)
    for first, rows in _blocks(scores, targets, ignore_index):
        assert rows.labels is not None
        if len(rows.scores):
            together.add(rows.scores, rows.labels)
        for label, some in enumerate(_decisions(rows), first):
            numbers[label] = some.stop - some.start
            if numbers[label]:
                statistics = prediction_statistics(rows.scores[some], rows.labels[some], bins=bins)
                table[:, label] = list(from_statistics(statistics, **options).values())
    defined = ~np.isnan(table)
    counts = defined.sum(1)
    means = np.where(defined, table, 0).sum(1) / np.maximum(counts, 1)
    return MultiLabelMetrics(
        per_label=dict(zip(METRICS, table, strict=True)),
        macro={name: float(mean) if n else np.nan for name, mean, n in zip(METRICS, means, counts, strict=True)},
        counted=dict(zip(METRICS, counts.tolist(), strict=True)),
        micro=together.finish().metrics(threshold=threshold),
        rows=numbers,
    )


def _blocks(scores: Tensor, targets: Tensor, ignore_index: int | None) -> Iterator[tuple[int, Rows]]:
    """Yield the decisions of a few labels after the other, label by label, with the number of the first label."""
    rows, labels = scores.shape
    step = max(1, BLOCK // max(1, rows))
    for first in range(0, labels, step):
        columns = [values[:, first : first + step].T.contiguous() for values in (scores, targets)]
        try:
            yield first, multilabel_rows(*columns, kind="probs", ignore_index=ignore_index)
        except InputError:
            multilabel_rows(scores, targets, kind="probs", ignore_index=ignore_index)  # says where, among all decisions
            raise


def _decisions(rows: Rows) -> list[slice]:
    """Return the decisions of each label; `rows` has the labels one after the other."""
    labels, many = rows.shape
    if rows.positions is None:
        counts = np.full(labels, many)
    else:
        counts = np.bincount(rows.positions.cpu().numpy() // many, minlength=labels)
    ends = np.cumsum(counts)
    return [slice(end - count, end) for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]
