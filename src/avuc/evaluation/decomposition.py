"""NLL and Brier score as refinement plus calibration: what a calibrator cannot repair, and what it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from avuc.calibration import TemperatureScaling, logits_from_probs
from avuc.calibration.cross_validation import cross_fit_predictions
from avuc.core.errors import InputError
from avuc.metrics import Interval
from avuc.metrics.dependent_rows import groups_of
from avuc.metrics.resampling.percentile import Errors, check_bootstrap, error_interval
from avuc.metrics.resampling.rows import resampled_rows, wider
from avuc.metrics.statistics import prediction_statistics
from avuc.predictions import Predictions

Array = np.ndarray[Any, np.dtype[Any]]


def decompose(
    predictions: Predictions,
    *,
    folds: int = 5,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    groups: Any = None,
) -> dict[str, Interval]:
    """Return NLL and Brier score as refinement and calibration, with bootstrap intervals.

        loss = refinement + calibration,   refinement = loss after temperature scaling

    (Berta et al. 2025, https://arxiv.org/abs/2501.19195). Every row is scaled by a temperature that was fitted on other
    rows, so the calibration part can be slightly below 0 for a calibrated model. Intervals are for these temperatures.

    Args:
        predictions: with labels.
        folds: parts of the cross-validation (default 5); 1: the temperature is fitted on the rows themselves.
        replicates: number of resamples (default 1000); 0: the ends of the intervals are NaN.
        level: confidence level (default 0.95).
        seed: of the split and of the resamples.
        groups: the group of each row, as in `avuc.evaluation.evaluate`; groups are held out and resampled as a whole.

    >>> p = Predictions([[0.99, 0.01], [0.99, 0.01], [0.02, 0.98], [0.03, 0.97]] * 50, [0, 1, 1, 1] * 50)
    >>> parts = decompose(p, replicates=0)
    >>> round(parts["nll_calibration"].value, 2), round(parts["nll_refinement"].value, 2)
    (0.57, 0.59)
    """
    if folds < 1 or len(predictions) < max(folds, 2):
        raise InputError(f"folds must be from 1 to the number of rows, {len(predictions)}, found {folds}")
    units = groups_of(predictions, len(predictions), groups)
    folds = folds if units is None else min(folds, int(units.max()) + 1)
    labels = predictions.labels.cpu()
    logits: Any = logits_from_probs(predictions.probs.detach().cpu().double())
    if folds == 1:
        fitted = TemperatureScaling().fit(logits, labels)
        scaled = Predictions.from_logits(fitted.transform(logits), labels, check=False)
    else:
        known = None if units is None else torch.from_numpy(units)
        scaled = cross_fit_predictions(TemperatureScaling(), logits, labels, folds, seed, groups=known)
    before, after = (prediction_statistics(each.probs.cpu(), labels) for each in (predictions, scaled))
    columns = {
        "nll_refinement": after.nll,
        "nll_calibration": before.nll - after.nll,
        "brier_refinement": after.brier,
        "brier_calibration": before.brier - after.brier,
    }
    return dict(zip(columns, mean_intervals(list(columns.values()), replicates, level, seed, units), strict=True))


def mean_intervals(
    columns: list[Array], replicates: int, level: float, seed: int, groups: Array | None = None
) -> list[Interval]:
    """Return the mean of each column (N,) with its percentile bootstrap interval, all from the same resamples."""
    table = np.stack(columns, 1)
    means = table.mean(0)
    if not replicates:
        return [Interval(float(mean), float("nan"), float("nan")) for mean in means]
    check_bootstrap(replicates, level)
    drawn = np.stack([table[index].mean(0) for index in resampled_rows(len(table), replicates, seed, groups)])
    both = [Errors(error, error) for error in (means - drawn).T]
    if groups is not None:
        both = [wider(errors, int(groups.max()) + 1) for errors in both]
    return [error_interval(float(mean), errors, level) for mean, errors in zip(means, both, strict=True)]


def rows_of(predictions: Predictions, rows: torch.Tensor) -> Predictions:
    """Return some rows of predictions; `rows` is a mask or their numbers."""
    return Predictions(
        predictions.probs[rows], predictions.labels[rows], predictions.expected_entropy[rows], predictions.samples
    )
