"""The objective of a temperature fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.calibration import MultiLabelCalibrator
from avuc.core.errors import InputError
from avuc.core.palette import light
from avuc.plot.axes import CURVE, DASHED, Axes, axes_or_new, legend, next_colour


def temperature_curve(calibrator: Any, *, label: str | None = None, color: Any = None, ax: Axes | None = None) -> Axes:
    """Draw the objective of a temperature fit by temperature, with the chosen one, and return the Axes.

    Args:
        calibrator: a fitted temperature scaler; it has `curve_` and `temperature_`.
        label: name in the legend. Default None: the temperature.
        color: any colour of matplotlib. Default None: the next one of avuc's.
        ax: matplotlib Axes to draw on. Default None: new ones; `ax.figure` is their figure.

    >>> from avuc.calibration import TemperatureScaling
    >>> scaler = TemperatureScaling().fit([[2.0, 0.0], [2.0, 0.0], [3.0, 0.0]], [0, 0, 1])
    >>> temperature_curve(scaler).get_xscale()
    'log'
    """
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
    ax = axes_or_new(ax, "temperature_curve")
    color = next_colour(ax, color)
    chosen = float(calibrator.temperature_)
    (line,) = ax.plot(temperatures, losses, color=color)
    line.set_gid(CURVE)
    ax.axvline(chosen, color=color, linestyle=DASHED, linewidth=1.2, label=label or f"T = {chosen:.4g}")
    ax.axvline(1.0, color=light("line"), linewidth=1, zorder=0)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="temperature T", ylabel="objective of the fit")
    legend(ax)
    return ax
