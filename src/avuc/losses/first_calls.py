"""A warning if a loss gets probabilities in place of logits, at some of the calls from each line of the user's code."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from avuc.core.caller import warn_caller
from avuc.core.probabilities import looks_like
from avuc.losses.inputs import may_synchronise

# frames between a user's line and the loss: a module of this package is called through torch
BETWEEN = ("torch.", "avuc.losses.family")
# how often each line called a loss; a line of a training loop would otherwise pay for the look at every step
_calls: dict[tuple[str, int], int] = {}


def warn_of_probs(loss: str, logits: Tensor, labels: Tensor, *, wait: bool = True) -> None:
    """Warn at the user's line if all rows of the logits look like probabilities, which real logits hardly ever do.

    On a CPU it looks at the calls 1, 2, 4, 8, … of a line, on a GPU at the first one. It leaves out compiled and
    captured calls, and calls by this package, which checks its inputs elsewhere.

    Args:
        loss: name of the function that was called, and that calls this.
        logits, labels: ([S,] N, C, *spatial) and (N, *spatial).
        wait: whether the first call on a GPU may wait for the values (default True).
    """
    if torch.compiler.is_compiling():
        return
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(BETWEEN):
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").startswith("avuc."):
        return
    line = frame.f_code.co_filename, frame.f_lineno
    count = _calls[line] = _calls.get(line, 0) + 1
    if (count & (count - 1) if logits.device.type == "cpu" else count > 1 or not wait) or not may_synchronise(logits):
        return
    looks = looks_like(logits.detach().movedim(logits.ndim - labels.ndim, -1))
    if looks is not None:
        total = "100" if looks == "percentages" else "1"
        warn_caller(
            f"{loss}: the logits look like {looks} (no row is negative, and each sums to {total}), so the loss is "
            "wrong; pass logits, before the softmax, or the logarithm of the probabilities"
        )
