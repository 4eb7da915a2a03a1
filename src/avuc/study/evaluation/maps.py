"""Pictures of dense predictions for the report: the image, its wrong pixels and its uncertainty, side by side."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from avuc.data.tensors import MemoryData
from avuc.predictions import Predictions
from avuc.study.evaluation.png import png

MOST_MAPS = 6
MOST_LETTERS = 300  # longest text of a sentence
SIDE = 96  # most pixels on the longer side of each part
WRONG, RIGHT, UNKNOWN = (200, 60, 40), (225, 235, 225), (255, 255, 255)


def worst_maps(predictions: Predictions, data: MemoryData, rows: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the examples with the most certain mistakes, each with a picture if it is an image.

    The score of an example is the mean of (1 − entropy / log C) over its positions, where correct positions count as
    0. It is high if many positions are wrong and certain.

    Args:
        predictions: predictions with a label for each position, on the CPU.
        data: the examples, on the CPU.
        rows: their numbers in the whole data set, if they are a subset; default None: 0, 1, ….
    """
    top = math.log(predictions.num_classes) or 1.0
    scores = map_scores(predictions)
    entropies, errors, confidences = (
        _means(predictions, value) for value in (predictions.entropy, ~predictions.correct, predictions.confidence)
    )
    worst = scores.nan_to_num(-1.0).argsort(descending=True, stable=True)[:MOST_MAPS].tolist()
    entries = []
    for row in (row for row in worst if scores[row] > 0):
        entry = {
            "entropy": round(float(entropies[row]), 4),
            "confidence": round(float(confidences[row]), 4),
            "said": f"{float(errors[row]):.1%} wrong",
            "is": f"example {row if rows is None else rows[row]}",
            "map": True,
            "dims": len(predictions.shape) - 1,
        }
        if data.images is not None and len(predictions.shape) == 3:
            entry["png"] = base64.b64encode(_picture(predictions, data.images[row], row, top)).decode()
        else:
            entry["text"] = _text(predictions, data, row) or entry["is"]
        entries.append(entry)
    return entries


def map_scores(predictions: Predictions) -> Tensor:
    """Return the score of each example, (N,), on the device of the predictions; see `worst_maps`."""
    share = (predictions.entropy.double() / (math.log(predictions.num_classes) or 1.0)).clamp(0, 1)
    return _means(predictions, torch.where(predictions.correct, 0.0, 1 - share))


def _means(predictions: Predictions, values: Tensor) -> Tensor:
    """Return the mean of a value over the labelled positions of each example; NaN if there is none."""
    means: Tensor = predictions.to_map(values.double()).flatten(1).nanmean(1)
    return means


def _picture(predictions: Predictions, image: Tensor, row: int, top: float) -> bytes:
    """Return three parts side by side: the image; wrong pixels in red; entropy from black (0) to white (log C)."""
    step = -(-max(image.shape[:2]) // SIDE)
    channels = image[..., : 3 if image.shape[2] >= 3 else 1]
    colour: NDArray[np.uint8] = channels.expand(*image.shape[:2], 3).numpy().astype(np.uint8)
    correct = predictions.to_map(predictions.correct.float())[row].numpy()
    entropy = predictions.to_map(predictions.entropy.float())[row].numpy()
    errors = np.where(np.isnan(correct)[..., None], UNKNOWN, np.where(correct[..., None] > 0.5, RIGHT, WRONG))
    grey = np.nan_to_num(entropy / top, nan=1.0).clip(0, 1) * 255
    parts = [colour, errors.astype(np.uint8), np.repeat(grey[..., None], 3, axis=2).astype(np.uint8)]
    image_part, error_part, entropy_part = (part[::step, ::step] for part in parts)
    line = np.full((len(image_part), 1, 3), 255, np.uint8)
    return png(np.concatenate([image_part, line, error_part, line, entropy_part], axis=1))


def _text(predictions: Predictions, data: MemoryData, row: int) -> str:
    """Return the sentence, each wrong word with its predicted and its true class; "" if it is no sentence."""
    texts = getattr(data, "texts", ())
    if not texts:
        return ""
    words = str(texts[row]).split()
    if len(predictions.shape) != 2:
        return " ".join(words)[:MOST_LETTERS]
    names = data.class_names or tuple(str(label) for label in range(predictions.num_classes))
    correct, predicted = (
        predictions.to_map(value.double())[row].tolist() for value in (predictions.correct, predictions.predicted)
    )
    labels = data.labels[row].tolist()
    for position in range(min(len(words), len(labels))):
        if correct[position] == 0:
            words[position] += f" [{names[int(predicted[position])]}, is {names[labels[position]]}]"
    return _shortened(words)


def _shortened(words: Sequence[str]) -> str:
    """Return as many words from the start as fit; a word and the note about it stay together.

    >>> _shortened(["a" * 200, "b" * 99 + " [O, is B-x]", "c"]) == "a" * 200 + " …"
    True
    """
    lengths = np.cumsum([len(word) + 1 for word in words])
    few = int((lengths <= MOST_LETTERS).sum())
    return " ".join(words[:few]) + (" …" if few < len(words) else "")
