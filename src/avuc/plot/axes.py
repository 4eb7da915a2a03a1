"""What all charts share: their input, their axes, colours, interval bands and legends."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np

from avuc.core.errors import InputError, require
from avuc.core.palette import CHART_STYLE, light
from avuc.metrics.arrays import Array
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.predictions import MultiLabelPredictions, Predictions

# matplotlib's; it is not imported here, so that this module loads without it
Axes: TypeAlias = Any

SIZE = (5.2, 4.0)
DASHED, DOTTED = (0, (4, 3)), (0, (1, 2))
# colours of the first, second, … set of predictions on the same axes
COLOURS = ("first", "wrong", "right", "outside", "ink")
# lines of the first five sets of predictions, of the next five, …
LINES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
# marks the curves that decide which colour is next
CURVE = "avuc-curve"


def statistics_of(predictions: Any, labels: Any, what: str) -> Statistics:
    """Return the statistics of predictions, of a pair (probs, labels), or of probabilities with `labels`."""
    return prediction_statistics(*labelled_rows(predictions, labels, what))


def labelled_rows(predictions: Any, labels: Any, what: str) -> tuple[Any, Any]:
    """Return the labelled rows of what `statistics_of` takes: probabilities (N, C) and labels (N)."""
    if labels is None and isinstance(predictions, tuple) and len(predictions) == 2:
        predictions, labels = predictions
    if labels is not None:
        if hasattr(predictions, "probs"):
            raise InputError(f"{what}: Predictions have labels of their own; leave `labels` out")
        predictions = Predictions(predictions, labels)
    if not (hasattr(predictions, "probs") and hasattr(predictions, "labels")):
        raise InputError(f"{what} needs Predictions, or probabilities and labels; found {type(predictions).__name__}")
    if isinstance(predictions, MultiLabelPredictions):
        predictions = predictions.flatten()
    labelled = np.asarray(predictions.labels.cpu()) >= 0
    if not labelled.any():
        raise InputError(f"{what} needs labels; found {len(labelled)} rows without any")
    if labelled.all():
        return predictions.probs, predictions.labels
    keep = predictions.labels >= 0
    return predictions.probs[keep], predictions.labels[keep]


def axes_or_new(ax: Axes | None, what: str) -> Axes:
    """Return the given axes, or new ones on a figure that pyplot does not know."""
    if ax is not None:
        if not hasattr(ax, "fill_between"):
            raise InputError(f"{what}: ax must be matplotlib Axes, found {type(ax).__name__}")
        return ax
    require("matplotlib", "report", what)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(CHART_STYLE):
        return Figure(figsize=SIZE, layout="constrained").add_subplot()


def next_colour(ax: Axes, color: Any) -> Any:
    """Return the given colour, or the first one that no curve of ours on these axes has."""
    if color is not None:
        return color
    return light(COLOURS[_drawn(ax) % len(COLOURS)])


def next_line(ax: Axes, color: Any) -> Any:
    """Return the line style of the next curve: after as many curves as there are colours, another one than before.

    Args:
        ax: the axes.
        color: the colour that the user gave, or None; with it, the line is continuous.
    """
    return line_of(_drawn(ax)) if color is None else LINES[0]


def line_of(number: int) -> Any:
    """Return the line style of the set of predictions with this number."""
    return LINES[number // len(COLOURS) % len(LINES)]


def _drawn(ax: Axes) -> int:
    return sum(line.get_gid() == CURVE for line in ax.lines)


def share_interval(events: Any, rows: Any, level: float) -> tuple[Array, Array]:
    """Return the Wilson interval of the share events/rows, elementwise; from 0 to 1 where there are no rows.

    Unlike the bootstrap it is right for few rows, and for shares of 0 and 1, where resampling gives a width of 0.

    >>> low, high = share_interval([0, 5], [10, 10], 0.95)
    >>> low.round(2), high.round(2)
    (array([0.  , 0.24]), array([0.28, 0.76]))
    """
    check_level(level)
    events, rows = np.asarray(events, np.float64), np.asarray(rows, np.float64)
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    middle = (events + z2 / 2) / (rows + z2)
    with np.errstate(invalid="ignore", divide="ignore"):
        inner = np.where(rows > 0, events * (rows - events) / rows, 0.0)
    half = np.sqrt(z2) / (rows + z2) * np.sqrt(inner + z2 / 4)
    # the ends are 0 and 1 exactly where the share is
    low = np.where(events > 0, np.clip(middle - half, 0, 1), 0.0)
    high = np.where(events < rows, np.clip(middle + half, 0, 1), 1.0)
    return low, high


def check_level(level: float) -> None:
    """Raise InputError unless the level is between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, for example 0.95; found {level}")


def band(ax: Axes, x: Any, low: Any, high: Any, color: Any, **options: Any) -> None:
    """Shade an interval. A single point gets a bar instead: an area without width cannot be seen."""
    if len(x) == 1:
        ax.vlines(x, low, high, color=color, alpha=0.35, linewidth=5)
    else:
        ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0, **options)


def legend_name(label: str) -> str:
    """Return a name that the legend shows: matplotlib leaves out names that begin with an underscore."""
    return "\u200b" + label if label.startswith("_") else label  # a space without width


def has_label(ax: Axes, text: str) -> bool:
    """Return whether the legend of these axes has this text already."""
    return text in ax.get_legend_handles_labels()[1]


def legend(ax: Axes, **options: Any) -> None:
    """Draw the legend, if there is anything to name."""
    if handles := ax.get_legend_handles_labels()[0]:
        # of many curves some differ by their dashes, which need some length
        ax.legend(frameon=False, handlelength=5 if len(handles) > len(COLOURS) + 1 else None, **options)
