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
from avuc.core.progress import Progress
from avuc.metrics.avu import Threshold, curves_of, resolve_threshold
from avuc.metrics.calibration import confidence_table, curve, uncertainty_table
from avuc.metrics.detection import detection_of
from avuc.metrics.intervals import Bootstrap, detection_intervals, intervals_of, large_detection_intervals
from avuc.metrics.large import is_large
from avuc.metrics.ranking import CHUNK, Ranking
from avuc.metrics.selective import risk_curve
from avuc.metrics.statistics import Array, Statistics, group, summarise
from avuc.metrics.suite import from_statistics
from avuc.predictions import Predictions

__all__ = [
    "Assessment",
    "Bounds",
    "Series",
    "as_series",
    "assess",
    "bounds",
    "detected",
    "entropy_counts",
    "judged",
    "late_progress",
    "plain",
]

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
    bootstrap: str = "rows"  # what was resampled: rows, or cells of similar rows
    detection_bootstrap: str = "rows"
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
                "bootstrap": self.bootstrap if self.replicates else None,
                "detection_bootstrap": self.detection_bootstrap if self.detection_intervals else None,
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
    with late_progress("intervals", replicates * (1 if outside_entropy is None else 2)) as advance:
        if replicates:
            how = Bootstrap(replicates, seed=seed, threshold=threshold, bins=bins, advance=advance)
            found = intervals_of(predictions.probs, statistics, None, how)
            result = replace(result, intervals=bounds(found), replicates=replicates)
        if outside_entropy is not None:
            # both sides in the same arithmetic, so that equal predictions have equal entropies
            inside, outside = (x.detach().cpu().numpy().copy() for x in (predictions.entropy, outside_entropy))
            figures = detected(inside, outside, replicates=replicates, seed=seed, advance=advance)
            result = replace(result, **figures)
    return result


def detected(
    inside: Array, outside: Array, *, replicates: int, seed: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """The fields of an `Assessment` about detection; many entropies are sorted in place."""
    if not is_large(len(inside) + len(outside), 1):
        figures: dict[str, Any] = {"detection": metrics.detection(inside, outside)}
        if replicates:
            found = detection_intervals(inside, outside, replicates=replicates, seed=seed, advance=advance)
            figures["detection_intervals"] = bounds(found)
        return figures
    both = Ranking(inside, outside)
    figures = {"detection": detection_of(both), "detection_bootstrap": "cells"}
    if replicates:
        found = large_detection_intervals(both, replicates=replicates, seed=seed, advance=advance)
        figures["detection_intervals"] = bounds(found)
    return figures


def judged(
    predictions: Predictions,
    statistics: Statistics,
    *,
    outside_entropy: Tensor | None = None,
    threshold: Threshold = "auto",
    bins: int = 15,
) -> Assessment:
    """The judgement without detection and intervals, from statistics made with these bins."""
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
        "reliability": as_series(curve(confidence_table(statistics, bins))),
        "uncertainty": as_series(curve(uncertainty_table(statistics, bins))),
        "avu": as_series(curves_of(statistics, CHART_POINTS // 4)),
        "risk": {"coverage": risk.coverage[keep].tolist(), "risk": risk.risk[keep].tolist()},
    }
    top = math.log(statistics.num_classes)
    entropy, right = statistics.entropy, statistics.correct
    groups = {"right": entropy[right], "wrong": entropy[~right]}
    if outside is not None:
        groups["outside"] = outside.detach().cpu().numpy()
    edges = np.linspace(0, top, HISTOGRAM_BINS + 1)
    curves["entropy"] = {"edges": edges.tolist()} | {
        name: entropy_counts(values, edges).tolist() for name, values in groups.items()
    }
    return curves


def entropy_counts(entropies: Array, edges: Array) -> Array:
    """Rows between the edges; entropies beyond the first or the last, which rounding makes, count in that bin."""
    counts = np.zeros(len(edges) - 1)
    # a stretch at a time: the whole in float64 would double a large file's memory
    for start in range(0, len(entropies), CHUNK):
        some = entropies[start : start + CHUNK].astype(np.float64).clip(edges[0], edges[-1])
        counts += np.histogram(some, edges)[0]
    return counts


def as_series(curve: Any) -> Series:
    """A named tuple of arrays as lists."""
    return {name: np.asarray(values, np.float64).tolist() for name, values in curve._asdict().items()}
