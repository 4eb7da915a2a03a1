"""Evaluate a file that is read in blocks of rows: memory is a few numbers per row, time is linear in the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from avuc.core.progress import delayed_progress
from avuc.evaluation.evaluate import CHART_POINTS, HISTOGRAM_BINS, detection_fields, entropy_histogram
from avuc.evaluation.files import ScoreFile, ScoreStream
from avuc.evaluation.files.row_groups import image_sizes
from avuc.evaluation.image_sample import ImageSample
from avuc.evaluation.result import EvaluationResult, Series, as_series, interval_bounds
from avuc.metrics.arrays import Array
from avuc.metrics.blockwise import BlockCollector, BlockwiseStatistics
from avuc.metrics.intervals import Bootstrap, blockwise_intervals
from avuc.metrics.threshold import Threshold


class BlockFile(Protocol):
    """The parts of `ScoreFile` and `ScoreStream` that are used here."""

    @property
    def num_rows(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def samples(self) -> int: ...
    def parts(self) -> Iterator[ScoreFile]: ...


def evaluate_large(
    file: BlockFile,
    *,
    outside_entropy: Array | None = None,
    outside_groups: Array | None = None,
    threshold: Threshold = "auto",
    bins: int = 15,
    replicates: int = 1000,
    seed: int = 0,
) -> EvaluationResult:
    """Return the metrics of `evaluate` for a file that is read in blocks; intervals resample cells of similar rows.

    Positions of one image are not independent: of dense scores, images are resampled, as `evaluate` does.

    Args:
        file: the file, from `open_scores` or `read_scores`.
        outside_entropy: (M) float32 entropies of out-of-distribution rows, from `entropies`; sorted in place.
        outside_groups: (M) number of the image or group of each of them, 0, 1, …; None: these rows are independent.
        threshold: entropy in nats up to which a prediction counts as certain; "auto": learned from these rows.
        bins: bins of ECE and UCE.
        replicates: bootstrap resamples behind the intervals; 0: no intervals.
        seed: seed of the bootstrap.

    >>> import tempfile, numpy as np
    >>> from avuc.evaluation.files import open_scores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0])
    ...     evaluate_large(open_scores(f"{folder}/test.npz"), replicates=0).metrics["accuracy"]
    0.5
    """
    inside = None if outside_entropy is None else np.empty(file.num_rows, np.float32)
    sizes = image_sizes(file) if replicates and isinstance(file, ScoreFile | ScoreStream) else None
    images = None if sizes is None else ImageSample(sizes, file.num_classes, bins, seed)
    replicates = 0 if sizes is not None and len(sizes) < 2 else replicates  # one image tells nothing about others
    statistics, expected, mutual = _collect(file, inside, bins, bool(replicates) and images is None, seed, images)
    result = EvaluationResult(
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
    with delayed_progress("intervals", replicates * (1 if outside_entropy is None else 2)) as advance:
        if replicates:
            bootstrap = Bootstrap(replicates, seed=seed, threshold=threshold, bins=bins, advance=advance)
            if images is None:
                intervals = blockwise_intervals(statistics, bootstrap, result.metrics)
            else:
                intervals = images.intervals(bootstrap, result.metrics)
            how = "cells" if images is None else "groups"
            result = replace(result, intervals=interval_bounds(intervals), replicates=replicates, bootstrap=how)
        if inside is not None and outside_entropy is not None:
            units = None if sizes is None else np.repeat(np.arange(len(sizes)), sizes), outside_groups
            fields = detection_fields(inside, outside_entropy, units, replicates=replicates, seed=seed, advance=advance)
            result = replace(result, **fields)
    return result


def entropies(file: BlockFile) -> Array:
    """Return the (N) predictive entropies in nats, float32; the file needs no labels."""
    entropy, first = np.empty(file.num_rows, np.float32), 0
    for part in file.parts():
        entropy[first : first + part.num_rows] = part.entropy().numpy()
        first += part.num_rows
    return entropy


def _collect(
    file: BlockFile, inside: Array | None, bins: int, resampled: bool, seed: int, images: ImageSample | None = None
) -> tuple[BlockwiseStatistics, float, float]:
    """Return the statistics and the means of expected entropy and mutual information."""
    expected, mutual = [], []
    collector = BlockCollector(file.num_rows, file.num_classes, bins=bins, resampled=resampled, seed=seed)
    first = 0
    with delayed_progress("rows", file.num_rows) as advance:
        for part in file.parts():
            predictions = part.predictions()
            collector.add(predictions.probs, predictions.labels)
            if images is not None:
                images.add(predictions.probs, predictions.labels)
            expected.append(float(predictions.expected_entropy.double().sum()))
            mutual.append(float(predictions.mutual_information.double().sum()))
            if inside is not None:
                # both sides of a detection in the same arithmetic, so that equal predictions have equal entropies
                inside[first : first + part.num_rows] = predictions.entropy.numpy()
            first += part.num_rows
            advance(part.num_rows)
    return collector.finish(), math.fsum(expected) / file.num_rows, math.fsum(mutual) / file.num_rows


def _curves(statistics: BlockwiseStatistics, outside: Array | None) -> dict[str, Series]:
    risk = statistics.risk_curve(CHART_POINTS)
    top = math.log(statistics.num_classes)
    edges = np.linspace(0, top, HISTOGRAM_BINS + 1)
    right, wrong = statistics.entropy_histogram(edges)
    entropy = {"edges": edges.tolist(), "right": right.tolist(), "wrong": wrong.tolist()}
    if outside is not None:
        entropy["outside"] = entropy_histogram(outside, edges).tolist()
    return {
        "reliability": as_series(statistics.reliability()),
        "uncertainty": as_series(statistics.uncertainty_reliability()),
        "avu": as_series(statistics.avu_curves(CHART_POINTS // 4)),
        "risk": {"coverage": risk.coverage.tolist(), "risk": risk.risk.tolist()},
        "entropy": entropy,
    }
