"""PAvPU: accuracy versus uncertainty of patches, for segmentation (Mukhoti & Gal 2018, https://arxiv.org/abs/1811.12709).

An image is cut into patches of w × w pixels. A patch is accurate if at least half of its pixels are right, and certain
if the mean entropy of its pixels is at most the threshold. The ratios are those of `avuc.metrics.avu`, with patches in
place of predictions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX, as_rows
from avuc.metrics.arrays import Array
from avuc.metrics.avu import QuadrantCounts
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.threshold import Threshold, resolve_threshold
from avuc.uncertainty import highest_certain


class PatchAvU(NamedTuple):
    """The three ratios of `pavpu`, and the number of patches.

    Args:
        pavpu: share of patches that are accurate and certain, or inaccurate and uncertain. Higher is better.
        p_accurate_given_certain: NaN if no patch is certain.
        p_uncertain_given_inaccurate: NaN if no patch is inaccurate.
        patches: number of patches with a labelled pixel.
    """

    pavpu: float
    p_accurate_given_certain: float
    p_uncertain_given_inaccurate: float
    patches: int


def pavpu(
    probs: Any,
    labels: Any,
    *,
    threshold: Threshold = "auto",
    patch: int = 4,
    accuracy: float = 0.5,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
) -> PatchAvU:
    """Return patch accuracy versus patch uncertainty (PAvPU), p(accurate | certain) and p(uncertain | inaccurate).

        PAvPU = (n_AC + n_IU) / (n_AC + n_AU + n_IC + n_IU)        counts of patches

    Patches do not overlap; pixels that do not fill a patch at the right and lower edge are left out. With `patch=1`
    this is `avu`. At the threshold a patch is certain, as everywhere in this package; in the paper it is uncertain.

    Args:
        probs: (N, C, H, W) probabilities, or with any number of spatial dimensions; binary: of class 1, (N, 1, H, W).
            List, NumPy array or tensor.
        labels: (N, H, W) class numbers.
        threshold: mean entropy in nats up to which a patch is certain; "auto" (default): `auto_threshold` of pixels.
        patch: side of a patch in pixels (default 4).
        accuracy: share of right pixels from which on a patch is accurate (default 0.5).
        class_dim: dimension of the classes in `probs`. Default None: 1.
        ignore_index: pixels with this label are left out of their patch's means (default −100); None: no pixel is.

    >>> labels = np.zeros((1, 4, 8), int)
    >>> certain, unsure = np.full((1, 4, 4), 0.99), np.full((1, 4, 4), 0.4)  # probability of class 0
    >>> p = np.concatenate([certain, unsure], axis=2)  # two patches: right and certain, wrong and unsure
    >>> pavpu(np.stack([p, 1 - p], axis=1), labels, threshold=0.3).pavpu
    1.0
    """
    if isinstance(patch, bool) or not isinstance(patch, int) or patch < 1:
        raise InputError(f"pavpu: patch must be a whole number of pixels, at least 1; found {patch!r}")
    if not 0 <= accuracy <= 1:
        raise InputError(f"pavpu: accuracy is a share between 0 and 1; found {accuracy!r}")
    rows = as_rows(probs, labels, kind="probs", class_dim=class_dim, ignore_index=ignore_index)
    if len(rows.shape) < 2:
        raise InputError(f"pavpu: labels need spatial dimensions, as in (N, H, W); found {rows.shape}: use avu instead")
    if min(rows.shape[1:]) < patch:
        raise InputError(f"pavpu: no patch of {patch} pixels fits into images of {rows.shape[1:]}; use a smaller patch")
    if not len(rows.scores):
        raise InputError("pavpu: every label is ignored, so there is no patch; at least one labelled pixel is needed")
    statistics = prediction_statistics(rows.scores, rows.labels)
    level = resolve_threshold(statistics, threshold)
    where = slice(None) if rows.positions is None else rows.positions.numpy()
    maps = np.zeros((3, int(np.prod(rows.shape))))
    maps[:, where] = np.ones(len(statistics.entropy)), statistics.correct, statistics.entropy
    labelled, correct, entropy = (values.reshape(rows.shape) for values in maps)
    counts = patch_counts(labelled, correct, entropy, level, patch=patch, accuracy=accuracy)
    if not counts.sum():
        raise InputError("pavpu: no whole patch has a labelled pixel; use a smaller patch")
    return ratios_of(counts)


def patch_counts(
    labelled: Any, correct: Any, entropy: Any, threshold: float, *, patch: int = 4, accuracy: float = 0.5
) -> Array:
    """Return how many patches are AC, AU, IC and IU, (4,). The counts of several batches of images add up.

    Args:
        labelled: (N, *spatial) 1 for pixels that count and 0 for the others; an array, or a tensor on any device.
        correct: 1 where the prediction is right; 0 for pixels that do not count.
        entropy: in nats; 0 for pixels that do not count.
        threshold: mean entropy up to which a patch is certain.
        patch, accuracy: as in `pavpu`.

    >>> ones = np.ones((1, 2, 4))
    >>> patch_counts(ones, ones, np.repeat([0.1, 0.9], 4).reshape(1, 2, 4), 0.3, patch=2)
    array([0., 2., 0., 0.])
    """
    count, right, total = (_patch_sums(values, patch) for values in (labelled, correct, entropy))
    kept = count > 0
    accurate = right[kept] / count[kept] >= accuracy
    certain = total[kept] / count[kept] <= highest_certain(threshold)
    masks = accurate & certain, accurate & ~certain, ~accurate & certain, ~accurate & ~certain
    return np.array([float(mask.sum()) for mask in masks])


def ratios_of(counts: Array) -> PatchAvU:
    """Return the ratios from the counts of `patch_counts`."""
    quadrants = QuadrantCounts(*(np.asarray(count) for count in counts))
    given_certain, given_inaccurate = quadrants.accurate_given_certain, quadrants.uncertain_given_inaccurate
    return PatchAvU(float(quadrants.avu), float(given_certain), float(given_inaccurate), int(counts.sum()))


def _patch_sums(values: Any, patch: int) -> Any:
    """Return the sum over each whole patch of maps (N, *spatial), as a vector."""
    whole = values[(slice(None), *(slice(size // patch * patch) for size in values.shape[1:]))]
    split = [number for size in whole.shape[1:] for number in (size // patch, patch)]
    inside = tuple(range(2, 2 * whole.ndim - 1, 2))
    return whole.reshape(len(whole), *split).sum(inside).reshape(-1)
