"""The colours of the pages by role, for light and for dark pages; distinct for colour-blind readers (Okabe and Ito)."""

from __future__ import annotations

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


def style_variables() -> str:
    """Return the roles as CSS variables: dark if the reader's system is dark, always light in print."""
    bright, dark = ("".join(f"--{role}:{pair[i]};" for role, pair in ROLES.items()) for i in (0, 1))
    return f":root{{color-scheme:light dark;{bright}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
