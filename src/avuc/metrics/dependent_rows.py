"""What the bootstrap draws: rows, random cells of many rows, or the images or groups of dependent rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from avuc.core.frames import check_all_rows
from avuc.core.row_groups import images_or_groups
from avuc.core.tasks import IGNORE_INDEX
from avuc.metrics.arrays import Array
from avuc.metrics.blockwise import needs_blocks
from avuc.metrics.calibration import confidence_table, debiased_square
from avuc.metrics.resampling.cell_units import cells_as_units
from avuc.metrics.resampling.group_sample import sample_factor, sample_groups
from avuc.metrics.resampling.group_sums import GroupSums
from avuc.metrics.resampling.percentile import Errors
from avuc.metrics.resampling.rows import Advance, RowResampler, resampled_errors
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.threshold import Threshold
from avuc.predictions import MultiLabelPredictions, Predictions

# For metrics that are not sums over rows, the bootstrap over groups uses a random sample of this many rows
# (`resampling/group_sample.py`). The values are those of all rows. The sample makes the intervals wider if it has a
# part of the rows of a group only, because it adds noise within the groups.
MOST_ROWS = 20_000
# With more scores than this, resampling the class-wise errors of two models by rows takes most of half a minute.
MOST_SCORES = 1 << 24
# metrics whose errors are not proportional to 1/√rows
NOT_SCALED = ("debiased_ece", "avu_auc")


def groups_of(predictions: Any, rows: int, groups: Any = None) -> Array | None:
    """Return the number of the image or group of each row; None if rows are independent.

    Args:
        predictions: with `probs` and `labels`.
        rows: number of rows that they have.
        groups: as for `avuc.core.row_groups.images_or_groups`.

    >>> groups_of(MultiLabelPredictions([[0.9, 0.2], [0.1, 0.3]], [[1, -100], [0, 1]]), 3).tolist()
    [0, 1, 1]
    """
    if isinstance(predictions, MultiLabelPredictions):
        predictions = predictions.flatten()
    if isinstance(predictions, Predictions):
        return images_or_groups(predictions.shape, predictions.positions, rows, groups)
    return groups_of_labels(predictions.labels, IGNORE_INDEX, rows, groups)


def groups_of_labels(labels: Any, ignore_index: int | None, rows: int, groups: Any = None) -> Array | None:
    """Return the same for labels of any layout, of which `rows` are not ignored."""
    check_all_rows(groups, "groups", labels=labels)
    targets = np.asarray(labels.detach().cpu() if isinstance(labels, torch.Tensor) else labels)
    kept = np.flatnonzero(targets.reshape(-1) != ignore_index)
    positions = torch.from_numpy(kept) if len(kept) == rows < targets.size else None
    return images_or_groups(targets.shape, positions, rows, groups)


def bootstrap_errors(
    probs: Sequence[Any],
    statistics: Sequence[Statistics],
    names: Collection[str],
    *,
    threshold: Threshold,
    bins: int,
    replicates: int,
    seed: int,
    advance: Advance | None = None,
    groups: Array | None = None,
    squares: Sequence[float | None] | None = None,
) -> list[dict[str, Errors]]:
    """Return `resampled_errors` of several models on the same rows.

    Of many independent rows, random cells are drawn (`resampling/cell_units.py`). Of many rows of groups, the metrics
    that are not sums over rows use a random sample.

    Args:
        probs: (N, C) probabilities of each model.
        statistics: of each model.
        names: metrics of `METRICS`.
        threshold, bins, replicates, seed, advance: of the bootstrap.
        groups: (N,) numbers 0, 1, … of the groups of dependent rows; None: rows are independent.
        squares: the squared debiased error of each model, if these rows are a sample of others; None: they are not.
    """
    some, of_some, kept, factor = thinned(probs, statistics, groups, bins, seed)
    if some is not probs:
        squares = [float(debiased_square(confidence_table(each, bins))) for each in statistics]
    settings: dict[str, Any] = {"threshold": threshold, "bins": bins, "seed": seed, "groups": kept}
    samplers = [
        resampler(p, s, names, **settings, square=square)
        for p, s, square in zip(some, of_some, squares or [None] * len(some), strict=True)
    ]
    errors = narrower(resampled_errors(samplers, replicates, seed, advance, kept), factor)
    if groups is not None and some is not probs:
        for model_errors, model_statistics in zip(errors, statistics, strict=True):
            sums = GroupSums(int(groups.max()) + 1, bins)
            sums.add(model_statistics, groups)
            model_errors.update(
                {name: error for name, error in sums.errors(replicates, seed).items() if name in model_errors}
            )
    return errors


def draws_cells(rows: int, num_classes: int) -> bool:
    """Return whether the bootstrap of two models draws random cells of independent rows instead of rows.

    >>> draws_cells(50_000, 10), draws_cells(50_000, 1_000), draws_cells(1_000_000, 2)
    (False, True, True)
    """
    return rows * num_classes > MOST_SCORES or needs_blocks(rows, num_classes)


def resampler(
    probs: Any,
    statistics: Statistics,
    names: Collection[str],
    *,
    threshold: Threshold = "auto",
    bins: int = 15,
    seed: int = 0,
    groups: Array | None = None,
    square: float | None = None,
) -> RowResampler:
    """Return the resampler of rows or groups; of random cells of rows, if many rows are independent.

    Args:
        probs: (N, C) probabilities.
        statistics: of them.
        names: metrics of `METRICS`.
        threshold: entropy up to which a prediction is certain, or "auto".
        bins: of the calibration errors.
        seed: of the cells.
        groups: (N,) numbers of groups; None: rows are independent.
        square: the squared debiased error of all rows, if these are a sample of them; None: they are not.
    """
    cells = groups is None and draws_cells(len(statistics), statistics.num_classes)
    units = cells_as_units(probs, statistics, names, bins, seed) if cells else None
    return RowResampler(probs, statistics, names, threshold=threshold, bins=bins, square=square, units=units)


def narrower(errors: Sequence[Mapping[str, Errors]], factor: float) -> list[dict[str, Errors]]:
    """Return the errors of a sample of rows, multiplied by `sample_factor`.

    Those of `NOT_SCALED` are kept: the noise of the debiased error may fall faster with the rows than the factor does,
    and that of AvU-AUC, which depends on the extreme entropies, falls more slowly.
    """
    return [
        {
            name: error if name in NOT_SCALED else Errors(factor * error.over, factor * error.under)
            for name, error in each.items()
        }
        for each in errors
    ]


def thinned(
    probs: Sequence[Any], statistics: Sequence[Statistics], groups: Array | None, bins: int, seed: int
) -> tuple[Sequence[Any], Sequence[Statistics], Array | None, float]:
    """Return a random sample of the rows if they have groups and are more than `MOST_ROWS`; else the arguments.

    The last value is the `sample_factor` of its errors.

    Args:
        probs: (N, C) probabilities of each model.
        statistics: of each model.
        groups: (N,) numbers of groups; None: nothing is left out.
        bins: of the statistics.
        seed: of the sample.
    """
    rows = len(statistics[0])
    if groups is None or rows <= MOST_ROWS:
        return probs, statistics, groups, 1.0
    sizes = np.bincount(groups)
    index = np.sort(np.argsort(groups, kind="stable")[sample_groups(sizes, MOST_ROWS, seed)])
    labels = statistics[0].labels[index]
    some = [matrix[torch.from_numpy(index)] if isinstance(matrix, torch.Tensor) else matrix[index] for matrix in probs]
    kept: Array = np.unique(groups[index], return_inverse=True)[1]
    of_some = [prediction_statistics(matrix, labels, bins=bins) for matrix in some]
    return some, of_some, kept, sample_factor(sizes, np.bincount(kept))
