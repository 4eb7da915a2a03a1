"""The objective of a temperature fit."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from avuc.calibration import Calibrator, MultiLabelCalibrator, TemperatureScaling, logits_from_probs
from avuc.core.errors import InputError
from avuc.core.palette import light
from avuc.metrics.arrays import Array
from avuc.metrics.statistics import NLL_FLOOR
from avuc.plot.axes import (
    CURVE,
    DASHED,
    Axes,
    axes_or_new,
    band,
    check_level,
    labelled_rows,
    legend,
    legend_name,
    next_colour,
    next_line,
)


def temperature_curve(
    predictions: Any,
    labels: Any = None,
    *,
    level: float = 0.95,
    label: str | None = None,
    color: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the objective of a temperature fit by temperature, with the chosen one, and return the Axes.

    With predictions it is their NLL by temperature, and the band is the interval of this mean over rows; the marked
    temperature minimises it. A fitted calibrator keeps no rows, so its curve has no band.

    Args:
        predictions: `Predictions` or probabilities (N, C), not yet calibrated; or a fitted temperature scaler.
        labels: class numbers, (N), if `predictions` are probabilities.
        level: confidence level of the band (default 0.95).
        label: name in the legend. Default None: the temperature.
        color: any colour of matplotlib. Default None: the next one of avuc's.
        ax: matplotlib Axes to draw on. Default None: new ones; `ax.figure` is their figure.

    >>> temperature_curve([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], [0, 0, 1]).get_ylabel()
    'NLL'
    """
    check_level(level)
    half = None
    if isinstance(predictions, Calibrator):
        if labels is not None:
            raise InputError("temperature_curve: a calibrator is already fitted; leave `labels` out")
        (temperatures, losses), calibrator, name = _curve_of(predictions), predictions, "objective of the fit"
    else:
        calibrator, (temperatures, losses, errors), name = *_fitted(predictions, labels), "NLL"
        half = NormalDist().inv_cdf((1 + level) / 2) * errors
    ax = axes_or_new(ax, "temperature_curve")
    color, style = next_colour(ax, color), next_line(ax, color)
    chosen = float(calibrator.temperature_)
    (line,) = ax.plot(temperatures, losses, color=color, linestyle=style)
    line.set_gid(CURVE)
    if half is not None and np.isfinite(half).all():
        band(ax, temperatures, np.maximum(losses - half, 0), losses + half, color)
    ax.axvline(chosen, color=color, linestyle=DASHED, linewidth=1.2, label=legend_name(label or f"T = {chosen:.4g}"))
    ax.axvline(1.0, color=light("line"), linewidth=1, zorder=0)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="temperature T", ylabel=name)
    legend(ax)
    return ax


def _curve_of(calibrator: Calibrator) -> tuple[Array, Array]:
    if isinstance(calibrator, MultiLabelCalibrator):
        raise InputError(
            "temperature_curve: a MultiLabelCalibrator has a temperature for each label and keeps no curves; fit "
            "TemperatureScaling on the logits of one label"
        )
    curve = getattr(calibrator, "curve_", None)
    if curve is None:
        raise InputError(
            f"temperature_curve needs a fitted temperature scaler, found {type(calibrator).__name__}; call fit first"
        )
    temperatures, losses = (np.asarray(values, np.float64) for values in curve)
    if not len(temperatures):
        raise InputError("temperature_curve: this scaler was given its temperature, so there is no curve; call fit")
    return temperatures, losses


def _fitted(predictions: Any, labels: Any) -> tuple[TemperatureScaling, tuple[Array, Array, Array]]:
    """Return a fitted scaler, and its temperatures with mean NLL and standard error; NaN for one row."""
    probs, targets = labelled_rows(predictions, labels, "temperature_curve")
    logits = logits_from_probs(probs.double())
    scaler = TemperatureScaling().fit(logits, targets)
    temperatures = scaler.curve_[0]
    means, errors = [], []
    for temperature in temperatures:
        chosen = (logits / temperature).softmax(-1).gather(1, targets[:, None])[:, 0]
        nll = chosen.clamp(min=NLL_FLOOR).log().neg()
        means.append(float(nll.mean()))
        errors.append(float(nll.std()) / len(nll) ** 0.5 if len(nll) > 1 else np.nan)
    return scaler, (temperatures, np.array(means), np.array(errors))
