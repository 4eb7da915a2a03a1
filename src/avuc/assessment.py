"""One model judged: every metric with its interval, and the curves behind the charts.

Everything here is plain numbers, so that the terminal, the JSON file and the report tell the same story.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from avuc import metrics
from avuc.metrics.avu import Threshold
from avuc.predictions import Predictions

__all__ = ["Assessment", "Bounds", "Series", "assess", "plain"]

HISTOGRAM_BINS = 40
CHART_POINTS = 400

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

    def as_json(self) -> dict[str, Any]:
        """The document that `--json` writes; what is not defined is null."""
        document: dict[str, Any] = plain(
            {
                "n": self.n,
                "num_classes": self.num_classes,
                "samples": self.samples,
                "threshold": self.threshold,
                "bins": self.bins,
                "metrics": self.metrics | {"mean_confidence": self.confidence},
                "intervals": self.intervals,
                "detection": self.detection,
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
    probs, labels = predictions.probs, predictions.labels
    limit = metrics.auto_threshold(probs, labels) if threshold == "auto" else float(threshold)
    bounds: dict[str, Bounds] = {}
    if replicates:
        found = metrics.intervals(predictions, threshold=threshold, bins=bins, replicates=replicates, seed=seed)
        bounds = {name: (interval.low, interval.high) for name, interval in found.items()}
    entropy = predictions.entropy
    return Assessment(
        n=len(predictions),
        num_classes=predictions.num_classes,
        samples=predictions.samples,
        threshold=limit,
        bins=bins,
        confidence=float(predictions.confidence.double().mean()),
        metrics=metrics.evaluate(predictions, threshold=threshold, bins=bins),
        intervals=bounds,
        detection={} if outside_entropy is None else metrics.detection(entropy, outside_entropy),
        outside=0 if outside_entropy is None else len(outside_entropy),
        curves=_curves(predictions, outside_entropy, bins),
    )


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


def _curves(predictions: Predictions, outside: Tensor | None, bins: int) -> dict[str, Series]:
    probs, labels = predictions.probs, predictions.labels
    reliability = metrics.reliability_curve(probs, labels, bins=bins)
    uncertainty = metrics.uncertainty_reliability_curve(probs, labels, bins=bins)
    risk = metrics.risk_coverage_curve(probs, labels)
    keep = np.unique(np.linspace(0, len(risk.coverage) - 1, CHART_POINTS).round().astype(int))
    curves = {
        "reliability": _series(reliability),
        "uncertainty": _series(uncertainty),
        "avu": _series(metrics.avu_curves(probs, labels, points=CHART_POINTS // 4)),
        "risk": {"coverage": risk.coverage[keep].tolist(), "risk": risk.risk[keep].tolist()},
    }
    top = math.log(predictions.num_classes)
    entropy = predictions.entropy.double().cpu().numpy().clip(0, top)
    groups = {"right": entropy[predictions.correct.cpu().numpy()], "wrong": entropy[~predictions.correct.cpu().numpy()]}
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
