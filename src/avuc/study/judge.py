"""One model on one set of images: every variant of it from one pass over the draws, and the numbers of each.

The variants of a model (other calibrators, fewer draws) read the same logits. So each draw runs once; its logits go,
batch by batch, to the running sums of every variant. Memory does not grow with the number of draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from avuc import metrics
from avuc.calibration import Calibrator
from avuc.data import Dataset
from avuc.draws import Posterior, predict
from avuc.moments import DrawSums
from avuc.predictions import Predictions

__all__ = ["Judgement", "Variant", "curves_of", "judge", "kept_logits", "predict_all"]

HISTOGRAM_BINS = 50
# numbers of the logits kept to fit calibrators on: 1 GiB
KEPT = 1 << 28
FEWEST_KEPT_DRAWS = 8


@dataclass(frozen=True)
class Variant:
    """How a row reads a model's logits: with how many draws, through which calibrator."""

    name: str
    samples: int
    calibrator: Calibrator | None = None


@dataclass(frozen=True)
class Judgement:
    """What is stored of one row on one set."""

    metrics: dict[str, float]
    curves: dict[str, Any]
    entropy: NDArray[np.float32] = field(repr=False)
    rows: int = 0
    samples: int = 1


def predict_all(posterior: Posterior, data: Dataset, variants: Sequence[Variant], *, seed: int) -> list[Predictions]:
    """`predict` for each variant, at the price of the one with the most draws."""
    most = max(variant.samples for variant in variants)
    fan = _FanOut(data, [v for v in variants if v.calibrator is not None or v.samples < most])
    plain = predict(posterior, data.images, data.labels, samples=most, calibrator=fan, seed=seed, progress=False)
    return [fan.predictions(v, data.labels) if v.name in fan.sums else plain for v in variants]


class _FanOut:
    """Stands where `predict` has its calibrator: sees the logits of each draw, batch by batch, and hands them on."""

    def __init__(self, data: Dataset, variants: Sequence[Variant]) -> None:
        self.variants, self.rows = variants, len(data)
        self.sums = {variant.name: DrawSums(len(data), data.device) for variant in variants}
        self.used = dict.fromkeys(self.sums, 0)
        self.draw = self.row = 0

    def transform(self, logits: Tensor) -> Tensor:
        rows = slice(self.row, self.row + len(logits))
        for variant in self.variants:
            if self.draw < variant.samples:
                scaled = logits if variant.calibrator is None else variant.calibrator.transform(logits)
                self.sums[variant.name].add(rows, scaled.softmax(-1))
                self.used[variant.name] = self.draw + 1
        self.row = rows.stop
        if self.row == self.rows:
            self.draw, self.row = self.draw + 1, 0
        return logits

    def predictions(self, variant: Variant, labels: Tensor) -> Predictions:
        return self.sums[variant.name].predictions(labels, self.used[variant.name], None)


def kept_logits(posterior: Posterior, data: Dataset, samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """(S, N, C) logits on the host and their labels, to fit calibrators on: the draws that `predict` takes, in order.

    Where all of them would not fit into 1 GiB, fewer draws; below eight draws, evenly spaced rows.
    """
    keep = _Keep()
    predict(posterior, data.images[:1], samples=1, calibrator=keep, seed=seed, progress=False)
    each = keep.parts[0].shape[1]
    draws = samples if posterior.num_draws is None else min(samples, posterior.num_draws)
    few = max(min(draws, FEWEST_KEPT_DRAWS), min(draws, KEPT // (len(data) * each)))
    most = max(1, KEPT // (few * each))
    if len(data) > most:
        data = data.subset((torch.arange(most) * len(data)).div(most, rounding_mode="floor"))
    keep = _Keep()
    predict(posterior, data.images, samples=few, calibrator=keep, seed=seed, progress=False)
    return torch.cat(keep.parts).view(few, len(data), each), data.labels.cpu()


class _Keep:
    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def transform(self, logits: Tensor) -> Tensor:
        self.parts.append(logits.cpu())
        return logits


def judge(
    found: Predictions, *, threshold: float | None, bins: int, clean_entropy: NDArray[np.float32] | None
) -> Judgement:
    """Metrics and curves of predictions.

    threshold: the uncertainty threshold that was learned on validation data; None: learn it here.
    clean_entropy: of the unshifted test images, which these are to be told apart from.
    """
    entropy = found.entropy.cpu().numpy()
    inside = bool((found.labels >= 0).all())
    values: dict[str, float] = {}
    if inside:
        found = found.to("cpu")
        if threshold is None:
            threshold = metrics.auto_threshold(found.probs, found.labels)
            values["threshold"] = threshold
        values |= metrics.evaluate(found, threshold=threshold, bins=bins)
    else:
        values["mean_entropy"] = float(entropy.mean(dtype=np.float64))
    values["mean_confidence"] = float(found.confidence.double().mean())
    values["mutual_information"] = float(found.mutual_information.double().mean())
    if clean_entropy is not None:
        values |= metrics.detection(clean_entropy, entropy)
    return Judgement(values, curves_of(found, bins, inside), entropy, len(found), found.samples)


def curves_of(found: Predictions, bins: int, inside: bool) -> dict[str, Any]:
    """What the figures are drawn from: reliability, AvU against thresholds, histograms of entropy and confidence."""
    top = math.log(found.num_classes)
    scores = {
        "entropy": (found.entropy.cpu().double().numpy().clip(0, top), np.linspace(0, top, HISTOGRAM_BINS + 1)),
        "confidence": (found.confidence.cpu().double().numpy().clip(0, 1), np.linspace(0, 1, HISTOGRAM_BINS + 1)),
    }
    right = found.correct.cpu().numpy()
    groups = {"right": right, "wrong": ~right} if inside else {"outside": np.ones(len(found), bool)}
    curves: dict[str, Any] = {}
    for name, (values, edges) in scores.items():
        counts = {group: np.histogram(values[mask], edges)[0].tolist() for group, mask in groups.items()}
        curves[name] = {"low": float(edges[0]), "high": float(edges[-1]), **counts}
    if inside:
        probs, labels = found.probs, found.labels
        curves["reliability"] = _lists(metrics.reliability_curve(probs, labels, bins=bins))
        curves["uncertainty"] = _lists(metrics.uncertainty_reliability_curve(probs, labels, bins=bins))
        curves["avu"] = _lists(metrics.avu_curves(probs, labels))
    return curves


def _lists(curve: Any) -> dict[str, list[float | None]]:
    """Six digits are enough to draw; NaN has no place in JSON."""
    return {
        name: [float(f"{value:.6g}") if math.isfinite(value) else None for value in np.asarray(values, np.float64)]
        for name, values in curve._asdict().items()
    }
