"""Data about single images for the report: entropy of each prediction, the worst mistakes, other temperatures.

Stored for the clean images and for the strongest severity of each shift; a few kilobytes for each method.
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
from avuc.study.maps import worst_maps
from avuc.study.png import png

MOST_ROWS = 2000
MOST_MISTAKES = 16
MOST_LETTERS = 300  # of a sentence
THUMBNAIL = 48  # pixels on the longer side, for images that are larger
SCALE = 32767  # entropies are stored as shares of log C in 15 bits; the 16th bit says whether the prediction is right
TEMPERATURES = [2 ** (step / 6) for step in range(-12, 19)]
MOST_NUMBERS = 1 << 20  # probabilities that are scaled again for each temperature


def examples_of(
    found: Predictions, data: MemoryData, bins: int, mistakes: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return entropy and correctness of single rows, the most confident mistakes, and calibration by temperature.

    Args:
        found: the predictions.
        data: the examples.
        bins: bins of the reliability diagrams.
        mistakes: those to show, if they are known already; default None: found here.
    """
    found = found.to("cpu")
    top = math.log(found.num_classes) or 1.0
    rows = _spread(len(found), MOST_ROWS)
    share = (found.entropy.double()[rows] / top).clamp(0, 1)
    packed = (share * SCALE).round().long() * 2 + found.correct[rows].long()
    return {
        "samples": base64.b64encode(packed.numpy().astype("<u2").tobytes()).decode(),
        "rows": len(found),
        "top": top,
        "mistakes": _shown(found, data) if mistakes is None else mistakes,
        "tempered": _tempered(found, bins),
    }


def _shown(found: Predictions, data: MemoryData) -> list[dict[str, Any]]:
    return worst_maps(found, data) if data.labels.ndim > 1 else _mistakes(found, data)


def _mistakes(found: Predictions, data: MemoryData) -> list[dict[str, Any]]:
    """The wrong predictions with the lowest entropies, most confident first."""
    wrong = (~found.correct).nonzero().flatten()
    surest = wrong[found.entropy[wrong].argsort(stable=True)][:MOST_MISTAKES]
    names = data.class_names or tuple(str(label) for label in range(found.num_classes))
    return [
        {
            "entropy": round(float(found.entropy[row]), 4),
            "confidence": round(float(found.confidence[row]), 4),
            "said": names[int(found.predicted[row])],
            "is": names[int(found.labels[row])],
            **_look(data, row),
        }
        for row in surest.tolist()
    ]


def _look(data: MemoryData, row: int) -> dict[str, str]:
    """One example as the report shows it: a picture, a sentence, or its number."""
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


def _tempered(found: Predictions, bins: int) -> dict[str, Any]:
    """Reliability diagrams after p ∝ p^(1/T): temperature scaling for one sample; for several, of their mean."""
    rows = _spread(len(found), max(1000, MOST_NUMBERS // found.num_classes))
    logs, right = found.probs[rows].double().log(), found.correct[rows].numpy()
    # no temperature changes the predicted class
    first, true = logs.amax(-1), logs.gather(1, found.labels[rows, None])[:, 0]
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
    """Four digits; 0 for the mean of an empty bin, whose count is 0."""
    return [round(float(value), 4) if math.isfinite(value) else 0.0 for value in np.asarray(values, np.float64)]


def _spread(count: int, most: int) -> Tensor:
    """Indices of at most `most` rows, evenly spaced."""
    few = min(count, most)
    return (torch.arange(few) * count).div(max(few, 1), rounding_mode="floor")


def thumbnail(image: Tensor) -> bytes:
    """Return a PNG of one uint8 (H, W, C) image; a large image is subsampled to 48 pixels."""
    step = -(-max(image.shape[:2]) // THUMBNAIL)
    return png(image[::step, ::step].cpu().numpy())
