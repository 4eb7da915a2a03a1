"""Compare predictions before and after a calibrator, on rows that the calibrator was not fitted on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from avuc.calibration import Calibrator, CalibratorCheck, TemperatureScaling
from avuc.calibration.cross_validation import check_predictions, cross_fit_predictions
from avuc.core.display import Displayed, data_frame, text
from avuc.core.errors import InputError
from avuc.core.progress import delayed_progress
from avuc.core.tasks import IGNORE_INDEX
from avuc.evaluation.changes import Change as Change
from avuc.evaluation.changes import hurt_scores as hurt_scores
from avuc.evaluation.compared import compared
from avuc.evaluation.evaluate import evaluate_statistics
from avuc.evaluation.files import ScoreFile
from avuc.evaluation.fitted import candidates, changes_nothing, chosen, fit_curve, fit_notes, unfitted
from avuc.evaluation.result import EvaluationResult, Series, interval_bounds, json_value
from avuc.metrics.intervals import Bootstrap, compared_intervals
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.threshold import Threshold
from avuc.predictions import Predictions


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Metrics before and after a calibrator, on the same rows. `compare` returns it.

    Args:
        method: name of the calibration method.
        temperature: the fitted temperature; None for methods without one.
        how: which rows the metrics come from, as text.
        before: result without the calibrator.
        after: result with the calibrator.
        change: after − before of every metric: (value, low, high).
        warnings: what the user must know before using the calibrator.
        curve: the loss at each temperature that was tried; empty for methods without a temperature.
        check: whether the fitted calibrator is worse than none.
        notes: remarks about the fit.
        refused: the comparison of the fitted calibrator, if it was rejected as worse than none.
        candidates: with the method "auto", what each calibrator did in cross-validation; else empty.

    >>> import tempfile, numpy as np
    >>> from avuc.evaluation.files import read_scores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", logits=np.tile([[9.0, 0.0], [0.0, 9.0]], (20, 1)), labels=[0, 1, 1, 0] * 10)
    ...     _, comparison = compare(read_scores(f"{folder}/a.npz"), "temperature", replicates=0)
    >>> comparison.change["nll"][0] < 0, comparison.refused
    (True, None)
    """

    method: str
    temperature: float | None
    how: str
    before: EvaluationResult
    after: EvaluationResult
    change: dict[str, Change]
    warnings: list[str]
    curve: Series
    check: CalibratorCheck
    notes: list[str] = field(default_factory=list)
    refused: Comparison | None = None
    candidates: list[dict[str, Any]] = field(default_factory=list)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each metric: metric, before, after, change, low, high."""
        header, rows = self._table()
        return data_frame({name: [row[column] for row in rows] for column, name in enumerate(header)})

    def _table(self) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        before, after = self.before.metrics, self.after.metrics
        rows = [(name, before[name], after[name], *self.change[name]) for name in before if name in self.change]
        return ("metric", "before", "after", "change", "low", "high"), rows

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"method": self.method}
        if self.temperature is not None:
            facts["temperature"] = self.temperature
        for name in ("nll", "ece"):
            facts[name] = f"{text(self.before.metrics[name])} → {text(self.after.metrics[name])}"
        return facts | ({"refused": True} if self.refused else {})

    @property
    def shown(self) -> Comparison:
        """The comparison that tables and charts show: of the fitted calibrator, even if it was rejected."""
        return self.refused or self

    def as_json(self) -> dict[str, Any]:
        """Return the document that `avuc calibrate --json` writes."""
        refused = self.refused
        document: dict[str, Any] = json_value(
            self.after.as_json()
            | {
                "method": self.method,
                "temperature": self.temperature,
                "evaluated_on": self.how,
                "before": self.before.metrics,
                "after": self.after.metrics,
                "before_intervals": self.before.intervals,
                "change": self.change,
                "warnings": self.warnings,
                "check": self.check.as_json(),
                "refused": refused
                and {
                    "method": refused.method,
                    "temperature": refused.temperature,
                    "reasons": self.check.reasons,
                    "before": refused.before.metrics,
                    "after": refused.after.metrics,
                    "change": refused.change,
                },
            }
        )
        return document | ({"candidates": json_value(self.candidates)} if self.candidates else {})


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

    >>> import tempfile, numpy as np
    >>> from avuc.evaluation.files import read_scores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", logits=np.tile([[9.0, 0.0], [0.0, 9.0]], (20, 1)), labels=[0, 1, 1, 0] * 10)
    ...     calibrator, comparison = compare(read_scores(f"{folder}/a.npz"), "temperature", replicates=0)
    >>> calibrator.temperature_ > 1, comparison.after.metrics["ece"] < comparison.before.metrics["ece"]
    (True, True)
    """
    calibrator = unfitted(method, seed)
    scores = compared(file, labels, class_dim, ignore_index)
    before, logits, targets = scores.before, scores.logits, scores.before.labels
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            calibrator.fit(logits, targets)
    except InputError as error:
        raise scores.error(error) from error
    folds = min(folds, len(before))
    if folds < 2:
        after = scores.predictions(calibrator)
        how = "the one row that the calibrator was fitted on; no row could be held out, so they are optimistic"
    elif changes_nothing(calibrator):
        after, how = before, "all rows; nothing is changed"
    else:
        after = cross_fit_predictions(calibrator, logits, targets, folds, seed)
        how = (
            f"held-out rows ({folds} parts, each calibrated by a fit on the other parts); the saved calibrator is "
            "fitted on all rows"
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
    messages: Sequence[str] = (),
    threshold: Threshold = "auto",
    bins: int = 15,
    replicates: int = 1000,
    seed: int = 0,
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
    """
    statistics_after, statistics_before = (prediction_statistics(p.probs, p.labels, bins=bins) for p in (after, before))
    second = evaluate_statistics(after, statistics_after, threshold=threshold, bins=bins)
    first = evaluate_statistics(before, statistics_before, threshold=threshold, bins=bins)
    change = {name: (second.metrics[name] - first.metrics[name], math.nan, math.nan) for name in first.metrics}
    if replicates:
        with delayed_progress("intervals", replicates) as advance:
            bootstrap = Bootstrap(replicates, seed=seed, threshold=threshold, bins=bins, advance=advance)
            both = [statistics_after, statistics_before]
            paired = compared_intervals((after.probs, before.probs), both, None, bootstrap)
        change = {name: (*pair.difference,) for name, pair in paired.items()}
        intervals_after = interval_bounds({name: pair.a for name, pair in paired.items()})
        intervals_before = interval_bounds({name: pair.b for name, pair in paired.items()})
        second = replace(second, intervals=intervals_after, replicates=replicates)
        first = replace(first, intervals=intervals_before, replicates=replicates)
    statistics = (statistics_before, statistics_after)
    check = check_predictions(calibrator, before, after, folds=folds, bins=bins, seed=seed, statistics=statistics)
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
    )


def with_warning(result: Comparison) -> Comparison:
    """Return the comparison of a calibrator that is kept although it is worse than none."""
    return replace(result, warnings=[*result.check.warnings[:1], *result.warnings])


def rejected(fitted: Comparison) -> Comparison:
    """Return the comparison for a calibrator that changes nothing, used instead of the fitted one."""
    temperature = f" at temperature {fitted.temperature:.4g}" if fitted.temperature is not None else ""
    warning = (
        f"{fitted.check.warnings[0]}. The calibrator fitted{temperature} was rejected and the scores stay unchanged "
        "(temperature 1); --keep-worse (in Python keep_worse=True) keeps the fitted calibrator"
    )
    return replace(
        fitted,
        temperature=1.0,
        after=fitted.before,
        change=dict.fromkeys(fitted.change, (0.0, 0.0, 0.0)),
        warnings=[warning, *fitted.warnings],
        notes=[],
        refused=fitted,
    )
