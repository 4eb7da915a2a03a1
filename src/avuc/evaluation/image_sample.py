"""Intervals of dense scores that are read in blocks: sums of each image, and a sample of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from avuc.metrics import Interval
from avuc.metrics.arrays import Array
from avuc.metrics.dependent_rows import MOST_ROWS, narrower
from avuc.metrics.intervals import Bootstrap
from avuc.metrics.resampling.group_sample import sample_factor, sample_groups
from avuc.metrics.resampling.group_sums import GroupSums
from avuc.metrics.resampling.one_outcome import units_within, widened
from avuc.metrics.resampling.percentile import clip_to_range, error_interval
from avuc.metrics.statistics import prediction_statistics

# largest number of probabilities in the sample
MOST_ELEMENTS = 1 << 23


class ImageSample:
    """Collects what the bootstrap over images needs, from rows that come block by block.

    Args:
        sizes: (K,) number of rows of each image; the rows come in this order.
        num_classes: number of classes.
        bins: number of bins of the calibration errors.
        seed: of the sample.
    """

    def __init__(self, sizes: Array, num_classes: int, bins: int, seed: int) -> None:
        rows = int(sizes.sum())
        most = min(rows, MOST_ROWS, max(1, MOST_ELEMENTS // num_classes))
        self.chosen: Array = sample_groups(sizes, most, seed)
        self.sizes: Array = sizes
        self.ends: Array = np.cumsum(sizes)
        self.bins: int = bins
        self.sums: GroupSums = GroupSums(len(sizes), bins)
        self.probs: list[Tensor] = []
        self.labels: list[Tensor] = []
        self._done = 0

    def add(self, probs: Tensor, labels: Tensor) -> None:
        """Add the next rows, (N, C) and (N,)."""
        first, last = self._done, self._done + len(labels)
        self._done = last
        self.sums.add(prediction_statistics(probs, labels), self._images(np.arange(first, last)))
        begin, end = np.searchsorted(self.chosen, (first, last))
        some = torch.from_numpy(self.chosen[begin:end] - first)
        self.probs.append(probs[some])
        self.labels.append(labels[some])

    def intervals(self, how: Bootstrap, values: Mapping[str, float]) -> dict[str, Interval]:
        """Return the interval of each metric.

        Args:
            how: settings of the bootstrap.
            values: the metrics of all rows.
        """
        probs, labels = torch.cat(self.probs), torch.cat(self.labels)
        groups = np.unique(self._images(self.chosen), return_inverse=True)[1]
        of_rows = prediction_statistics(probs, labels, bins=self.bins)
        square = values["debiased_ece"] ** 2  # of all rows; a negative one counts as 0
        of_sample = replace(how, groups=groups).errors([probs], [of_rows], list(values), [square])
        (errors,) = narrower(of_sample, sample_factor(self.sizes, np.bincount(groups)))
        errors |= self.sums.errors(how.replicates, how.seed)
        unclipped = {name: error_interval(value, errors[name], how.level) for name, value in values.items()}
        clipped = {name: clip_to_range(name, interval) for name, interval in unclipped.items()}

        def within() -> dict[str, int]:
            # images with a certain or wrong row of the sample; others may have one, so intervals are rather too wide
            return units_within(of_rows, how.threshold, groups)

        return widened(clipped, values["accuracy"], len(self.ends), how.level, within)

    def _images(self, rows: Array) -> Array:
        return np.searchsorted(self.ends, rows, side="right")
