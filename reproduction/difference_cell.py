"""One cell of the tables of the small experiments on digits (uncertain_trap.py, wrong_labels.py)."""

from __future__ import annotations

from collections.abc import Mapping

from avuc.report.study.paired import over_seeds


def difference_cell(first: Mapping[str, float], second: Mapping[str, float], scale: float, decimals: int) -> str:
    """Return first − second over paired seeds with its 95 % interval; bold if the interval excludes zero.

    >>> difference_cell({"1": 0.5, "2": 0.6}, {"1": 0.4, "2": 0.4}, 100, 1)
    '+15.0 (−48.5 … +78.5)'
    """
    seeds = sorted(second)
    difference = over_seeds(*(tuple(each[seed] for seed in seeds) for each in (first, second)), same_seeds=True)
    text = "{} ({} … {})".format(*(f"{scale * value:+.{decimals}f}".replace("-", "−") for value in difference))
    return f"**{text}**" if difference.low > 0 or difference.high < 0 else text
