"""Bootstrap confidence intervals of the metrics of `detection`."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from avuc.core.frames import check_all_rows
from avuc.core.row_groups import images_or_groups
from avuc.metrics.arrays import Array, as_scores, comparable
from avuc.metrics.blockwise import needs_blocks
from avuc.metrics.dependent_rows import MOST_ROWS
from avuc.metrics.detection import detection, detection_and_gains, detection_from_sorted
from avuc.metrics.resampling.best_threshold import BestThreshold
from avuc.metrics.resampling.cells import cell_detection_errors
from avuc.metrics.resampling.group_sample import sample_factor, sample_groups
from avuc.metrics.resampling.near_limit import with_few_mistakes
from avuc.metrics.resampling.percentile import (
    Errors,
    Interval,
    check_bootstrap,
    clip_to_range,
    error_interval,
    few_groups_factor,
)
from avuc.metrics.resampling.rows import BLOCK, Advance, resampled_rows, weight_blocks, wider
from avuc.metrics.resampling.separated import likely_bounds, widened_detection
from avuc.metrics.sorted_samples import SortedPair

# resamples of groups at a time; both sides need the same number
MOST_AT_ONCE = 1000
# rows of the smaller sample from which on they are resampled without the widening of few groups
ENOUGH_ROWS = 20


def detection_intervals(
    in_entropy: Any,
    out_entropy: Any,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    advance: Advance | None = None,
    in_groups: Any = None,
    out_groups: Any = None,
) -> dict[str, Interval]:
    """Return bootstrap intervals of the metrics of `detection`; each of the two samples is resampled.

    With more than 100,000 independent rows, cells of similar entropies are resampled instead of rows.

    Rows of one image or group are not independent: whole groups are resampled, with a random sample of 20,000 rows of
    each side if it has more. A single group gives no interval: its ends are NaN.

    If the entropy separates the samples without a mistake, no resample has one, and the interval of an AUROC of 1 would
    be from 1 to 1. The intervals then allow for rows that such samples may miss: with n rows in the smaller sample, an
    AUROC of 1 has the lower end ((1 − level)/2)^(1/n), which is 98.8 % for 300 rows. `resampling/separated.py` has the
    other metrics. FPR95 of fewer than 72 OOD rows then has the interval from 0 to 1.

    With fewer than 20 rows in a sample the intervals are widened as those of few groups are. A single row, such as one
    new prediction, leaves almost every AUROC possible.

    With few mistakes the intervals of AUROC, AUPR and FPR95 are wider than percentile intervals (`near_limit.py`), and
    that of the detection accuracy allows for the choice of its threshold (`best_threshold.py`).

    Args:
        in_entropy: (N,) entropies of in-distribution inputs; list, NumPy array or tensor.
        out_entropy: (M,) entropies of OOD inputs.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        advance: called with the number of resamples that were just finished.
        in_groups: (N,) names or numbers of the group of each in-distribution input. Default None: each is independent.
        out_groups: (M,) the same for OOD inputs.

    >>> inside, outside = [0.1, 0.2, 0.3] * 20, [0.25, 0.8, 0.9] * 20
    >>> interval = detection_intervals(inside, outside, replicates=200)["auroc"]
    >>> interval.low < interval.value < interval.high
    True
    """
    check_bootstrap(replicates, level)
    check_all_rows(in_groups, "in_groups", in_entropy=in_entropy)
    check_all_rows(out_groups, "out_groups", out_entropy=out_entropy)
    values = detection(in_entropy, out_entropy)
    inside, outside = comparable(
        as_scores(in_entropy, "in_entropy", narrow=True), as_scores(out_entropy, "out_entropy", narrow=True)
    )
    sides = inside.astype(np.float64), outside.astype(np.float64)
    groups = _numbers(in_groups, len(sides[0]), "in_groups"), _numbers(out_groups, len(sides[1]), "out_groups")
    if any(each is not None for each in groups):
        return _of_groups(values, sides, groups, replicates, level, seed, advance)
    if needs_blocks(len(sides[0]) + len(sides[1]), 1):
        return blockwise_detection_intervals(
            SortedPair(*sides), replicates=replicates, level=level, seed=seed, advance=advance
        )
    distinct, where = np.unique(np.concatenate(sides), return_inverse=True)
    index = where[: len(sides[0])], where[len(sides[0]) :]
    # the two samples are drawn independently
    drawn = zip(*(resampled_rows(len(side), replicates, seed + k) for k, side in enumerate(sides)), strict=True)
    rows = len(sides[0]), len(sides[1])
    errors: dict[str, list[Array]] = {name: [] for name in values}
    whole = [np.bincount(group, minlength=len(distinct)) for group in index]
    best = BestThreshold(whole[0], whole[1], rows)
    step = max(1, BLOCK // len(distinct))
    while resamples := list(islice(drawn, step)):
        counts = [
            np.stack([np.bincount(group[pair[k]], minlength=len(distinct)) for pair in resamples])
            for k, group in enumerate(index)
        ]
        resampled, gains = detection_and_gains(distinct, negative=counts[0], positive=counts[1])
        for name, samples in resampled.items():
            errors[name].append(values[name] - samples)
        best.add(gains)
        if advance is not None:
            advance(len(resamples))
    return _ends(values, _both(errors) | {"detection_accuracy": best.errors()}, rows, rows, level)


def _both(errors: dict[str, list[Array]]) -> dict[str, Errors]:
    """Return the errors of percentile intervals from their parts."""
    return {name: Errors(*2 * (np.concatenate(parts),)) for name, parts in errors.items()}


def _ends(
    values: dict[str, float],
    errors: dict[str, Errors],
    rows: tuple[int, int],
    units: tuple[int, int],
    level: float,
    groups: int | None = None,
) -> dict[str, Interval]:
    """Return the intervals from resampled errors.

    Args:
        values: the metrics.
        errors: their errors; those of the detection accuracy from `BestThreshold`.
        rows: numbers of in-distribution and OOD rows.
        units: numbers of independent in-distribution and OOD rows, images or groups.
        level: confidence level.
        groups: of the side that has the fewest; None: rows are independent.
    """
    bounds = likely_bounds(values["auroc"], rows, units, level)
    few_rows = groups is None and min(units) < ENOUGH_ROWS
    if few_rows:  # a single row has no noise of its own; `_within` replaces what two rows would have
        groups = max(2, min(units))
    factor = 1.0 if groups is None else few_groups_factor(groups)
    found = {}
    for name, value in values.items():
        scaled = errors[name] if groups is None else wider(errors[name], groups)
        interval = clip_to_range(name, error_interval(value, scaled, level))
        if few_rows and name != "wasserstein":
            narrow = error_interval(value, errors[name], level)
            interval = _within(interval, narrow, bounds.get(name, (0.0, 1.0)), single=min(units) == 1)
        if name == "fpr95" and few_rows and units[1] < ENOUGH_ROWS:  # the entropy that 95 % exceed may be any lower one
            interval = Interval(value, interval.low, 1.0)
        if name in bounds:
            interval = with_few_mistakes(interval, errors[name].over, level, bounds[name], factor=factor)
        elif name == "fpr95":
            interval = with_few_mistakes(interval, errors[name].over, level, least=3, factor=factor)
        elif name == "detection_accuracy" and value == 1:  # `widened_detection` has its ends
            interval = Interval(1.0, interval.low if np.isnan(interval.low) else 1.0, interval.high)
        elif name == "detection_accuracy":  # without a useful threshold it is 0.5
            interval = Interval(value, float(np.maximum(interval.low, 0.5)), interval.high)
        found[name] = interval
    return widened_detection(found, rows, units, level)


def _within(wide: Interval, narrow: Interval, bounds: tuple[float, float], *, single: bool) -> Interval:
    """Return the wide interval within bounds that hold for any number of rows; the narrow one may be beyond them."""
    low, high = bounds if single else (max(wide.low, bounds[0]), min(wide.high, bounds[1]))
    return Interval(wide.value, min(low, narrow.low), max(high, narrow.high))


def _of_groups(
    values: dict[str, float],
    sides: tuple[Array, Array],
    groups: tuple[Array | None, Array | None],
    replicates: int,
    level: float,
    seed: int,
    advance: Advance | None,
) -> dict[str, Interval]:
    """Return the intervals if at least one side has groups; each row of a side without groups is its own group."""
    members = [np.arange(len(side)) if group is None else group for side, group in zip(sides, groups, strict=True)]
    units = [int(group.max()) + 1 for group in members]
    few = min(many for many, group in zip(units, groups, strict=True) if group is not None)
    sizes = [np.bincount(group) for group in members]
    # `sample_groups` counts rows that are ordered by group
    some = [
        np.argsort(group, kind="stable")[sample_groups(size, MOST_ROWS, seed + k)]
        for k, (group, size) in enumerate(zip(members, sizes, strict=True))
    ]
    rows = [side[index] for side, index in zip(sides, some, strict=True)]
    members = [np.unique(group[index], return_inverse=True)[1] for group, index in zip(members, some, strict=True)]
    # the noise of both sides adds up: the side that is less of a sample decides
    factor = max(sample_factor(size, np.bincount(group)) for size, group in zip(sizes, members, strict=True))
    distinct, where = np.unique(np.concatenate(rows), return_inverse=True)
    value_indices = where[: len(rows[0])], where[len(rows[0]) :]
    most = max(1, min(MOST_AT_ONCE, BLOCK // len(distinct)))
    blocks = [
        weight_blocks(len(side), replicates, seed + k, most, group)
        for k, (side, group) in enumerate(zip(rows, members, strict=True))
    ]
    errors: dict[str, list[Array]] = {name: [] for name in values}
    counts = [np.bincount(value_index, minlength=len(distinct)) for value_index in value_indices]
    best = BestThreshold(counts[0], counts[1], (units[0], units[1]))
    middle = detection(*rows)
    for weights in zip(*blocks, strict=True):
        negative, positive = (
            np.stack([np.bincount(value_index, weight, len(distinct)) for weight in side])
            for value_index, side in zip(value_indices, weights, strict=True)
        )
        resampled, gains = detection_and_gains(distinct, negative=negative, positive=positive)
        for name, samples in resampled.items():
            errors[name].append(middle[name] - samples)
        best.add(gains)
        if advance is not None:
            advance(len(negative))
    both = _both(errors) | {"detection_accuracy": best.errors()}
    both = {name: Errors(factor * error.over, factor * error.under) for name, error in both.items()}
    return _ends(values, both, (len(sides[0]), len(sides[1])), (units[0], units[1]), level, few)


def _numbers(groups: Any, rows: int, name: str) -> Array | None:
    """Return the number of the group of each row; None if the rows are independent."""
    return None if groups is None else images_or_groups((rows,), None, rows, groups, name=name)


def blockwise_detection_intervals(
    entropies: SortedPair, *, replicates: int, level: float = 0.95, seed: int = 0, advance: Advance | None = None
) -> dict[str, Interval]:
    """Return `detection_intervals` for large samples; cells of similar entropies are resampled.

    Args:
        entropies: in-distribution entropies as its negative sample, OOD entropies as its positive one.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        advance: called with the number of resamples that were just finished.
    """
    check_bootstrap(replicates, level)
    values = detection_from_sorted(entropies)
    errors = cell_detection_errors(entropies, replicates, seed, advance)
    rows = len(entropies.negative), len(entropies.positive)
    return _ends(values, errors, rows, rows, level)
