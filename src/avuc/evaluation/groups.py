"""Calibration within groups of rows: those of one predicted class, or of one value of a column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from avuc.core.errors import InputError
from avuc.core.natural_order import natural_order
from avuc.core.row_groups import Array, group_array, group_numbers
from avuc.evaluation.decomposition import rows_of
from avuc.metrics import Interval, intervals
from avuc.metrics.dependent_rows import groups_of
from avuc.metrics.more import more_intervals
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.suite import from_statistics
from avuc.predictions import Predictions

# metrics of a group
METRICS = ("accuracy", "nll", "ece")
SIDES = ("overconfidence", "underconfidence")
# a column with more values than this does not hold groups
MOST_GROUPS = 1000


@dataclass(frozen=True)
class GroupResult:
    """Figures of the rows of one group.

    Args:
        name: the value of the column, or the class.
        rows: number of rows.
        confidence: mean confidence.
        metrics: value and 95 % interval of accuracy, NLL, ECE, over- and underconfidence.
    """

    name: str
    rows: int
    confidence: float
    metrics: dict[str, Interval]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values; undefined ends are None."""
        content = asdict(self) | {"metrics": {name: each.value for name, each in self.metrics.items()}}
        content["intervals"] = {
            name: [each.low, each.high] for name, each in self.metrics.items() if not math.isnan(each.low)
        }
        return content


def evaluate_groups(
    predictions: Predictions,
    groups: Sequence[Any],
    *,
    bins: int = 15,
    replicates: int = 200,
    seed: int = 0,
    units: Any = None,
) -> list[GroupResult]:
    """Return the figures of each group of rows, in the order of the groups' names: 2 before 10, site-9 before site-10.

    Args:
        predictions: with labels.
        groups: the group of each row, (N,): names or numbers. Missing ones (None, NaN) are refused.
        bins: number of bins of the calibration errors.
        replicates: number of resamples of the intervals; 0: no intervals.
        seed: of the resamples.
        units: the image or other unit of each row, (N,), if rows of one unit are not independent; units are resampled
            then. Default None: pixels belong to their image, other rows are independent.

    >>> p = Predictions([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]], [0, 1, 0])
    >>> [(group.name, group.rows) for group in evaluate_groups(p, ["b", "a", "b"], replicates=0)]
    [('a', 1), ('b', 2)]
    """
    values = group_array(groups)
    if values.shape != (len(predictions),):
        raise InputError(f"groups must have one value for each of {len(predictions)} rows, found shape {values.shape}")
    names, member = _names_and_members(values)
    if len(names) > MOST_GROUPS:
        raise InputError(f"groups: found {len(names):,} different values; use a column with at most {MOST_GROUPS:,}")
    together, results = groups_of(predictions, len(predictions), units), []
    for number, name in enumerate(names):
        rows = rows_of(predictions, torch.from_numpy(np.flatnonzero(member == number)))
        some = None if together is None else groups_of(rows, len(rows), together[member == number])
        statistics = prediction_statistics(rows.probs, rows.labels)
        figures: dict[str, Interval]
        if replicates:
            figures = intervals(rows, METRICS, replicates=replicates, seed=seed, bins=bins, groups=some)
        else:
            plain = from_statistics(statistics, bins=bins, names=METRICS)
            figures = {key: Interval(value, math.nan, math.nan) for key, value in plain.items()}
        more = more_intervals(statistics, SIDES, replicates=replicates, seed=seed, bins=bins, groups=some)
        figures = {key: figures[key] for key in METRICS} | {key: more[key] for key in SIDES}
        results.append(GroupResult(name, len(rows), float(statistics.confidence.mean()), figures))
    return results


def _names_and_members(values: Array) -> tuple[list[str], Array]:
    """Return the names of the groups in their order, and the number of the group of each row."""
    if values.dtype.kind in "US":  # rows without a group have the name ""
        numbers = np.unique(values, return_inverse=True)[1]
    else:
        numbers = group_numbers(values)  # refuses missing ones
    if values.dtype.kind == "O":
        values = np.array(list(map(str, values)))
    first = np.unique(numbers, return_index=True)[1]
    found = values[first]
    # `tolist` would make whole numbers of times in nanoseconds
    texts = np.datetime_as_string(found, unit="auto") if found.dtype.kind == "M" else found
    names = list(map(str, found if found.dtype.kind == "m" else texts.tolist()))
    order = natural_order(names) if values.dtype.kind in "OUS" else names
    position = {name: number for number, name in enumerate(order)}
    return order, np.array([position[name] for name in names], dtype=np.int64)[numbers]
