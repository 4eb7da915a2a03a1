"""The judgement of a file that is read in blocks: memory is a few numbers per row, and time is linear in the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from avuc.evaluation.evaluate import (
    CHART_POINTS,
    HISTOGRAM_BINS,
    Assessment,
    Series,
    as_series,
    bounds,
    detected,
    entropy_counts,
    late_progress,
)
from avuc.evaluation.files import ScoreFile
from avuc.metrics.avu import Threshold
from avuc.metrics.intervals import Bootstrap, large_intervals
from avuc.metrics.large import LargeStatistics, RowCollector
from avuc.metrics.statistics import Array

__all__ = ["assess_large", "entropies"]


class InParts(Protocol):
    """A `ScoreFile` or a `ScoreStream`."""

    @property
    def num_rows(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def samples(self) -> int: ...
    def parts(self) -> Iterator[ScoreFile]: ...


def assess_large(
    file: InParts,
    *,
    outside_entropy: Array | None = None,
    threshold: Threshold = "auto",
    bins: int = 15,
    replicates: int = 1000,
    seed: int = 0,
) -> Assessment:
    """Judge a file of many rows; `outside_entropy` are the entropies of out-of-distribution rows, sorted in place.

    The figures are those of `avuc.evaluation.evaluate.assess`; the intervals come from a bootstrap over cells of rows.
    """
    inside = None if outside_entropy is None else np.empty(file.num_rows, np.float32)
    statistics, expected, mutual = _collected(file, inside, bins, bool(replicates), seed)
    result = Assessment(
        n=len(statistics),
        num_classes=statistics.num_classes,
        samples=file.samples,
        threshold=statistics.threshold(threshold),
        bins=bins,
        confidence=statistics.means["confidence"],
        metrics=statistics.metrics(threshold=threshold),
        intervals={},
        outside=0 if outside_entropy is None else len(outside_entropy),
        curves=_curves(statistics, outside_entropy),
        expected_entropy=expected,
        mutual_information=mutual,
    )
    with late_progress("intervals", replicates * (1 if outside_entropy is None else 2)) as advance:
        if replicates:
            how = Bootstrap(replicates, seed=seed, threshold=threshold, bins=bins, advance=advance)
            found = bounds(large_intervals(statistics, how, result.metrics))
            result = replace(result, intervals=found, replicates=replicates, bootstrap="cells")
        if inside is not None and outside_entropy is not None:
            figures = detected(inside, outside_entropy, replicates=replicates, seed=seed, advance=advance)
            result = replace(result, **figures)
    return result


def entropies(file: InParts) -> Array:
    """Predictive entropy of every row, float32; needs no labels."""
    out, done = np.empty(file.num_rows, np.float32), 0
    for part in file.parts():
        out[done : done + part.num_rows] = part.entropy().numpy()
        done += part.num_rows
    return out


def _collected(
    file: InParts, inside: Array | None, bins: int, resampled: bool, seed: int
) -> tuple[LargeStatistics, float, float]:
    """The statistics, and the means of expected entropy and mutual information."""
    expected, mutual = [], []
    collector = RowCollector(file.num_rows, file.num_classes, bins=bins, resampled=resampled, seed=seed)
    done = 0
    with late_progress("rows", file.num_rows) as advance:
        for part in file.parts():
            predictions = part.predictions()
            collector.add(predictions.probs, predictions.labels)
            expected.append(float(predictions.expected_entropy.double().sum()))
            mutual.append(float(predictions.mutual_information.double().sum()))
            if inside is not None:
                # both sides of a detection in the same arithmetic, so that equal predictions have equal entropies
                inside[done : done + part.num_rows] = predictions.entropy.numpy()
            done += part.num_rows
            advance(part.num_rows)
    return collector.finish(), math.fsum(expected) / file.num_rows, math.fsum(mutual) / file.num_rows


def _curves(statistics: LargeStatistics, outside: Array | None) -> dict[str, Series]:
    risk = statistics.risk_curve(CHART_POINTS)
    top = math.log(statistics.num_classes)
    edges = np.linspace(0, top, HISTOGRAM_BINS + 1)
    right, wrong = statistics.entropy_histogram(edges)
    entropy = {"edges": edges.tolist(), "right": right.tolist(), "wrong": wrong.tolist()}
    if outside is not None:
        entropy["outside"] = entropy_counts(outside, edges).tolist()
    return {
        "reliability": as_series(statistics.reliability()),
        "uncertainty": as_series(statistics.uncertainty_reliability()),
        "avu": as_series(statistics.avu_curves(CHART_POINTS // 4)),
        "risk": {"coverage": risk.coverage.tolist(), "risk": risk.risk.tolist()},
        "entropy": entropy,
    }
