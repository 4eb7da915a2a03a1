"""Data about single images for the report: entropy of each prediction, the worst mistakes, other temperatures.

They are stored for the clean images and for the strongest severity of each shift: a few kilobytes for each method.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.data.tensors import MemoryData, TensorData
from avuc.metrics.binning import bin_index, bin_table
from avuc.metrics.calibration import curve_from_table as curve_of
from avuc.metrics.statistics import NLL_FLOOR
from avuc.predictions import Predictions
from avuc.study.evaluation.maps import worst_maps
from avuc.study.evaluation.png import png

MOST_ROWS = 2000
MOST_MISTAKES = 16
MOST_LETTERS = 300  # longest text of a sentence
THUMBNAIL = 48  # most pixels on the longer side of an image; larger images are subsampled
SCALE = 32767  # entropies are stored as shares of log C in 15 bits; the 16th bit says whether the prediction is right
TEMPERATURES = [2 ** (step / 6) for step in range(-12, 19)]
MOST_NUMBERS = 1 << 20  # probabilities that are scaled again for each temperature


def examples_of(
    predictions: Predictions, data: MemoryData, bins: int, mistakes: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return entropy and correctness of single rows, the most confident mistakes, and calibration at each temperature.

    Args:
        predictions: the predictions.
        data: the examples.
        bins: bins of the reliability diagrams.
        mistakes: the mistakes to show, if they are known already; default None: they are searched for here.
    """
    predictions = predictions.to("cpu")
    top = math.log(predictions.num_classes) or 1.0
    rows = _spread(len(predictions), MOST_ROWS)
    share = (predictions.entropy.double()[rows] / top).clamp(0, 1)
    packed = (share * SCALE).round().long() * 2 + predictions.correct[rows].long()
    return {
        "samples": base64.b64encode(packed.numpy().astype("<u2").tobytes()).decode(),
        "rows": len(predictions),
        "top": top,
        "mistakes": _worst_examples(predictions, data) if mistakes is None else mistakes,
        "tempered": _tempered(predictions, bins),
    }


def _worst_examples(predictions: Predictions, data: MemoryData) -> list[dict[str, Any]]:
    return worst_maps(predictions, data) if data.labels.ndim > 1 else _mistakes(predictions, data)


def _mistakes(predictions: Predictions, data: MemoryData) -> list[dict[str, Any]]:
    """Return the wrong predictions with the lowest entropies, most confident first."""
    wrong = (~predictions.correct).nonzero().flatten()
    surest = wrong[predictions.entropy[wrong].argsort(stable=True)][:MOST_MISTAKES]
    names = data.class_names or tuple(str(label) for label in range(predictions.num_classes))
    return [
        {
            "entropy": round(float(predictions.entropy[row]), 4),
            "confidence": round(float(predictions.confidence[row]), 4),
            "said": names[int(predictions.predicted[row])],
            "is": names[int(predictions.labels[row])],
            **_display(data, row),
        }
        for row in surest.tolist()
    ]


def _display(data: MemoryData, row: int) -> dict[str, str]:
    """Return one example as the report shows it: a picture, a sentence, or its number."""
    if data.images is not None:
        return {"png": base64.b64encode(thumbnail(data.images[row])).decode()}
    if isinstance(data, TensorData) and data.texts:
        return {"text": data.texts[row][:MOST_LETTERS]}
    return {"text": f"example {row}"}


def sample_of(data: MemoryData) -> bytes | None:
    """Return the first example for the gallery: a PNG, or a sentence as UTF-8; None if it is neither."""
    if data.images is not None:
        return thumbnail(data.images[0])
    if isinstance(data, TensorData) and data.texts:
        return data.texts[0][:MOST_LETTERS].encode("utf-8", "replace")
    return None


def _tempered(predictions: Predictions, bins: int) -> dict[str, Any]:
    """Return reliability diagrams after p ∝ p^(1/T); with several samples, p is their mean probability."""
    rows = _spread(len(predictions), max(1000, MOST_NUMBERS // predictions.num_classes))
    logs, right = predictions.probs[rows].double().log(), predictions.correct[rows].numpy()
    # no temperature changes the predicted class
    first, true = logs.amax(-1), logs.gather(1, predictions.labels[rows, None])[:, 0]
    result: dict[str, Any] = {"temperature": [round(t, 4) for t in TEMPERATURES]}
    for temperature in TEMPERATURES:
        total = (logs / temperature).logsumexp(-1)
        confidence = (first / temperature - total).exp().numpy()
        curve = curve_of(bin_table(bin_index(confidence, bins), confidence, right, bins))
        result.setdefault("count", []).append([int(n) for n in curve.rows])
        result.setdefault("stated", []).append(_digits(curve.stated))
        result.setdefault("observed", []).append(_digits(curve.observed))
        surprise = (total - true / temperature).clamp(max=-math.log(NLL_FLOOR))
        result.setdefault("nll", []).append(round(float(surprise.mean()), 5))
    return result


def _digits(values: Any) -> list[float]:
    """Round to four digits; the mean of an empty bin, whose count is 0, becomes 0."""
    return [round(float(value), 4) if math.isfinite(value) else 0.0 for value in np.asarray(values, np.float64)]


def _spread(count: int, most: int) -> Tensor:
    """Return the indices of at most `most` rows, evenly spaced."""
    few = min(count, most)
    return (torch.arange(few) * count).div(max(few, 1), rounding_mode="floor")


def thumbnail(image: Tensor) -> bytes:
    """Return a PNG of one uint8 (H, W, C) image; a large image is subsampled to 48 pixels."""
    step = -(-max(image.shape[:2]) // THUMBNAIL)
    return png(image[::step, ::step].cpu().numpy())
