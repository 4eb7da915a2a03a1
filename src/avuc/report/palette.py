"""The colours of the pages by role, as CSS variables."""

from __future__ import annotations

from avuc.core.palette import ROLES as ROLES
from avuc.core.palette import light as light


def style_variables() -> str:
    """Return the roles as CSS variables: dark if the reader's system is dark, always light in print."""
    bright, dark = ("".join(f"--{role}:{pair[i]};" for role, pair in ROLES.items()) for i in (0, 1))
    return f":root{{color-scheme:light dark;{bright}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
