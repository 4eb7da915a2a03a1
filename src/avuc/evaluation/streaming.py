"""Evaluate a file of any number of rows with memory that does not grow with the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.core.progress import delayed_progress
from avuc.evaluation.evaluate import CHART_POINTS, HISTOGRAM_BINS
from avuc.evaluation.files import ScoreStream, open_scores
from avuc.evaluation.files.sources import ArraySource
from avuc.evaluation.large import BlockFile
from avuc.evaluation.prediction_parts import AnyPredictions, PredictionParts
from avuc.evaluation.result import Bounds, EvaluationResult, Series, as_series
from avuc.metrics import METRICS
from avuc.metrics.arrays import Array
from avuc.metrics.streaming import StreamingDetection, StreamingMetrics
from avuc.metrics.streaming.suite import bytes_needed
from avuc.metrics.threshold import Threshold, check_threshold


def evaluate_streaming(
    file: str | Path | BlockFile | AnyPredictions | Iterable[AnyPredictions],
    *,
    outside: str | Path | BlockFile | AnyPredictions | Iterable[AnyPredictions] | None = None,
    threshold: Threshold = "auto",
    bins: int = 15,
) -> EvaluationResult:
    """Return the metrics of `evaluate` with memory of fixed size, without intervals; `bounds` says how exact they are.

    Metrics that need the order of all rows (AvU at the automatic threshold, AvU-AUC, adaptive ECE, AURC, detection) are
    counted in histograms. Their exact values lie within `bounds` of the result, and `metrics` and `detection` contain
    the middle. All other metrics are exact.

    Args:
        file: N labelled rows of C scores: a path, or a file from `open_scores`. A .csv is read into memory. Or
            `Predictions`, or any iterable of them: `evaluate_streaming(predictor.stream(loader))`.
        outside: M rows of out-of-distribution data, which need no labels; adds the detection metrics (default: None).
        threshold: entropy in nats up to which a prediction counts as certain; "auto": learned from these rows.
        bins: bins of ECE and UCE (default: 15).

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0])
    ...     result = evaluate_streaming(f"{folder}/test.npz")
    >>> result.metrics["accuracy"], result.bounds["aurc"]
    (0.5, (0.25, 0.25))
    """
    options: dict[str, Any] = {"memory": partial(bytes_needed, bins=bins), "most_scores": 0}
    first: Any = open_scores(file, **options) if isinstance(file, str | Path) else _in_parts(file)
    first.check_labelled()
    second: Any = None if outside is None else _in_parts(outside)
    if isinstance(outside, str | Path):
        second = open_scores(outside, like=first, needs_labels=False, padding=True, **options)
    if second is not None and second.num_classes != first.num_classes:
        raise InputError(f"{second.path}: has {second.num_classes} classes, but {first.path} has {first.num_classes}")
    stream = StreamingMetrics(first.num_classes, bins=bins, threshold=threshold)
    detection = None if second is None else _Detection()
    with delayed_progress("rows", first.num_rows + (0 if second is None else second.num_rows)) as advance:
        expected, mutual = _count(first, stream, detection, advance)
        if detection is not None:
            for part in second.parts():
                detection.add("out_entropy", part.entropy().numpy())
                advance(part.num_rows)
    detection_bounds, values = ({} if detection is None else detection.bounds()), stream.compute()
    return EvaluationResult(
        n=len(stream),
        num_classes=first.num_classes,
        samples=first.samples,
        threshold=stream.auto_threshold() if threshold == "auto" else check_threshold(threshold),
        bins=bins,
        confidence=stream.mean_confidence(),
        metrics={name: values[name] for name in METRICS},
        intervals={},
        detection={name: (low + high) / 2 for name, (low, high) in detection_bounds.items()},
        outside=0 if second is None else second.num_rows,
        curves=_curves(stream, None if detection is None else detection.stream),
        expected_entropy=expected / len(stream),
        mutual_information=mutual / len(stream),
        bounds=stream.bounds() | detection_bounds,
    )


def _in_parts(source: Any) -> Any:
    """Return a path or a file unchanged, and predictions in the form of a file."""
    return source if isinstance(source, str | Path) or hasattr(source, "parts") else PredictionParts(source)


def memory_note(file: BlockFile) -> str | None:
    """Return a note about the parts of the file that are fully in memory, so that memory grows; None: no part is."""
    remedy = "memory grows with the rows and --max-gb limits it; a .npy, .npz or .safetensors file is read in blocks"
    if not isinstance(file, ScoreStream):
        return f"a .csv is read into memory as a whole: {remedy}"
    if isinstance(file.raw.scores, ArraySource):
        return (
            "an .npz array of samples or in column-major order is read into memory as a whole: memory grows with the "
            "rows and --max-gb limits it; a .npy file is read in blocks"
        )
    if isinstance(file.raw.labels, ArraySource):
        return f"the labels of a table are read into memory as a whole: {remedy}"
    return None


class _Detection:
    """Counts the entropies of both data sets in the same arithmetic, so that equal predictions have equal entropies."""

    def __init__(self) -> None:
        self.stream = StreamingDetection()
        self._rows = {"in_entropy": 0, "out_entropy": 0}
        self._below = {"in_entropy": 0.0, "out_entropy": 0.0}

    def add(self, name: str, entropy: Array) -> None:
        # a probability above 1 by rounding has an entropy below 0, which the histogram counts as 0
        self._rows[name] += len(entropy)
        self._below[name] -= float(np.minimum(entropy, 0).sum(dtype=np.float64))
        self.stream.update(**{name: np.maximum(entropy, 0)})

    def bounds(self) -> dict[str, Bounds]:
        out = self.stream.bounds()
        moved = sum(self._below[name] / rows for name, rows in self._rows.items())
        low, high = out["wasserstein"]
        return out | {"wasserstein": (max(0.0, low - moved), high + moved)}


def _count(
    file: BlockFile, stream: StreamingMetrics, detection: _Detection | None, advance: Callable[[int], None]
) -> tuple[float, float]:
    """Add all rows; return the sums of expected entropy and mutual information."""
    expected = mutual = 0.0
    for part in file.parts():
        predictions = part.predictions()
        stream.update(predictions.probs, predictions.labels)
        expected += float(predictions.expected_entropy.double().sum())
        mutual += float(predictions.mutual_information.double().sum())
        if detection is not None:
            detection.add("in_entropy", predictions.entropy.numpy())
        advance(part.num_rows)
    return expected, mutual


def _curves(stream: StreamingMetrics, detection: StreamingDetection | None) -> dict[str, Series]:
    risk = stream.risk_curve(CHART_POINTS)
    edges = np.linspace(0, math.log(stream.num_classes), HISTOGRAM_BINS + 1)
    right, wrong = stream.entropy_histogram(edges)
    entropy = {"edges": edges.tolist(), "right": right.tolist(), "wrong": wrong.tolist()}
    if detection is not None:
        entropy["outside"] = detection.entropy_histogram(edges)[1].tolist()
    return {
        "reliability": as_series(stream.reliability()),
        "uncertainty": as_series(stream.uncertainty_reliability()),
        "avu": as_series(stream.avu_curves(CHART_POINTS // 4)),
        "risk": {"coverage": risk.coverage.tolist(), "risk": risk.risk.tolist()},
        "entropy": entropy,
    }
