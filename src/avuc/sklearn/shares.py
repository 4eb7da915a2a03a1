"""A warning for calibrated probabilities that expect a class much more often than it occurs."""

from __future__ import annotations

import numpy as np

from avuc.calibration import CalibrationWarning
from avuc.core.caller import warn_caller
from avuc.sklearn.scores import Array

# smaller differences and ratios do little harm; standard errors beyond which a difference is not chance
SMALLEST, RATIO, ERRORS = 0.05, 2, 5


def warn_of_class_shares(
    probs: Array, numbers: Array, weight: Array | None, groups: Array | None, names: Array
) -> None:
    """Warn if the mean probability of a class is at least twice its share, as after class weights or resampling.

    A temperature cannot repair this, and ECE may not show it.

    Args:
        probs: (N, C) calibrated probabilities of held-out rows.
        numbers: (N,) their class numbers.
        weight: (N,) weights of the rows; None: all are equal.
        groups: (N,) numbers of the groups of dependent rows; None: rows are independent.
        names: (C,) the classes.
    """
    weights = np.ones(len(numbers)) if weight is None else weight
    expected = np.average(probs, axis=0, weights=weights)
    found = np.bincount(numbers, weights, len(names)) / weights.sum()
    units = weights if groups is None else np.bincount(groups, weights)
    chance = np.sqrt(found * (1 - found) * (units**2).sum()) / units.sum()
    worst = int((expected - found).argmax())
    stated, right = float(expected[worst]), float(found[worst])
    if stated > max(right + SMALLEST, RATIO * right, right + ERRORS * chance[worst]):
        warn_caller(
            f"the probabilities expect class {names.tolist()[worst]!r} in {100 * stated:.3g} % of the held-out rows, "
            f"and {100 * right:.3g} % have it, as after class weights or resampling in training; a temperature does "
            "not repair this, method='auto' or 'vector' can",
            CalibrationWarning,
        )
