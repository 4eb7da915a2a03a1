"""Changes of metrics by a calibrator, and warnings about those that got worse."""

from __future__ import annotations

import math
from collections.abc import Mapping

# proper scores: lower is better, and a calibrator must not make them worse
PROPER = {"nll": "NLL", "brier": "the Brier score"}
# what a calibrator is meant to improve: name -> (title, whether higher is better)
TARGETS = {"ece": ("ECE", False), "avu": ("AvU", True)}
Change = tuple[float, float, float]  # value, low, high


def hurt_scores(change: Mapping[str, Change]) -> list[str]:
    """Return warnings if ECE or AvU got better while NLL or the Brier score got worse.

    >>> hurt_scores({"ece": (-0.1, -0.2, -0.05), "nll": (0.2, 0.1, 0.3)})[0][:33]
    'ECE got better, but NLL got worse'
    """
    better = [title for name, (title, up) in TARGETS.items() if name in change and _improved(change[name][0], up)]
    texts = []
    for name, title in PROPER.items():
        value, low, high = change.get(name, (0.0, math.nan, math.nan))
        if better and value > 0:
            interval = "" if math.isnan(low) else f" (95 % interval of the change {low:+.4f} to {high:+.4f})"
            doubt = ", which may be chance" if low <= 0 else ""
            texts.append(
                f"{' and '.join(better)} got better, but {title} got worse by {value:.4f}{interval}{doubt}: "
                "overall the probabilities are less accurate than before"
            )
    return texts


def _improved(value: float, up: bool) -> bool:
    return value > 0 if up else value < 0
