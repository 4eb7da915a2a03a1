"""What a calibrator changed, judged on rows it has not seen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.assessment import Assessment, Series, bounds, judged, late_progress, plain
from avuc.calibration import CALIBRATORS, AvUTemperatureScaling, Calibrator, TemperatureScaling
from avuc.errors import InputError
from avuc.metrics.avu import Threshold
from avuc.metrics.intervals import Bootstrap, compared_intervals
from avuc.metrics.statistics import summarise
from avuc.predictions import Predictions
from avuc.scores import ScoreFile

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
    notes: list[str] = field(default_factory=list)  # what the fit itself has to say

    def as_json(self) -> dict[str, Any]:
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
) -> tuple[Calibrator, Comparison]:
    """Fit a calibrator on all rows, and judge it on rows it has not seen.

    For the figures the rows are dealt at random into `folds` parts; each part is transformed by a calibrator fitted on
    the others. The calibrator that is returned is fitted on all rows.
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
    folds = min(folds, len(before))
    if folds < 2:
        after = file.predictions(calibrator)
        how = "the one row it was fitted on: nothing could be held out, so they are optimistic"
    else:
        after = _cross_fitted(method, logits, labels, folds, seed)
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
    scaler = calibrator if isinstance(calibrator, TemperatureScaling) else None
    return calibrator, Comparison(
        method=method,
        temperature=None if scaler is None else float(scaler.temperature_),
        how=how,
        before=first,
        after=second,
        change=change,
        warnings=[*dict.fromkeys(str(one.message) for one in caught), *hurt_scores(change)],
        curve={} if scaler is None else _fit_curve(scaler),
        notes=_guard_note(calibrator),
    )


def _cross_fitted(method: str, logits: Tensor, labels: Tensor, folds: int, seed: int) -> Predictions:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    probs = torch.empty(logits.shape[-2:])
    expected = torch.empty(len(labels))
    build = Predictions.from_samples if logits.ndim == 3 else Predictions.from_logits
    for part in order.tensor_split(folds):
        rest = torch.ones(len(labels), dtype=torch.bool)
        rest[part] = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit on all rows has said it
            fitted = CALIBRATORS[method]().fit(logits[..., rest, :], labels[rest])
        held = build(logits[..., part, :], labels[part], calibrator=fitted)
        probs[part], expected[part] = held.probs.float(), held.expected_entropy.float()
    return Predictions(probs, labels, expected, logits.shape[0] if logits.ndim == 3 else 1)


def _guard_note(calibrator: Calibrator) -> list[str]:
    if not (isinstance(calibrator, AvUTemperatureScaling) and calibrator.guarded_):
        return []
    return [
        f"The search ended at T = {calibrator.unguarded_temperature_:.4g}, where NLL, ECE or UCE is worse than it should be; the "
        f"guard took it back to {calibrator.temperature_:.4g}. Where only confidence counts, --method temperature may "
        "lower ECE further."
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
