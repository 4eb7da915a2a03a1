"""AvU by threshold, risk by coverage, and the entropies of right and wrong predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.palette import light
from avuc.core.tasks import binary_rows
from avuc.metrics.avu import area, quadrant_counts_between
from avuc.metrics.selective import risk_area, risk_curve
from avuc.metrics.threshold import resolve_threshold
from avuc.metrics.ties import group_ties
from avuc.plot.axes import (
    CURVE,
    DASHED,
    DOTTED,
    Axes,
    axes_or_new,
    band,
    legend,
    legend_name,
    next_colour,
    next_line,
    share_interval,
    statistics_of,
)
from avuc.predictions import MultiLabelPredictions, Predictions
from avuc.uncertainty import entropy

# points of a curve; more cannot be seen, and make files large
POINTS = 400


def avu_curve(
    predictions: Any,
    labels: Any = None,
    *,
    parts: bool | None = None,
    points: int = 101,
    level: float = 0.95,
    label: str | None = None,
    color: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw AvU by the entropy up to which a prediction is certain, and return the Axes.

    The bands are intervals at each threshold. A dotted line shows the automatic threshold.

    Args:
        predictions: `Predictions`, or probabilities (N, C).
        labels: class numbers, (N), if `predictions` are probabilities.
        parts: whether p(right | certain) and p(uncertain | wrong) are drawn, too. Default None: if the axes are empty.
        points: number of thresholds from the smallest to the largest entropy.
        level: confidence level of the bands (default 0.95).
        label: name in the legend. Default None: AvU with its area.
        color: any colour of matplotlib. Default None: the next one of avuc's.
        ax: matplotlib Axes to draw on. Default None: new ones; `ax.figure` is their figure.

    >>> avu_curve([[0.9, 0.1], [0.5, 0.5]], [0, 1]).get_xlabel()
    'entropy threshold: certain up to here (nats)'
    """
    statistics = statistics_of(predictions, labels, "avu_curve")
    counts, thresholds = quadrant_counts_between(statistics, points)
    few, _ = quadrant_counts_between(statistics)  # the counts of the metric avu_auc
    if thresholds[0] == thresholds[-1]:  # all entropies are equal: a point
        counts, thresholds = type(counts)(*(each[-1:] for each in counts)), thresholds[-1:]
    ax = axes_or_new(ax, "avu_curve")
    parts = not any(line.get_gid() == CURVE for line in ax.lines) if parts is None else parts
    color, style = next_colour(ax, color), next_line(ax, color)
    lines: list[tuple[str, Any, Any, Any]] = [
        (legend_name(label or f"AvU, area {float(area(few.avu)):.3f}"), color, counts.ac + counts.iu, sum(counts)),
    ]
    if parts:
        lines += [
            ("p(right | certain)", light("right"), counts.ac, counts.ac + counts.ic),
            ("p(uncertain | wrong)", light("wrong"), counts.iu, counts.ic + counts.iu),
        ]
    for number, (name, colour, events, rows) in enumerate(lines):
        known = rows > 0
        if known.any():
            band(ax, thresholds[known], *share_interval(events[known], rows[known], level), colour)
            marker = "o" if len(thresholds) == 1 else None
            (line,) = ax.plot(thresholds[known], events[known] / rows[known], marker=marker, color=colour, label=name)
            if number == 0:
                line.set(gid=CURVE, linestyle=style)
    ax.axvline(resolve_threshold(statistics, "auto"), color=color, linewidth=1, linestyle=DOTTED)
    ax.set(xlabel="entropy threshold: certain up to here (nats)", ylabel="share", ylim=(0, 1.03))
    legend(ax)
    return ax


def risk_coverage(
    predictions: Any,
    labels: Any = None,
    *,
    level: float = 0.95,
    label: str | None = None,
    color: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the error rate of the most confident rows by their share, and return the Axes.

    The band is the interval of the error rate at each coverage.

    Args:
        predictions: `Predictions`, or probabilities (N, C).
        labels: class numbers, (N), if `predictions` are probabilities.
        level: confidence level of the band (default 0.95).
        label: name in the legend. Default None: the area under the curve.
        color: any colour of matplotlib. Default None: the next one of avuc's.
        ax: matplotlib Axes to draw on. Default None: new ones; `ax.figure` is their figure.

    >>> risk_coverage([[0.9, 0.1], [0.6, 0.4]], [0, 1]).get_ylabel()
    'error rate'
    """
    statistics = statistics_of(predictions, labels, "risk_coverage")
    groups = group_ties(statistics.confidence, statistics.correct)
    curve = risk_curve(groups)
    points = np.unique(np.linspace(0, len(curve.risk) - 1, POINTS).round().astype(int))
    coverage, risk = curve.coverage[points], curve.risk[points]
    rows = coverage * len(statistics)
    ax = axes_or_new(ax, "risk_coverage")
    color, style = next_colour(ax, color), next_line(ax, color)
    low, high = share_interval(risk * rows, rows, level)
    band(ax, coverage, low, high, color)
    name = legend_name(label or f"AURC {float(risk_area(groups)):.3f}")
    (line,) = ax.plot(coverage, risk, color=color, label=name, marker="o" if len(risk) == 1 else None)
    line.set(gid=CURVE, linestyle=style)
    ax.axhline(risk[-1], color=color, linewidth=1, linestyle=DASHED)
    # the first few rows have a band up to 1, which would hide the curve
    seen = high[rows >= min(30, rows[-1])]
    top = max(ax.get_ylim()[1] if len(ax.lines) > 2 else 0.0, 1.1 * float(np.max(seen)), 1.1 * float(np.max(risk)))
    ax.set(xlabel="coverage: share of rows answered, most confident first", ylabel="error rate", xlim=(0, 1))
    ax.set_ylim(0, min(top, 1.03))
    legend(ax)
    return ax


def entropy_histogram(
    predictions: Any,
    labels: Any = None,
    *,
    outside: Any = None,
    bins: int = 30,
    level: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Draw the distribution of the entropies of right and of wrong predictions, and return the Axes.

    The bands are intervals of each bar.

    Args:
        predictions: `Predictions`, or probabilities (N, C).
        labels: class numbers, (N), if `predictions` are probabilities.
        outside: out-of-distribution predictions, `Predictions` or probabilities (M, C). Default None: none are drawn.
        bins: number of bins from 0 to log C.
        level: confidence level of the bands (default 0.95).
        ax: matplotlib Axes to draw on. Default None: new ones; `ax.figure` is their figure.

    >>> entropy_histogram([[0.9, 0.1], [0.5, 0.5]], [0, 1]).get_xlabel()
    'entropy (nats)'
    """
    if bins < 1:
        raise InputError(f"bins must be at least 1, found {bins}")
    statistics = statistics_of(predictions, labels, "entropy_histogram")
    groups = {
        "right": statistics.entropy[statistics.correct],
        "wrong": statistics.entropy[~statistics.correct],
    }
    top = float(np.log(max(statistics.num_classes, 2)))
    if outside is not None:
        probs = _outside_probs(outside)
        groups["outside"] = entropy(probs.double()).cpu().numpy()
        top = max(top, float(np.log(probs.shape[1])))
    ax = axes_or_new(ax, "entropy_histogram")
    edges = np.linspace(0, top, bins + 1)
    width = top / bins
    for role, values in groups.items():
        if not len(values):
            continue
        counts, _ = np.histogram(np.clip(values, 0, top), edges)
        low, high = (np.repeat(end / width, 2) for end in share_interval(counts, len(values), level))
        color = light(role)
        name = {"outside": "out of distribution"}.get(role, role)
        steps = np.repeat(edges, 2)[1:-1]
        band(ax, steps, low, high, color)
        ax.stairs(
            counts / len(values) / width, edges, color=color, linewidth=1.8, label=f"{name} ({len(values):,} rows)"
        )
    ax.set(xlabel="entropy (nats)", ylabel="density", xlim=(0, top))
    ax.set_ylim(bottom=0)
    legend(ax)
    return ax


def _outside_probs(outside: Any) -> Tensor:
    """Return the probabilities (M, C) of out-of-distribution predictions, or of a pair (probs, labels)."""
    if isinstance(outside, MultiLabelPredictions):
        return binary_rows(outside.probs.flatten(), "probs")  # every decision, as they need no labels
    if isinstance(outside, tuple) and len(outside) == 2:
        outside = outside[0]
    probs = outside.probs if hasattr(outside, "probs") else outside
    return Predictions(probs, torch.full((len(probs),), -1)).probs
