"""The colours of charts and pages by role, for light and for dark pages; distinct for colour-blind readers.

They are those of Okabe and Ito. The style of the charts is here too, so that `avuc.plot` and the reports look the same.
"""

from __future__ import annotations

from typing import Any

# role -> (on a light page, on a dark page). Light colours are unique, so a colour in a drawing identifies its role.
ROLES: dict[str, tuple[str, str]] = {
    "page": ("#fbfbfa", "#14171b"),
    "card": ("#ffffff", "#1c2026"),
    "ink": ("#1d2229", "#e7eaee"),
    "soft": ("#59626e", "#a6b0bc"),
    "line": ("#d5dae0", "#39414b"),
    "first": ("#0072b2", "#5ab4ea"),  # the model; after calibration
    "second": ("#8a929c", "#8f99a5"),  # before calibration
    "right": ("#009e73", "#34c99f"),
    "wrong": ("#d55e00", "#ff8a3d"),
    "outside": ("#a3578a", "#e09cc6"),
    "warn": ("#8a5a00", "#f2c14e"),
    "warnback": ("#fff4d6", "#3a2f12"),
}


def light(role: str) -> str:
    """Return the colour of a role on a light page."""
    return ROLES[role][0]


# settings for matplotlib
CHART_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": light("line"),
    "grid.linewidth": 0.6,
    "axes.edgecolor": light("line"),
    "axes.labelcolor": light("ink"),
    "text.color": light("ink"),
    "xtick.color": light("soft"),
    "ytick.color": light("soft"),
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
}
