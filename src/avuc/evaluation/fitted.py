"""The calibrator that `compare` fits, and what there is to say about its fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.calibration import CALIBRATORS, AutoCalibrator, AvUTemperatureScaling, Calibrator, TemperatureScaling
from avuc.core.errors import InputError
from avuc.evaluation.result import Series

AUTO = AutoCalibrator.name


def unfitted(method: str, seed: int) -> Calibrator:
    """Return a calibrator by its name; "auto" chooses one of them when it is fitted."""
    if method == AUTO:
        return AutoCalibrator(seed=seed)
    if method not in CALIBRATORS:
        raise InputError(f"unknown calibration method {method!r}; choose one of {', '.join((*CALIBRATORS, AUTO))}")
    return CALIBRATORS[method]()


def chosen(calibrator: Calibrator) -> Calibrator:
    """Return the calibrator that "auto" has chosen, or the calibrator itself."""
    return calibrator.chosen_ if isinstance(calibrator, AutoCalibrator) else calibrator


def changes_nothing(calibrator: Calibrator) -> bool:
    """Whether "auto" has chosen to leave the scores alone."""
    kept = chosen(calibrator)
    return kept is not calibrator and isinstance(kept, TemperatureScaling) and kept.is_identity


def fit_notes(calibrator: Calibrator) -> list[str]:
    """Return remarks about the fit: why "auto" chose what it chose, and what the guard of `avuts` changed."""
    if isinstance(calibrator, AutoCalibrator):
        return [f"auto: {calibrator.reason_}"]
    if not (isinstance(calibrator, AvUTemperatureScaling) and calibrator.guarded_):
        return []
    return [
        f"The search found T = {calibrator.unguarded_temperature_:.4g}, but NLL, ECE or UCE is too much worse there; "
        f"the guard moved it back to {calibrator.temperature_:.4g}. If only confidence matters, --method temperature "
        "may give a lower ECE."
    ]


def fit_curve(scaler: TemperatureScaling) -> Series:
    """Return the loss at each temperature that was tried."""
    temperatures, losses = scaler.curve_
    keep = np.isfinite(losses)
    return {"temperature": temperatures[keep].tolist(), "loss": losses[keep].tolist()}


def candidates(calibrator: Calibrator) -> list[dict[str, Any]]:
    """Return the table of "auto"; empty for other calibrators."""
    return [row._asdict() for row in calibrator.table_] if isinstance(calibrator, AutoCalibrator) else []
