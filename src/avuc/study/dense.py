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
from avuc.study.maps import MOST_MAPS, map_scores, worst_maps

PATCH = 4
# probabilities that are in memory at a time, for each reading; with their sums in float64 a few times 8 bytes each
MOST_NUMBERS = 1 << 25
SHARE = 8  # of a GPU's free memory, one part in so many is used for the probabilities of one reading
BYTES = 32  # for each of these probabilities
FEWEST_PIXELS = 2  # of an image, for an AURC of its own


@dataclass(frozen=True, eq=False)
class Maps:
    """What is left of whole maps.

    Args:
        counts: (3, C) of `class_counts`; None for data without labels.
        patches: (4,) of `patch_counts`; None without a threshold.
        entities: (3,) of `entity_counts`; None for other classes than the tags of entities.
        mistakes: the examples that the report shows, as `worst_maps` gives them; None if it shows none.
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
        found = {}
        if self.counts is not None:
            found["mean_iou"] = iou_of(self.counts).mean
            found["image_aurc"] = image_aurc(kept)
        if self.patches is not None and self.patches.sum():
            found["pavpu"] = ratios_of(self.patches).pavpu
        if self.entities is not None:
            found["entity_f1"] = f1_of(self.entities)
        return found


def spread(total: int, most: int) -> Tensor:
    """Return at most `most` of the numbers 0 … total − 1, ascending: a random one out of each of `most` equal parts.

    >>> spread(5, 0).tolist(), len(spread(1000, 10)), int(spread(1000, 10)[3]) // 100
    ([0, 1, 2, 3, 4], 10, 3)
    """
    if not 0 < most < total:
        return torch.arange(total)
    # numbers at equal distances would hit the same columns of every image
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
    """Return the predictions for each reading, on the CPU, and what is left of their maps.

    Args:
        predictor: the model.
        data: examples with labels (N, *spatial).
        readings: how its logits are used.
        thresholds: the uncertainty threshold of each reading, for PAvPU; None for none.
        most_rows: positions that are kept at most, spread over all of them; 0 for all.
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
                parts.append(_nothing(data, some))
            continue
        for parts, whole, found in zip(kept, maps, predictor.read(some.inputs, some.labels, readings), strict=True):
            whole.add(found, start)
            parts.append(_part(found, wanted))
    return [(_whole(parts).predictions(), whole.finish(data)) for parts, whole in zip(kept, maps, strict=True)]


def image_aurc(found: Predictions) -> float:
    """Return the mean over images of the AURC of their pixels; NaN if no image has two labelled pixels.

    Args:
        found: predictions with a label for each pixel, on the CPU.
    """
    positions = math.prod(found.shape[1:])
    places = torch.arange(len(found)) if found.positions is None else found.positions
    counts = (places // positions).bincount(minlength=found.shape[0]).numpy()
    if counts.max(initial=0) < FEWEST_PIXELS:
        return math.nan
    # one pass over the probabilities for all images: AURC of each by itself takes most of its time for the checks
    statistics, ends = prediction_statistics(found.probs, found.labels), np.cumsum(counts)
    bounds = [slice(end - count, end) for end, count in zip(ends, counts, strict=True) if count >= FEWEST_PIXELS]
    groups = (group_ties(statistics.confidence[one], statistics.correct[one]) for one in bounds)
    return float(np.mean([risk_area(one) for one in groups]))


def _images_at_a_time(data: MemoryData, numbers: int, readings: int) -> int:
    most = MOST_NUMBERS
    if data.device.type == "cuda":
        most = max(most, torch.cuda.mem_get_info(data.device)[0] // SHARE // BYTES // readings)
    return max(1, most // max(1, numbers))


def _part(found: Predictions, wanted: Tensor) -> Part:
    """The wanted positions, on the CPU."""
    places = torch.arange(len(wanted), device=wanted.device) if found.positions is None else found.positions
    rows = wanted[places].nonzero()[:, 0]
    probs, labels, expected, where = (
        one[rows].cpu() for one in (found.probs, found.labels, found.expected_entropy, places)
    )
    return Part(probs, labels, expected, found.samples, found.monte_carlo_error, found.shape, where)


def _whole(parts: Sequence[Part]) -> Part:
    """The parts as one; those without a labelled pixel do not know the number of samples."""
    return joined(parts)._replace(samples=max(part.samples for part in parts))


def _nothing(data: MemoryData, some: MemoryData) -> Part:
    probs, labels = torch.empty(0, data.num_classes), torch.empty(0, dtype=torch.int64)
    return Part(probs, labels, torch.empty(0), 1, 0.0, tuple(some.labels.shape), labels.clone())


def _entity_counts(found: Predictions, tags: EntityTags) -> Array:
    places = torch.arange(len(found)) if found.positions is None else found.positions
    sentences = places // math.prod(found.shape[1:])
    predicted, labels, rows = (one.cpu().numpy() for one in (found.predicted, found.labels, sentences))
    return entity_counts(predicted, labels, rows, tags)


class _Maps:
    """Collects `Maps` over batches of images."""

    def __init__(self, threshold: float | None, show: bool, tags: EntityTags | None = None) -> None:
        self.threshold, self.show, self.tags = threshold, show, tags
        self.entities: Array | None = None
        self.counts: Array | None = None
        self.patches: Array | None = None
        self.worst: list[tuple[float, int, Part]] = []

    def add(self, found: Predictions, start: int) -> None:
        labelled = bool((found.labels >= 0).all())
        if labelled:
            counts = class_counts(found.predicted, found.labels, found.num_classes)
            self.counts = counts if self.counts is None else self.counts + counts
        if labelled and self.threshold is not None and min(found.shape[1:]) >= PATCH:
            values = torch.ones_like(found.entropy), found.correct.to(found.entropy), found.entropy
            # float64: sums of a patch decide on which side of the threshold it is
            ones, right, entropy = (found.to_map(value.double(), fill=0.0) for value in values)
            patches = patch_counts(ones, right, entropy, self.threshold, patch=PATCH)
            self.patches = patches if self.patches is None else self.patches + patches
        if labelled and self.tags is not None:
            entities = _entity_counts(found, self.tags)
            self.entities = entities if self.entities is None else self.entities + entities
        if labelled and self.show:
            self._keep_worst(found, start)

    def _keep_worst(self, found: Predictions, start: int) -> None:
        scores = map_scores(found).nan_to_num(-1.0)
        positions = math.prod(found.shape[1:])
        for row in scores.argsort(descending=True, stable=True)[:MOST_MAPS].tolist():
            wanted = torch.zeros(found.shape[0] * positions, dtype=torch.bool, device=scores.device)
            wanted[row * positions : (row + 1) * positions] = True
            if len(self.worst) < MOST_MAPS or float(scores[row]) > min(score for score, _, _ in self.worst):
                part = _part(found, wanted)
                assert part.positions is not None
                own = part._replace(shape=(1, *found.shape[1:]), positions=part.positions - row * positions)
                self.worst.append((float(scores[row]), start + row, own))
        self.worst = sorted(self.worst, key=lambda one: (-one[0], one[1]))[:MOST_MAPS]

    def finish(self, data: MemoryData) -> Maps:
        mistakes = None
        if self.show:
            rows = [row for score, row, _ in self.worst if score > 0]
            mistakes = []
            if rows:
                found = joined([part for score, _, part in self.worst if score > 0]).predictions()
                mistakes = worst_maps(found, data.subset(rows).to("cpu"), rows)
        return Maps(self.counts, self.patches, mistakes, self.entities)
