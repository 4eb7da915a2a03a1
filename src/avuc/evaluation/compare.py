"""What a calibrator changed, judged on rows it has not seen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from avuc.calibration import CALIBRATORS, AvUTemperatureScaling, Calibrator, CalibratorCheck, TemperatureScaling
from avuc.calibration.check import checked, cross_fitted
from avuc.core.errors import InputError
from avuc.evaluation.evaluate import Assessment, Series, bounds, judged, late_progress, plain
from avuc.evaluation.files import ScoreFile
from avuc.metrics.avu import Threshold
from avuc.metrics.intervals import Bootstrap, compared_intervals
from avuc.metrics.statistics import summarise

__all__ = ["Change", "Comparison", "compare", "hurt_scores"]

# lower is better, and a calibrator must not make them worse
PROPER = {"nll": "NLL", "brier": "the Brier score"}
# what a calibrator sets out to improve: name -> (its title, whether higher is better)
AIMS = {"ece": ("ECE", False), "avu": ("AvU", True)}
Change = tuple[float, float, float]  # value, low, high


@dataclass(frozen=True)
class Comparison:
    """Before and after a calibrator, on the same rows."""

    method: str
    temperature: float | None
    how: str  # which rows the figures come from
    before: Assessment
    after: Assessment
    change: dict[str, Change]  # after − before, with its interval
    warnings: list[str]
    curve: Series  # the loss over T
    check: CalibratorCheck  # the fitted calibrator against leaving the scores alone
    notes: list[str] = field(default_factory=list)  # what the fit itself has to say
    refused: Comparison | None = None  # what the fitted calibrator would have changed, where it was refused

    @property
    def shown(self) -> Comparison:
        """What the tables and charts show: the fitted calibrator, also where it was refused."""
        return self.refused or self

    def as_json(self) -> dict[str, Any]:
        refused = self.refused
        document: dict[str, Any] = plain(
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
        return document


def compare(
    file: ScoreFile,
    method: str,
    *,
    folds: int = 5,
    threshold: Threshold = "auto",
    bins: int = 15,
    replicates: int = 1000,
    seed: int = 0,
    keep_worse: bool = False,
) -> tuple[Calibrator, Comparison]:
    """Fit a calibrator on all rows, and judge it on rows it has not seen.

    For the figures the rows are split at random into `folds` parts; each part is transformed by a calibrator fitted on
    the others. The calibrator that is returned is fitted on all rows. Where `avuc.calibration.check_calibrator` finds
    it worse than leaving the scores alone, the calibrator that is returned changes nothing (temperature 1), and
    `Comparison.refused` says what was refused; `keep_worse=True` returns the fitted calibrator all the same.
    """
    if method not in CALIBRATORS:
        raise InputError(f"method {method!r} is unknown; choose one of {', '.join(CALIBRATORS)}")
    before = file.predictions()
    logits, labels = file.logits(), before.labels
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            calibrator = CALIBRATORS[method]().fit(logits, labels)
    except InputError as error:
        raise InputError(f"{file.path}: {error}") from error
    calibrator.class_names_ = file.names
    folds = min(folds, len(before))
    if folds < 2:
        after = file.predictions(calibrator)
        how = "the one row it was fitted on: nothing could be held out, so they are optimistic"
    else:
        after = cross_fitted(calibrator, logits, labels, folds, seed)
        how = f"held-out rows ({folds} parts, each calibrated by a fit on the others); the calibrator itself uses all"
    both = [summarise(one.probs, one.labels, bins=bins) for one in (after, before)]
    second, first = (
        judged(one, statistics, threshold=threshold, bins=bins)
        for one, statistics in zip((after, before), both, strict=True)
    )
    change = {name: (second.metrics[name] - first.metrics[name], math.nan, math.nan) for name in first.metrics}
    if replicates:
        with late_progress("intervals", replicates) as advance:
            how_drawn = Bootstrap(replicates, seed=seed, threshold=threshold, bins=bins, advance=advance)
            found = compared_intervals((after.probs, before.probs), both, None, how_drawn)
        change = {name: (*one.difference,) for name, one in found.items()}
        second = replace(second, intervals=bounds({n: one.a for n, one in found.items()}), replicates=replicates)
        first = replace(first, intervals=bounds({n: one.b for n, one in found.items()}), replicates=replicates)
    check = checked(calibrator, before, after, folds=folds, bins=bins, seed=seed, statistics=(both[1], both[0]))
    scaler = calibrator if isinstance(calibrator, TemperatureScaling) else None
    hurt = hurt_scores(change)
    result = Comparison(
        method=method,
        temperature=None if scaler is None else float(scaler.temperature_),
        how=how,
        before=first,
        after=second,
        change=change,
        warnings=[
            *dict.fromkeys(str(one.message) for one in caught),
            *hurt,
            # what is said of NLL and the Brier score in view of the gain is not said again
            *(text for text in check.tradeoffs if not hurt or text.startswith("ECE")),
        ],
        curve={} if scaler is None else _fit_curve(scaler),
        check=check,
        notes=_guard_note(calibrator),
    )
    if not check.worse:
        return calibrator, result
    if keep_worse:
        return calibrator, replace(result, warnings=[*check.warnings[:1], *result.warnings])
    identity = TemperatureScaling.identity(file.num_classes, first.metrics["nll"])
    identity.class_names_ = file.names
    return identity, _refused(result)


def _refused(fitted: Comparison) -> Comparison:
    """The comparison of a calibrator that changes nothing, in place of the fitted one."""
    found = f" at temperature {fitted.temperature:.4g}" if fitted.temperature is not None else ""
    warning = (
        f"{fitted.check.warnings[0]}. The calibrator found{found} was refused, and the scores stay as they are "
        "(temperature 1); --keep-worse (in Python keep_worse=True) keeps it all the same"
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


def _guard_note(calibrator: Calibrator) -> list[str]:
    if not (isinstance(calibrator, AvUTemperatureScaling) and calibrator.guarded_):
        return []
    return [
        f"The search ended at T = {calibrator.unguarded_temperature_:.4g}, where NLL, ECE or UCE is worse than the "
        f"guard allows; the guard took it back to {calibrator.temperature_:.4g}. Where only confidence counts, "
        "--method temperature may lower ECE further."
    ]


def hurt_scores(change: Mapping[str, Change]) -> list[str]:
    """Better calibration figures at the price of worse probabilities: the trade nobody should make unknowingly.

    >>> hurt_scores({"ece": (-0.1, -0.2, -0.05), "nll": (0.2, 0.1, 0.3)})[0][:33]
    'ECE got better, but NLL got worse'
    """
    better = [title for name, (title, up) in AIMS.items() if name in change and _improved(change[name][0], up)]
    said = []
    for name, title in PROPER.items():
        value, low, high = change.get(name, (0.0, math.nan, math.nan))
        if better and value > 0:
            interval = "" if math.isnan(low) else f" (95 % interval of the change {low:+.4f} to {high:+.4f})"
            doubt = ", which may be chance" if low <= 0 else ""
            said.append(
                f"{' and '.join(better)} got better, but {title} got worse by {value:.4f}{interval}{doubt}: "
                "the probabilities as a whole are less true than before"
            )
    return said


def _improved(value: float, up: bool) -> bool:
    return value > 0 if up else value < 0


def _fit_curve(scaler: TemperatureScaling) -> Series:
    temperatures, losses = scaler.curve_
    keep = np.isfinite(losses)
    return {"temperature": temperatures[keep].tolist(), "loss": losses[keep].tolist()}
