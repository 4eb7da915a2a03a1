"""Boxes of a metric by intensity of the shift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.core.palette import light
from avuc.metrics.arrays import Array
from avuc.plot.axes import COLOURS, Axes, axes_or_new, legend, legend_name, line_of

Severities = dict[Any, Array]


def shift_boxes(values: Any, *, metric: str = "", ax: Axes | None = None) -> Axes:
    """Draw a box for each intensity of a shift, and for each method, and return the Axes.

    A box spans the quartiles of the shifts (and seeds) at one intensity, with the median; whiskers reach 1.5 times its
    height.

    Args:
        values: {intensity: numbers}, or {method: {intensity: numbers}}; or a table (a DataFrame or a dict of columns)
            with columns "severity", the metric, and "method" if there are several. Intensity 0 is called clean.
        metric: name of the metric: the label of the axis, and the column of a table.
        ax: matplotlib Axes to draw on. Default None: new ones; `ax.figure` is their figure.

    >>> ax = shift_boxes({0: [0.02], 1: [0.03, 0.05], 5: [0.1, 0.3, 0.2]}, metric="ECE")
    >>> [tick.get_text() for tick in ax.get_xticklabels()]
    ['clean', '1', '5']
    """
    methods = _by_method(values, metric)
    levels = sorted({level for severities in methods.values() for level in severities})
    if not levels:
        raise InputError("shift_boxes: no finite number to draw; give {intensity: numbers}")
    ax = axes_or_new(ax, "shift_boxes")
    width = 0.84 / len(methods)
    for index, (name, severities) in enumerate(methods.items()):
        color, style = light(COLOURS[index % len(COLOURS)]), line_of(index)
        drawn = [(level_index, severities[level]) for level_index, level in enumerate(levels) if level in severities]
        ax.boxplot(
            [numbers for _, numbers in drawn],
            positions=[level_index + (index - (len(methods) - 1) / 2) * width for level_index, _ in drawn],
            widths=width * 0.8,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": color + "55", "edgecolor": color, "linestyle": style},
            medianprops={"color": color, "linewidth": 1.8},
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": color},
            whiskerprops={"color": color, "linestyle": style},
            capprops={"color": color},
        )
        if name:
            ax.plot([], [], color=color, linestyle=style, linewidth=6, label=legend_name(name))
    ax.set_xticks(range(len(levels)), ["clean" if level == 0 else str(level) for level in levels])
    ax.set(xlabel="intensity of the shift", ylabel=metric, xlim=(-0.5, len(levels) - 0.5))
    legend(ax)
    return ax


def _by_method(values: Any, metric: str) -> dict[str, Severities]:
    """Return {method: {intensity: finite numbers}}; a single method has the name ""."""
    if "severity" in values:
        if metric not in values:
            raise InputError(f"shift_boxes: the table has no column {metric!r}; name one with metric=")
        severity, numbers = list(values["severity"]), list(values[metric])
        names = [str(name) for name in values["method"]] if "method" in values else [""] * len(severity)
        grouped: dict[str, dict[Any, list[float]]] = {}
        for name, level, number in zip(names, severity, numbers, strict=True):
            grouped.setdefault(name, {}).setdefault(level, []).append(number)
        values = grouped
    if not isinstance(values, Mapping):
        raise InputError(f"shift_boxes needs {{intensity: numbers}} or a table, found {type(values).__name__}")
    if not all(isinstance(value, Mapping) for value in values.values()):
        values = {"": values}
    return {str(name): _finite(severities) for name, severities in values.items()}


def _finite(severities: Mapping[Any, Any]) -> Severities:
    try:
        arrays = {level: np.atleast_1d(np.asarray(numbers, np.float64)) for level, numbers in severities.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"shift_boxes: numbers are needed for each intensity ({error})") from error
    kept = {level: numbers[np.isfinite(numbers)] for level, numbers in arrays.items()}
    return {level: numbers for level, numbers in kept.items() if len(numbers)}
