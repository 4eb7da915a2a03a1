"""One model on one set of images: every variant of it from one pass over the draws, and the numbers of each.

The variants of a model (other calibrators, fewer draws) read the same logits. So each draw runs once; its logits go,
chunk by chunk, to the running sums of every variant. Memory does not grow with the number of draws.
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
from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.metrics import calibration, suite
from avuc.metrics.avu import avu_curves_from_statistics as avu_curves
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.threshold import resolve_threshold
from avuc.posterior import Posterior
from avuc.prediction.predictor import Predictor, Reading
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


def predict_all(
    model: Posterior | Predictor, data: Dataset, variants: Sequence[Variant], *, seed: int
) -> list[Predictions]:
    """`predict` for each variant, on the host, at the price of the one with the most draws.

    A `Predictor` makes the draws once for all sets; it must be of the same seed.
    """
    predictor = _predictor(model, seed)
    readings = [Reading(variant.samples, variant.calibrator) for variant in variants]
    different = list(dict.fromkeys(readings))
    # on the host at once, while nothing else waits on the device: `judge` may run beside the next set
    found = [one.to("cpu") for one in predictor.read(data.images, data.labels, different)]
    return [found[different.index(reading)] for reading in readings]


def kept_logits(model: Posterior | Predictor, data: Dataset, samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """(S, N, C) logits on the host and their labels, to fit calibrators on: the draws that `predict` takes, in order.

    Where all of them would not fit into 1 GiB, fewer draws; below eight draws, evenly spaced rows.
    """
    predictor = _predictor(model, seed)
    each, num_draws = predictor.logits(data.images[:1], 1).shape[2], predictor.posterior.num_draws
    draws = samples if num_draws is None else min(samples, num_draws)
    few = max(min(draws, FEWEST_KEPT_DRAWS), min(draws, KEPT // (len(data) * each)))
    most = max(1, KEPT // (few * each))
    if len(data) > most:
        data = data.subset((torch.arange(most) * len(data)).div(most, rounding_mode="floor"))
    return predictor.logits(data.images, few), data.labels.cpu()


def _predictor(model: Posterior | Predictor, seed: int) -> Predictor:
    if not isinstance(model, Predictor):
        return Predictor(model, seed=seed, memory=0)
    if model.seed != seed:
        raise InputError(f"the predictor's draws are of seed {model.seed}, asked for is seed {seed}")
    return model


def judge(
    found: Predictions, *, threshold: float | None, bins: int, clean_entropy: NDArray[np.float32] | None
) -> Judgement:
    """Metrics and curves of predictions.

    threshold: the uncertainty threshold that was learned on validation data; None: learn it here.
    clean_entropy: of the unshifted test images, which these are to be told apart from.
    """
    found = found if found.probs.device.type == "cpu" else found.to("cpu")
    entropy = found.entropy.numpy()
    inside = bool((found.labels >= 0).all())
    values: dict[str, float] = {}
    # one pass over the probabilities serves every metric and curve
    rows = prediction_statistics(found.probs, found.labels, bins=bins) if inside else None
    if rows is not None:
        if threshold is None:
            threshold = resolve_threshold(rows, "auto")
            values["threshold"] = threshold
        values |= suite.from_statistics(rows, threshold=threshold, bins=bins)
    else:
        values["mean_entropy"] = float(entropy.mean(dtype=np.float64))
    values["mean_confidence"] = float(found.confidence.double().mean())
    values["mutual_information"] = float(found.mutual_information.double().mean())
    if clean_entropy is not None:
        values |= metrics.detection(clean_entropy, entropy)
    return Judgement(values, curves_of(found, rows, bins), entropy, len(found), found.samples)


def curves_of(found: Predictions, rows: Statistics | None, bins: int) -> dict[str, Any]:
    """What the figures are drawn from: reliability, AvU against thresholds, histograms of entropy and confidence.

    rows: the statistics of labelled predictions; None for images from outside.
    """
    top = math.log(found.num_classes)
    scores = {
        "entropy": (found.entropy.double().numpy().clip(0, top), np.linspace(0, top, HISTOGRAM_BINS + 1)),
        "confidence": (found.confidence.double().numpy().clip(0, 1), np.linspace(0, 1, HISTOGRAM_BINS + 1)),
    }
    right = found.correct.numpy()
    groups = {"outside": np.ones(len(found), bool)} if rows is None else {"right": right, "wrong": ~right}
    curves: dict[str, Any] = {}
    for name, (values, edges) in scores.items():
        counts = {group: np.histogram(values[mask], edges)[0].tolist() for group, mask in groups.items()}
        curves[name] = {"low": float(edges[0]), "high": float(edges[-1]), **counts}
    if rows is not None:
        curves["reliability"] = _lists(calibration.curve_from_table(calibration.confidence_table(rows, bins)))
        curves["uncertainty"] = _lists(calibration.curve_from_table(calibration.uncertainty_table(rows, bins)))
        curves["avu"] = _lists(avu_curves(rows))
    return curves


def _lists(curve: Any) -> dict[str, list[float | None]]:
    """Six digits are enough to draw; NaN has no place in JSON."""
    return {
        name: [float(f"{value:.6g}") if math.isfinite(value) else None for value in np.asarray(values, np.float64)]
        for name, values in curve._asdict().items()
    }
