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
from avuc.study.png import png

MOST_MAPS = 6
MOST_LETTERS = 300  # of a sentence
SIDE = 96  # pixels on the longer side of each part, at most
WRONG, RIGHT, UNKNOWN = (200, 60, 40), (225, 235, 225), (255, 255, 255)


def worst_maps(found: Predictions, data: MemoryData, rows: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the examples with the most mistakes for their uncertainty, each with a picture if it is an image.

    The score of an example is the mean of (1 − entropy / log C) over its positions, counting wrong ones only: high if
    many positions are wrong and certain.

    Args:
        found: predictions with a label for each position, on the CPU.
        data: the examples, on the CPU.
        rows: their numbers, if they are only some of all; default None: 0, 1, ….
    """
    top = math.log(found.num_classes) or 1.0
    scores = map_scores(found)
    entropies, errors, confidences = (
        _means(found, value) for value in (found.entropy, ~found.correct, found.confidence)
    )
    worst = scores.nan_to_num(-1.0).argsort(descending=True, stable=True)[:MOST_MAPS].tolist()
    shown = []
    for row in (row for row in worst if scores[row] > 0):
        entry = {
            "entropy": round(float(entropies[row]), 4),
            "confidence": round(float(confidences[row]), 4),
            "said": f"{float(errors[row]):.1%} wrong",
            "is": f"example {row if rows is None else rows[row]}",
            "map": True,
        }
        if data.images is not None and len(found.shape) == 3:
            entry["png"] = base64.b64encode(_picture(found, data.images[row], row, top)).decode()
        else:
            entry["text"] = _text(found, data, row)
        shown.append(entry)
    return shown


def map_scores(found: Predictions) -> Tensor:
    """Return the score of each example, (N,), on the device of the predictions; see `worst_maps`."""
    share = (found.entropy.double() / (math.log(found.num_classes) or 1.0)).clamp(0, 1)
    return _means(found, torch.where(found.correct, 0.0, 1 - share))


def _means(found: Predictions, values: Tensor) -> Tensor:
    """The mean of a value over the labelled positions of each example; NaN without any."""
    means: Tensor = found.to_map(values.double()).flatten(1).nanmean(1)
    return means


def _picture(found: Predictions, image: Tensor, row: int, top: float) -> bytes:
    """Three parts side by side: the image; wrong pixels red; entropy from black (0) to white (log C)."""
    step = -(-max(image.shape[:2]) // SIDE)
    shown = image[..., : 3 if image.shape[2] >= 3 else 1]
    colour: NDArray[np.uint8] = shown.expand(*image.shape[:2], 3).numpy().astype(np.uint8)
    correct = found.to_map(found.correct.float())[row].numpy()
    entropy = found.to_map(found.entropy.float())[row].numpy()
    errors = np.where(np.isnan(correct)[..., None], UNKNOWN, np.where(correct[..., None] > 0.5, RIGHT, WRONG))
    grey = np.nan_to_num(entropy / top, nan=1.0).clip(0, 1) * 255
    parts = [colour, errors.astype(np.uint8), np.repeat(grey[..., None], 3, axis=2).astype(np.uint8)]
    image_part, error_part, entropy_part = (part[::step, ::step] for part in parts)
    line = np.full((len(image_part), 1, 3), 255, np.uint8)
    return png(np.concatenate([image_part, line, error_part, line, entropy_part], axis=1))


def _text(found: Predictions, data: MemoryData, row: int) -> str:
    """The sentence; behind a wrong word, what was predicted and what it is."""
    texts = getattr(data, "texts", ())
    if not texts:
        return f"example {row}"
    words = str(texts[row]).split()
    if len(found.shape) != 2:
        return " ".join(words)[:MOST_LETTERS]
    names = data.class_names or tuple(str(label) for label in range(found.num_classes))
    correct, said = (found.to_map(value.double())[row].tolist() for value in (found.correct, found.predicted))
    labels = data.labels[row].tolist()
    for place in range(min(len(words), len(labels))):
        if correct[place] == 0:
            words[place] += f" [{names[int(said[place])]}, is {names[labels[place]]}]"
    return _shortened(words)


def _shortened(words: Sequence[str]) -> str:
    """The first words, so many that they fit; a word and what is said of it stay together.

    >>> _shortened(["a" * 200, "b" * 99 + " [O, is B-x]", "c"]) == "a" * 200 + " …"
    True
    """
    lengths = np.cumsum([len(word) + 1 for word in words])
    few = int((lengths <= MOST_LETTERS).sum())
    return " ".join(words[:few]) + (" …" if few < len(words) else "")
