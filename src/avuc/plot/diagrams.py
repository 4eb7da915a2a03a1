"""Reliability diagrams: what the model states against what is observed."""

from __future__ import annotations

from typing import Any

import numpy as np

from avuc.core.palette import light
from avuc.metrics.binning import BinTable, check_bins
from avuc.metrics.calibration import confidence_table, curve_from_table, expected_gap, uncertainty_table
from avuc.plot.axes import (
    CURVE,
    DASHED,
    Axes,
    axes_or_new,
    band,
    has_label,
    legend,
    legend_name,
    next_colour,
    next_line,
    share_interval,
    statistics_of,
)


def reliability(
    predictions: Any,
    labels: Any = None,
    *,
    bins: int = 15,
    level: float = 0.95,
    label: str | None = None,
    color: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the reliability diagram, accuracy by confidence, and return the Axes.

    Larger points stand for more rows. The band is the interval of each bin's accuracy. Draw several models with the
    same `ax`; each has the next of five colours, and from the sixth on another line style.

    Args:
        predictions: `Predictions`, or probabilities (N, C).
        labels: class numbers, (N), if `predictions` are probabilities.
        bins: number of bins of confidence.
        level: confidence level of the band (default 0.95).
        label: name in the legend. Default None: the expected calibration error.
        color: any colour of matplotlib. Default None: the next one of avuc's.
        ax: matplotlib Axes to draw on. Default None: new ones; `ax.figure` is their figure.

    >>> ax = reliability([[0.8, 0.2], [0.6, 0.4]], [0, 1])
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('confidence', 'accuracy')
    """
    check_bins(bins)
    table = confidence_table(statistics_of(predictions, labels, "reliability"), bins)
    ax = axes_or_new(ax, "reliability")
    _draw(ax, table, label or f"ECE {float(expected_gap(table)):.3f}", color, level)
    ax.set(xlabel="confidence", ylabel="accuracy")
    legend(ax, loc="lower right")
    return ax


def uncertainty_reliability(
    predictions: Any,
    labels: Any = None,
    *,
    bins: int = 15,
    level: float = 0.95,
    label: str | None = None,
    color: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the error rate by uncertainty, entropy / log C, and return the Axes.

    Args:
        predictions: `Predictions`, or probabilities (N, C).
        labels: class numbers, (N), if `predictions` are probabilities.
        bins: number of bins of uncertainty.
        level: confidence level of the band (default 0.95).
        label: name in the legend. Default None: the uncertainty calibration error.
        color: any colour of matplotlib. Default None: the next one of avuc's.
        ax: matplotlib Axes to draw on. Default None: new ones; `ax.figure` is their figure.

    >>> uncertainty_reliability([[0.8, 0.2], [0.6, 0.4]], [0, 1]).get_ylabel()
    'error rate'
    """
    check_bins(bins)
    table = uncertainty_table(statistics_of(predictions, labels, "uncertainty_reliability"), bins)
    ax = axes_or_new(ax, "uncertainty_reliability")
    name = label or f"UCE {float(expected_gap(table)):.3f}"
    _draw(ax, table, name, color, level, "error rate = uncertainty")
    ax.set(xlabel="uncertainty (entropy / log C)", ylabel="error rate")
    legend(ax, loc="upper left")
    return ax


def _draw(ax: Axes, table: BinTable, label: str, color: Any, level: float, ideal: str = "perfect calibration") -> None:
    if not has_label(ax, ideal):
        ax.plot([0, 1], [0, 1], color=light("soft"), linewidth=1, linestyle=DASHED, label=ideal)
    color, style = next_colour(ax, color), next_line(ax, color)
    curve, full = curve_from_table(table), table.rows > 0
    stated, observed, rows = curve.stated[full], curve.observed[full], table.rows[full]
    band(ax, stated, *share_interval(table.event[full], rows, level), color)
    (line,) = ax.plot(
        stated, observed, color=color, linestyle=style, label=legend_name(label), marker="o", markersize=4
    )
    line.set_gid(CURVE)
    # the area of a point grows with the rows in its bin
    ax.scatter(stated, observed, s=18 + 90 * rows / np.max(rows), color=color, zorder=3, clip_on=False)
    ax.set(xlim=(0, 1), ylim=(0, 1.03))
