"""One model judged: every metric with its interval, and the curves behind the charts.

Everything here is plain numbers, so that the terminal, the JSON file and the report tell the same story.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from avuc import metrics
from avuc.metrics.avu import Threshold, curves_of, resolve_threshold
from avuc.metrics.calibration import confidence_table, curve, uncertainty_table
from avuc.metrics.intervals import Bootstrap, detection_intervals, intervals_of
from avuc.metrics.selective import risk_curve
from avuc.metrics.statistics import Statistics, group, summarise
from avuc.metrics.suite import from_statistics
from avuc.predictions import Predictions
from avuc.progress import Progress

__all__ = ["Assessment", "Bounds", "Series", "assess", "bounds", "judged", "late_progress", "plain"]

HISTOGRAM_BINS = 40
CHART_POINTS = 400
PATIENCE_SECONDS = 1.0

Bounds = tuple[float, float]
Series = dict[str, list[float]]


@dataclass(frozen=True)
class Assessment:
    """The judgement of one set of predictions."""

    n: int
    num_classes: int
    samples: int
    threshold: float
    bins: int
    confidence: float
    metrics: dict[str, float]
    intervals: dict[str, Bounds]
    detection: dict[str, float] = field(default_factory=dict)
    outside: int = 0  # rows of the out-of-distribution file
    curves: dict[str, Series] = field(default_factory=dict)
    detection_intervals: dict[str, Bounds] = field(default_factory=dict)
    replicates: int = 0  # bootstrap resamples behind the intervals
    expected_entropy: float = math.nan  # means over the rows, in nats
    mutual_information: float = math.nan

    def as_json(self) -> dict[str, Any]:
        """The document that `--json` writes; what is not defined is null."""
        document: dict[str, Any] = plain(
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
                "detection": self.detection,
                "detection_intervals": self.detection_intervals,
                "replicates": self.replicates,
            }
        )
        return document


def assess(
    predictions: Predictions,
    *,
    outside_entropy: Tensor | None = None,
    threshold: Threshold = "auto",
    bins: int = 15,
    replicates: int = 1000,
    seed: int = 0,
) -> Assessment:
    """Judge predictions; `outside_entropy` are the entropies of out-of-distribution rows.

    >>> import torch
    >>> p = Predictions(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))
    >>> assess(p, replicates=0).metrics["accuracy"]
    0.5
    """
    statistics = summarise(predictions.probs, predictions.labels, bins=bins)
    result = judged(predictions, statistics, outside_entropy=outside_entropy, threshold=threshold, bins=bins)
    if not replicates:
        return result
    sides = 1 if outside_entropy is None else 2
    with late_progress("intervals", sides * replicates) as advance:
        how = Bootstrap(replicates, seed=seed, threshold=threshold, bins=bins, advance=advance)
        found = intervals_of(predictions.probs, statistics, None, how)
        outside = {}
        if outside_entropy is not None:
            outside = detection_intervals(
                predictions.entropy, outside_entropy, replicates=replicates, seed=seed, advance=advance
            )
    return replace(result, intervals=bounds(found), detection_intervals=bounds(outside), replicates=replicates)


def judged(
    predictions: Predictions,
    statistics: Statistics,
    *,
    outside_entropy: Tensor | None = None,
    threshold: Threshold = "auto",
    bins: int = 15,
) -> Assessment:
    """The judgement without intervals, from statistics made with these bins."""
    outside = outside_entropy
    return Assessment(
        n=len(predictions),
        num_classes=predictions.num_classes,
        samples=predictions.samples,
        threshold=resolve_threshold(statistics, threshold),
        bins=bins,
        confidence=float(statistics.confidence.mean()),
        metrics=from_statistics(statistics, threshold=threshold, bins=bins),
        intervals={},
        # both sides in the same arithmetic, so that equal predictions have equal entropies
        detection={} if outside is None else metrics.detection(predictions.entropy, outside),
        outside=0 if outside is None else len(outside),
        curves=_curves(statistics, outside, bins),
        expected_entropy=float(predictions.expected_entropy.double().mean()),
        mutual_information=float(predictions.mutual_information.double().mean()),
    )


def bounds(found: Mapping[str, metrics.Interval]) -> dict[str, Bounds]:
    return {name: (interval.low, interval.high) for name, interval in found.items()}


@contextmanager
def late_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress line that appears only where the work takes longer than a second."""
    started, done = time.monotonic(), 0
    bar: Progress | None = None

    def advance(steps: int) -> None:
        nonlocal done, bar
        done += steps
        if bar is not None:
            bar.advance(steps)
        elif time.monotonic() - started > PATIENCE_SECONDS:
            bar = Progress(label, total)
            bar.started = started
            bar.advance(done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.close()


def plain(value: Any) -> Any:
    """For JSON: tuples become lists, numbers Python's own, and NaN or infinity null.

    >>> plain({"a": (float("nan"), 1)})
    {'a': [None, 1]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    number = float(value)
    return number if math.isfinite(number) else None


def _curves(statistics: Statistics, outside: Tensor | None, bins: int) -> dict[str, Series]:
    risk = risk_curve(group(statistics.confidence, statistics.correct))
    keep = np.unique(np.linspace(0, len(risk.coverage) - 1, CHART_POINTS).round().astype(int))
    curves = {
        "reliability": _series(curve(confidence_table(statistics, bins))),
        "uncertainty": _series(curve(uncertainty_table(statistics, bins))),
        "avu": _series(curves_of(statistics, CHART_POINTS // 4)),
        "risk": {"coverage": risk.coverage[keep].tolist(), "risk": risk.risk[keep].tolist()},
    }
    top = math.log(statistics.num_classes)
    entropy, right = statistics.entropy.clip(0, top), statistics.correct
    groups = {"right": entropy[right], "wrong": entropy[~right]}
    if outside is not None:
        groups["outside"] = outside.double().cpu().numpy().clip(0, top)
    edges = np.linspace(0, top, HISTOGRAM_BINS + 1)
    curves["entropy"] = {"edges": edges.tolist()} | {
        name: np.histogram(values, edges)[0].astype(float).tolist() for name, values in groups.items()
    }
    return curves


def _series(curve: Any) -> Series:
    """A named tuple of arrays as lists."""
    return {name: np.asarray(values, np.float64).tolist() for name, values in curve._asdict().items()}
