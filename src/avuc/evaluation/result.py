"""EvaluationResult: all figures of one set of predictions as plain numbers, for terminal, JSON and report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from avuc.core.display import Displayed, data_frame
from avuc.metrics import Interval

Bounds = tuple[float, float]  # low, high
Series = dict[str, list[float]]  # one curve: the values of each axis


# metrics in the one line of a result
MAIN = ("accuracy", "nll", "ece", "uce", "avu_auc")


@dataclass(frozen=True, repr=False)
class EvaluationResult(Displayed):
    """Metrics, intervals and curves of one set of predictions. `evaluate` returns it.

    Args:
        n: number of rows.
        num_classes: number of classes.
        samples: number of Monte Carlo samples behind the probabilities.
        threshold: entropy in nats up to which a prediction counts as certain.
        bins: bins of ECE and UCE.
        confidence: mean confidence.
        metrics: every metric of `avuc.metrics.METRICS`.
        intervals: (low, high) of the 95 % interval of each metric; empty without replicates.
        detection: metrics of out-of-distribution detection; empty without out-of-distribution data.
        outside: number of out-of-distribution rows.
        curves: the values behind the charts.
        detection_intervals: (low, high) of the 95 % interval of each detection metric.
        replicates: number of bootstrap resamples behind the intervals.
        bootstrap: what was resampled for the metrics: "rows", "groups" (images, sentences or groups of rows that are
            not independent), "cells" of similar rows, or "random cells" of rows.
        detection_bootstrap: the same for the detection metrics.
        expected_entropy: mean over the rows of the expected entropy, in nats.
        mutual_information: mean over the rows of the mutual information, in nats.
        bounds: two numbers between which a metric lies that `evaluate_streaming` could not compute exactly.
        per_label: for a multi-label model, the values of each metric for each of the L labels; `metrics` are over all
            decisions, and `n` is their number. Empty otherwise.
        macro: for a multi-label model, the mean of each metric over the labels for which it is defined.
        label_names: for a multi-label model, the names of the labels, or their numbers.

    >>> import torch
    >>> from avuc import Predictions
    >>> from avuc.evaluation import evaluate
    >>> result = evaluate(Predictions(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1])), replicates=0)
    >>> result.n, result.metrics["accuracy"], result.as_json()["replicates"]
    (2, 0.5, 0)
    """

    n: int
    num_classes: int
    samples: int
    threshold: float
    bins: int
    confidence: float
    metrics: dict[str, float]
    intervals: dict[str, Bounds]
    detection: dict[str, float] = field(default_factory=dict)
    outside: int = 0
    curves: dict[str, Series] = field(default_factory=dict)
    detection_intervals: dict[str, Bounds] = field(default_factory=dict)
    replicates: int = 0
    bootstrap: str = "rows"
    detection_bootstrap: str = "rows"
    expected_entropy: float = math.nan
    mutual_information: float = math.nan
    # the exact value of these metrics lies between two numbers (`evaluate_streaming`); all others are exact
    bounds: dict[str, Bounds] = field(default_factory=dict)
    per_label: dict[str, list[float]] = field(default_factory=dict)
    macro: dict[str, float] = field(default_factory=dict)
    label_names: tuple[str, ...] = ()

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each metric: metric, value, low, high; detection metrics last."""
        header, rows = self._table()
        return data_frame({name: [row[column] for row in rows] for column, name in enumerate(header)})

    def _table(self) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        missing = (math.nan, math.nan)
        rows: list[tuple[Any, ...]] = [
            (name, value, *intervals.get(name, missing))
            for values, intervals in ((self.metrics, self.intervals), (self.detection, self.detection_intervals))
            for name, value in values.items()
        ]
        return ("metric", "value", "low", "high"), rows

    def _facts(self) -> dict[str, Any]:
        main = {name: self.metrics[name] for name in MAIN if name in self.metrics}
        return {"rows": self.n, "classes": self.num_classes} | main

    def as_json(self) -> dict[str, Any]:
        """Return the document that `--json` writes; undefined figures are null."""
        document: dict[str, Any] = json_value(
            {
                "n": self.n,
                "num_classes": self.num_classes,
                "samples": self.samples,
                "threshold": self.threshold,
                "bins": self.bins,
                "expected_entropy": self.expected_entropy,
                "mutual_information": self.mutual_information,
                "metrics": self.metrics | {"mean_confidence": self.confidence},
                "intervals": self.intervals,
                **({"bounds": self.bounds} if self.bounds else {}),
                "detection": self.detection,
                "detection_intervals": self.detection_intervals,
                "replicates": self.replicates,
                "bootstrap": self.bootstrap if self.replicates else None,
                "detection_bootstrap": self.detection_bootstrap if self.detection_intervals else None,
                **(
                    {"per_label": self.per_label, "macro": self.macro, "labels": self.label_names}
                    if self.per_label
                    else {}
                ),
            }
        )
        return document


def json_value(value: Any) -> Any:
    """Return the value as JSON can hold it: tuples become lists, numbers Python's own, NaN and infinity null.

    >>> json_value({"a": (float("nan"), 1)})
    {'a': [None, 1]}
    """
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Iterable):
        return [json_value(item) for item in value]
    number = float(value)
    return number if math.isfinite(number) else None


def interval_bounds(intervals: Mapping[str, Interval]) -> dict[str, Bounds]:
    """Return (low, high) of every interval."""
    return {name: (interval.low, interval.high) for name, interval in intervals.items()}


def as_series(curve: Any) -> Series:
    """Return a named tuple of arrays as lists."""
    return {name: np.asarray(values, np.float64).tolist() for name, values in curve._asdict().items()}
