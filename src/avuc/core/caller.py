"""Warnings that name the line of the user's own code, however deep in this package they arise."""

from __future__ import annotations

import sys
import warnings

# a frame of torch is between two functions of this package if one of them is decorated with torch.no_grad
INSIDE = ("avuc.", "torch.")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside of this package that called it.

    Args:
        message: what is wrong, and the remedy.
        category: class of the warning.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
