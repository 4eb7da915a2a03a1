"""One model on one set of images: the predictions of every method that uses it, and the figures to store.

Methods that share a model (other calibrators, fewer posterior samples) use the same logits. So each posterior sample
runs once, and its logits are added, chunk by chunk, to the running sums of every method. Memory does not grow with the
number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc import metrics
from avuc.calibration import Calibrator
from avuc.core.errors import InputError
from avuc.data.tensors import MemoryData
from avuc.evaluation.evaluate import metric_values
from avuc.metrics import calibration
from avuc.metrics.avu import avu_curves_from_statistics
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.posterior import Posterior
from avuc.prediction.logits import predictor_for
from avuc.prediction.predictor import Predictor, Reading
from avuc.predictions import Predictions
from avuc.study.evaluation.dense import Maps, read_dense
from avuc.study.store.records import MetricsAndCurves

HISTOGRAM_BINS = 50


@dataclass(frozen=True)
class Variant:
    """How a method uses a model's logits: with how many posterior samples, and through which calibrator."""

    name: str
    samples: int
    calibrator: Calibrator | None = None


def predict_all(
    model: Posterior | Predictor, data: MemoryData, variants: Sequence[Variant], *, seed: int
) -> list[Predictions]:
    """Return the predictions of each variant, on the CPU, at the cost of the variant with the most samples.

    Args:
        model: a posterior; or a `Predictor` with the same seed, which draws its samples once for all sets.
        data: the images.
        variants: how the logits are used.
        seed: seed of the posterior samples.
    """
    predictor = predictor_for(model, seed)
    readings, different = readings_of(variants)
    # copied to the CPU now, before the next set occupies the device: threads call `judge` while that set runs
    with _named(data):
        predictions = [predicted.to("cpu") for predicted in predictor.read(data.inputs, data.labels, different)]
    return [predictions[different.index(reading)] for reading in readings]


@contextmanager
def _named(data: MemoryData) -> Iterator[None]:
    """Name the data in errors such as NaN among the logits: a study has many sets."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{data.name}: {error}") from error


def readings_of(variants: Sequence[Variant]) -> tuple[list[Reading], list[Reading]]:
    """Return the reading of each variant, and the distinct readings."""
    readings = [Reading(variant.samples, variant.calibrator) for variant in variants]
    return readings, list(dict.fromkeys(readings))


def predict_maps(
    model: Posterior | Predictor,
    data: MemoryData,
    variants: Sequence[Variant],
    thresholds: Mapping[str, float | None],
    *,
    seed: int,
    most_rows: int = 0,
    show: bool = False,
) -> list[tuple[Predictions, Maps]]:
    """`predict_all` for data with a label for each pixel or token; also returns the figures of whole maps.

    Args:
        model, data, variants, seed: as in `predict_all`.
        thresholds: the uncertainty threshold of each variant, by its name.
        most_rows, show: as in `read_dense`.
    """
    readings, different = readings_of(variants)
    levels = [thresholds.get(variants[readings.index(reading)].name) for reading in different]
    with _named(data):
        results = read_dense(predictor_for(model, seed), data, different, levels, most_rows=most_rows, show=show)
    return [results[different.index(reading)] for reading in readings]


def judge(
    predictions: Predictions, *, threshold: float | None, bins: int, clean_entropy: NDArray[np.float32] | None
) -> MetricsAndCurves:
    """Return the figures that a study stores: the metrics of `avuc.evaluation`, detection metrics, curves.

    Args:
        predictions: predictions for N images; labels below 0 mark out-of-distribution images.
        threshold: the uncertainty threshold learned on validation data; None to learn it from these predictions.
        bins: bins of the calibration errors.
        clean_entropy: entropies of the clean test images, which detection metrics compare with; None for no detection.
    """
    predictions = predictions if predictions.probs.device.type == "cpu" else predictions.to("cpu")
    entropy = predictions.entropy.numpy()
    labelled = bool((predictions.labels >= 0).all())
    # one pass over the probabilities serves every metric and curve
    statistics = prediction_statistics(predictions.probs, predictions.labels, bins=bins) if labelled else None
    evaluated = metric_values(predictions, statistics, threshold="auto" if threshold is None else threshold, bins=bins)
    values = {
        **evaluated.metrics,
        "mean_confidence": evaluated.mean_confidence,
        "mutual_information": evaluated.mutual_information,
    }
    if threshold is None and evaluated.threshold is not None:
        values["threshold"] = evaluated.threshold
    if clean_entropy is not None:
        values |= metrics.detection(clean_entropy, entropy)
    curves = curves_of(predictions, statistics, bins)
    return MetricsAndCurves(values, curves, entropy, len(predictions), predictions.samples)


def curves_of(predictions: Predictions, statistics: Statistics | None, bins: int) -> dict[str, Any]:
    """Return the data of figures: reliability, AvU against thresholds, histograms of entropy and confidence.

    Args:
        predictions: predictions for N images.
        statistics: their statistics; None for out-of-distribution images, which have no labels.
        bins: bins of the calibration errors.
    """
    top = math.log(predictions.num_classes)
    scores = {
        "entropy": (predictions.entropy.double().numpy().clip(0, top), np.linspace(0, top, HISTOGRAM_BINS + 1)),
        "confidence": (predictions.confidence.double().numpy().clip(0, 1), np.linspace(0, 1, HISTOGRAM_BINS + 1)),
    }
    right = predictions.correct.numpy()
    groups = {"outside": np.ones(len(predictions), bool)} if statistics is None else {"right": right, "wrong": ~right}
    curves: dict[str, Any] = {}
    for name, (values, edges) in scores.items():
        counts = {group: np.histogram(values[mask], edges)[0].tolist() for group, mask in groups.items()}
        curves[name] = {"low": float(edges[0]), "high": float(edges[-1]), **counts}
    if statistics is not None:
        curves["reliability"] = _lists(calibration.curve_from_table(calibration.confidence_table(statistics, bins)))
        curves["uncertainty"] = _lists(calibration.curve_from_table(calibration.uncertainty_table(statistics, bins)))
        curves["avu"] = _lists(avu_curves_from_statistics(statistics))
    return curves


def _lists(curve: Any) -> dict[str, list[float | None]]:
    """Return a named tuple of arrays as lists with six digits; NaN becomes None, because JSON has no NaN."""
    return {
        name: [float(f"{value:.6g}") if math.isfinite(value) else None for value in np.asarray(values, np.float64)]
        for name, values in curve._asdict().items()
    }
