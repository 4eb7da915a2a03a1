"""Compare predictions before and after a calibrator, on rows that the calibrator was not fitted on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from avuc.calibration import Calibrator, TemperatureScaling
from avuc.calibration.cross_validation import check_predictions, cross_fit_predictions
from avuc.calibration.mixtures import MixedTemperatureScaling
from avuc.core.errors import InputError
from avuc.core.progress import delayed_progress
from avuc.core.row_groups import Array
from avuc.core.tasks import IGNORE_INDEX
from avuc.evaluation.changes import Change as Change
from avuc.evaluation.changes import hurt_scores as hurt_scores
from avuc.evaluation.compare_inputs import compared
from avuc.evaluation.compare_result import Comparison as Comparison
from avuc.evaluation.compare_result import rejected as rejected
from avuc.evaluation.compare_result import with_warning as with_warning
from avuc.evaluation.evaluate import evaluate_statistics
from avuc.evaluation.files import ScoreFile
from avuc.evaluation.fitted import AUTO, candidates, changes_nothing, chosen, fit_curve, fit_notes, unfitted
from avuc.evaluation.result import interval_bounds
from avuc.metrics.dependent_rows import draws_cells
from avuc.metrics.intervals import Bootstrap, compared_intervals
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.threshold import Threshold
from avuc.predictions import Predictions

ONE_GROUP = "all rows belong to one image or group, so there are no intervals; give at least 2 images or groups"


def compare(
    file: ScoreFile | Predictions | Any,
    method: str,
    *,
    labels: Any = None,
    folds: int = 5,
    threshold: Threshold = "auto",
    bins: int = 15,
    replicates: int = 1000,
    seed: int = 0,
    keep_worse: bool = False,
    class_dim: int | None = None,
    ignore_index: int | None = IGNORE_INDEX,
    groups: Any = None,
) -> tuple[Calibrator, Comparison]:
    """Fit a calibrator on all rows, and return it with its effect on held-out rows.

    The metrics come from cross-fitting: the rows are split at random into `folds` parts, and each part is calibrated by
    a fit on the other parts. If `avuc.calibration.check_calibrator` finds the calibrator worse than none, the returned
    calibrator changes nothing (temperature 1) and `Comparison.refused` describes the rejected one.

    Args:
        file: labelled scores: a file from `read_scores`, `Predictions`, or logits together with `labels`, as for
            `Calibrator.fit`.
        method: a name in `avuc.calibration.CALIBRATORS`, such as "temperature"; or "auto", see `AutoCalibrator`.
        labels: class numbers, if `file` is logits. Default None: the file or the predictions have them.
        folds: parts for cross-fitting.
        threshold: entropy in nats up to which a prediction counts as certain; "auto": learned from these rows.
        bins: bins of ECE and UCE.
        replicates: bootstrap resamples behind the intervals; 0: no intervals.
        seed: seed of the split and of the bootstrap.
        keep_worse: return the fitted calibrator even if it is worse than none.
        class_dim: dimension of the classes, if `file` is logits; as for `Calibrator.fit`.
        ignore_index: rows with this label are left out (default −100), if `file` is logits.
        groups: the group of each row, such as a patient: names or numbers (N,). Groups are held out and resampled as a
            whole, so rows of one group may depend on each other. Default None: pixels and tokens belong to their image
            or sentence, other rows are independent.

    >>> import tempfile, numpy as np
    >>> from avuc.evaluation.files import read_scores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", logits=np.tile([[9.0, 0.0], [0.0, 9.0]], (20, 1)), labels=[0, 1, 1, 0] * 10)
    ...     calibrator, comparison = compare(read_scores(f"{folder}/a.npz"), "temperature", replicates=0)
    >>> calibrator.temperature_ > 1, comparison.after.metrics["ece"] < comparison.before.metrics["ece"]
    (True, True)
    """
    calibrator = unfitted(method, seed)
    scores = compared(file, labels, class_dim, ignore_index, groups)
    before, logits, targets = scores.before, scores.logits, scores.before.labels
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            some: dict[str, Any] = {"groups": scores.groups} if scores.groups is not None and method == AUTO else {}
            calibrator.fit(logits, targets, **some)
    except InputError as error:
        raise scores.error(error) from error
    units, unit_name = len(before), "row"
    if scores.groups is not None:
        units, unit_name = int(scores.groups.max()) + 1, "image or group"
    folds = min(folds, units)
    if folds < 2:
        after = scores.predictions(calibrator)
        how = (
            f"the one {unit_name} that the calibrator was fitted on; nothing could be held out, so they are optimistic"
        )
    elif changes_nothing(calibrator):
        after, how = before, "all rows; nothing is changed"
    else:
        group_numbers = None if scores.groups is None else torch.from_numpy(scores.groups)
        after = cross_fit_predictions(calibrator, logits, targets, folds, seed, groups=group_numbers)
        whole = "" if group_numbers is None else f" of {units:,} whole images or groups"
        how = (
            f"held-out rows ({folds} parts{whole}, each calibrated by a fit on the other parts); the saved calibrator "
            "is fitted on all rows"
        )
    result = compare_predictions(
        calibrator,
        before,
        after,
        method=method,
        how=how,
        folds=folds,
        messages=list(dict.fromkeys(str(warning.message) for warning in caught)),
        threshold=threshold,
        bins=bins,
        replicates=replicates,
        seed=seed,
        groups=scores.groups,
    )
    saved = chosen(calibrator)
    saved.class_names_ = scores.names
    if not result.check.worse:
        return saved, result
    if keep_worse:
        return saved, with_warning(result)
    identity = TemperatureScaling.identity(before.num_classes, result.before.metrics["nll"])
    identity.class_names_ = scores.names
    return identity, rejected(result)


def compare_predictions(
    calibrator: Calibrator,
    before: Predictions,
    after: Predictions,
    *,
    method: str,
    how: str,
    folds: int,
    messages: Sequence[str],
    threshold: Threshold,
    bins: int,
    replicates: int,
    seed: int,
    groups: Array | None,
) -> Comparison:
    """Return the effect of a fitted calibrator, from predictions without it and cross-fitted ones on the same rows.

    Args:
        calibrator: fitted on all rows.
        before: predictions without a calibrator.
        after: predictions of fits on other rows.
        method: name of the method.
        how: which rows the metrics come from, as text.
        folds: parts of the cross-fitting; 1: nothing was held out.
        messages: warnings of the fit.
        threshold: entropy in nats up to which a prediction counts as certain; "auto": learned from these rows.
        bins: bins of ECE and UCE.
        replicates: bootstrap resamples behind the intervals; 0: no intervals.
        seed: seed of the bootstrap.
        groups: (N,) numbers 0, 1, … of the images or groups of dependent rows; None: rows are independent.
    """
    units = None if groups is None else int(groups.max()) + 1
    if units == 1:
        replicates, messages = 0, [*messages, ONE_GROUP]
    statistics_after, statistics_before = (prediction_statistics(p.probs, p.labels, bins=bins) for p in (after, before))
    second = evaluate_statistics(after, statistics_after, threshold=threshold, bins=bins)
    first = evaluate_statistics(before, statistics_before, threshold=threshold, bins=bins)
    change = {name: (second.metrics[name] - first.metrics[name], math.nan, math.nan) for name in first.metrics}
    if replicates:
        with delayed_progress("intervals", replicates) as advance:
            bootstrap = Bootstrap(replicates, seed=seed, threshold=threshold, bins=bins, advance=advance, groups=groups)
            both = [statistics_after, statistics_before]
            paired = compared_intervals((after.probs, before.probs), both, None, bootstrap)
        change = {name: (*pair.difference,) for name, pair in paired.items()}
        intervals_after = interval_bounds({name: pair.a for name, pair in paired.items()})
        intervals_before = interval_bounds({name: pair.b for name, pair in paired.items()})
        many = "random cells" if draws_cells(len(after), after.num_classes) else "rows"
        drawn: dict[str, Any] = {"replicates": replicates, "bootstrap": many if groups is None else "groups"}
        second = replace(second, intervals=intervals_after, **drawn)
        first = replace(first, intervals=intervals_before, **drawn)
    statistics = (statistics_before, statistics_after)
    group_numbers = None if groups is None else torch.from_numpy(groups)
    check = check_predictions(
        calibrator, before, after, folds=folds, bins=bins, seed=seed, statistics=statistics, groups=group_numbers
    )
    fitted = chosen(calibrator)
    scaler = fitted if isinstance(fitted, TemperatureScaling) else None
    hurt = hurt_scores(change)
    return Comparison(
        method=method,
        temperature=None if scaler is None else float(scaler.temperature_),
        how=how,
        before=first,
        after=second,
        change=change,
        warnings=[
            *messages,
            *hurt,
            # `hurt_scores` already warns about NLL and the Brier score
            *(
                text
                for name, text in zip(check.tradeoff_metrics, check.tradeoffs, strict=True)
                if not hurt or name == "ece"
            ),
        ],
        curve={} if scaler is None else fit_curve(scaler),
        check=check,
        notes=fit_notes(calibrator),
        candidates=candidates(calibrator),
        groups=units,
        mixed=isinstance(fitted, MixedTemperatureScaling),
    )
