"""Predictions with a label for each pixel or token, in bounded memory.

A set of images has tens of millions of pixels. They are predicted some images at a time. Figures of whole maps (mean
intersection over union, PAvPU, the pictures of the report) are computed at once, on the device. All other figures need
only a sample of the pixels: `study.max_rows` of them, spread evenly over the set, the same ones for every method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.data.tensors import MemoryData
from avuc.metrics.arrays import Array
from avuc.metrics.entities import EntityTags, entity_counts, entity_tags, f1_of
from avuc.metrics.iou import class_counts, iou_of
from avuc.metrics.pavpu import patch_counts, ratios_of
from avuc.metrics.selective import risk_area
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.ties import group_ties
from avuc.prediction.parts import Part, joined
from avuc.prediction.predictor import Predictor, Reading
from avuc.predictions import Predictions
from avuc.study.evaluation.maps import MOST_MAPS, map_scores, worst_maps

PATCH = 4
# probabilities of each reading in memory at a time; with their sums in float64 each needs a few times 8 bytes
MOST_NUMBERS = 1 << 25
SHARE = 8  # the probabilities of one reading may use 1/8 of a GPU's free memory
BYTES = 32  # memory for each of these probabilities
FEWEST_PIXELS = 2  # pixels that an image must have for an AURC of its own


@dataclass(frozen=True, eq=False)
class Maps:
    """Figures of whole maps, summed over all images.

    Args:
        counts: (3, C) from `class_counts`; None for data without labels.
        patches: (4,) from `patch_counts`; None without a threshold.
        entities: (3,) from `entity_counts`; None if the classes are not tags of entities.
        mistakes: the examples that the report shows, as `worst_maps` returns them; None if it shows none.
    """

    counts: Array | None = None
    patches: Array | None = None
    mistakes: list[dict[str, Any]] | None = None
    entities: Array | None = None

    def metrics(self, kept: Predictions) -> dict[str, float]:
        """Return mean intersection over union, PAvPU, `image_aurc` and F1 of entities, as far as they are known.

        Args:
            kept: the predictions of the positions that were kept.
        """
        metrics = {}
        if self.counts is not None:
            metrics["mean_iou"] = iou_of(self.counts).mean
            metrics["image_aurc"] = image_aurc(kept)
        if self.patches is not None and self.patches.sum():
            metrics["pavpu"] = ratios_of(self.patches).pavpu
        if self.entities is not None:
            metrics["entity_f1"] = f1_of(self.entities)
        return metrics


def spread(total: int, most: int) -> Tensor:
    """Return at most `most` of the numbers 0 … total − 1, ascending: a random one out of each of `most` equal parts.

    >>> spread(5, 0).tolist(), len(spread(1000, 10)), int(spread(1000, 10)[3]) // 100
    ([0, 1, 2, 3, 4], 10, 3)
    """
    if not 0 < most < total:
        return torch.arange(total)
    # numbers at equal distances would select the same columns of every image
    shares = torch.rand(most, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    edges = torch.arange(most + 1) * total // most
    return edges[:-1] + (shares * edges.diff()).long()


def read_dense(
    predictor: Predictor,
    data: MemoryData,
    readings: Sequence[Reading],
    thresholds: Sequence[float | None],
    *,
    most_rows: int = 0,
    show: bool = False,
) -> list[tuple[Predictions, Maps]]:
    """Return the kept predictions of each reading, on the CPU, and the figures of their whole maps.

    Args:
        predictor: the model.
        data: examples with labels (N, *spatial).
        readings: how the logits are used.
        thresholds: the uncertainty threshold of each reading, for PAvPU; None if there is none.
        most_rows: how many positions are kept at most, spread over all of them; 0 keeps all.
        show: whether the worst examples are kept for the report.
    """
    positions = math.prod(data.labels.shape[1:])
    chosen = spread(len(data) * positions, most_rows)
    kept: list[list[Part]] = [[] for _ in readings]
    tags = entity_tags(data.class_names) if data.labels.ndim == 2 else None
    maps = [_Maps(threshold, show, tags) for threshold in thresholds]
    size = _images_at_a_time(data, positions * data.num_classes, len(readings))
    for start in range(0, len(data), size):
        some = data.subset(range(start, min(start + size, len(data))))
        first, last = (int(torch.searchsorted(chosen, row * positions)) for row in (start, start + len(some)))
        wanted = torch.zeros(len(some) * positions, dtype=torch.bool, device=data.device)
        wanted[chosen[first:last].to(data.device) - start * positions] = True
        if not some.num_labelled:
            # no pixel of these images has a label
            for parts in kept:
                parts.append(_empty_part(data, some))
            continue
        for parts, collector, predictions in zip(
            kept, maps, predictor.read(some.inputs, some.labels, readings), strict=True
        ):
            collector.add(predictions, start)
            parts.append(_part(predictions, wanted))
    return [(_whole(parts).predictions(), collector.finish(data)) for parts, collector in zip(kept, maps, strict=True)]


def image_aurc(predictions: Predictions) -> float:
    """Return the mean over images of the AURC of their pixels; NaN if no image has two labelled pixels.

    Args:
        predictions: predictions with a label for each pixel, on the CPU.
    """
    per_image = math.prod(predictions.shape[1:])
    positions = torch.arange(len(predictions)) if predictions.positions is None else predictions.positions
    counts = (positions // per_image).bincount(minlength=predictions.shape[0]).numpy()
    if counts.max(initial=0) < FEWEST_PIXELS:
        return math.nan
    # one pass over the probabilities for all images: a call of AURC per image would spend most of its time on checks
    statistics, ends = prediction_statistics(predictions.probs, predictions.labels), np.cumsum(counts)
    bounds = [slice(end - count, end) for end, count in zip(ends, counts, strict=True) if count >= FEWEST_PIXELS]
    groups = (group_ties(statistics.confidence[rows], statistics.correct[rows]) for rows in bounds)
    return float(np.mean([risk_area(group) for group in groups]))


def _images_at_a_time(data: MemoryData, numbers: int, readings: int) -> int:
    most = MOST_NUMBERS
    if data.device.type == "cuda":
        most = max(most, torch.cuda.mem_get_info(data.device)[0] // SHARE // BYTES // readings)
    return max(1, most // max(1, numbers))


def _part(predictions: Predictions, wanted: Tensor) -> Part:
    """Return the predictions at the wanted positions, on the CPU."""
    positions = (
        torch.arange(len(wanted), device=wanted.device) if predictions.positions is None else predictions.positions
    )
    rows = wanted[positions].nonzero()[:, 0]
    probs, labels, expected, where = (
        tensor[rows].cpu()
        for tensor in (predictions.probs, predictions.labels, predictions.expected_entropy, positions)
    )
    return Part(probs, labels, expected, predictions.samples, predictions.monte_carlo_error, predictions.shape, where)


def _whole(parts: Sequence[Part]) -> Part:
    """Join the parts; the number of samples is the largest, because parts without a labelled pixel do not know it."""
    return joined(parts)._replace(samples=max(part.samples for part in parts))


def _empty_part(data: MemoryData, some: MemoryData) -> Part:
    probs, labels = torch.empty(0, data.num_classes), torch.empty(0, dtype=torch.int64)
    return Part(probs, labels, torch.empty(0), 1, 0.0, tuple(some.labels.shape), labels.clone())


def _entity_counts(predictions: Predictions, tags: EntityTags) -> Array:
    positions = torch.arange(len(predictions)) if predictions.positions is None else predictions.positions
    sentences = positions // math.prod(predictions.shape[1:])
    predicted, labels, rows = (
        tensor.cpu().numpy() for tensor in (predictions.predicted, predictions.labels, sentences)
    )
    return entity_counts(predicted, labels, rows, tags)


class _Maps:
    """Collects `Maps` over batches of images."""

    def __init__(self, threshold: float | None, show: bool, tags: EntityTags | None = None) -> None:
        self.threshold, self.show, self.tags = threshold, show, tags
        self.entities: Array | None = None
        self.counts: Array | None = None
        self.patches: Array | None = None
        self.worst: list[tuple[float, int, Part]] = []

    def add(self, predictions: Predictions, start: int) -> None:
        labelled = bool((predictions.labels >= 0).all())
        if labelled:
            counts = class_counts(predictions.predicted, predictions.labels, predictions.num_classes)
            self.counts = counts if self.counts is None else self.counts + counts
        if labelled and self.threshold is not None and min(predictions.shape[1:]) >= PATCH:
            values = (
                torch.ones_like(predictions.entropy),
                predictions.correct.to(predictions.entropy),
                predictions.entropy,
            )
            # float64, because the sum over a patch decides on which side of the threshold it is
            ones, right, entropy = (predictions.to_map(value.double(), fill=0.0) for value in values)
            patches = patch_counts(ones, right, entropy, self.threshold, patch=PATCH)
            self.patches = patches if self.patches is None else self.patches + patches
        if labelled and self.tags is not None:
            entities = _entity_counts(predictions, self.tags)
            self.entities = entities if self.entities is None else self.entities + entities
        if labelled and self.show:
            self._keep_worst(predictions, start)

    def _keep_worst(self, predictions: Predictions, start: int) -> None:
        scores = map_scores(predictions).nan_to_num(-1.0)
        positions = math.prod(predictions.shape[1:])
        for row in scores.argsort(descending=True, stable=True)[:MOST_MAPS].tolist():
            wanted = torch.zeros(predictions.shape[0] * positions, dtype=torch.bool, device=scores.device)
            wanted[row * positions : (row + 1) * positions] = True
            if len(self.worst) < MOST_MAPS or float(scores[row]) > min(score for score, _, _ in self.worst):
                part = _part(predictions, wanted)
                assert part.positions is not None
                own = part._replace(shape=(1, *predictions.shape[1:]), positions=part.positions - row * positions)
                self.worst.append((float(scores[row]), start + row, own))
        self.worst = sorted(self.worst, key=lambda entry: (-entry[0], entry[1]))[:MOST_MAPS]

    def finish(self, data: MemoryData) -> Maps:
        mistakes = None
        if self.show:
            rows = [row for score, row, _ in self.worst if score > 0]
            mistakes = []
            if rows:
                predictions = joined([part for score, _, part in self.worst if score > 0]).predictions()
                mistakes = worst_maps(predictions, data.subset(rows).to("cpu"), rows)
        return Maps(self.counts, self.patches, mistakes, self.entities)
