"""The arguments of `on_epoch` in `fit`: the figures of an epoch, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

OnEpoch = Callable[[int, dict[str, float]], object]


def figures(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of an epoch, averaged over the models of an ensemble. A figure that is None is left out.

    >>> figures([{"epoch": 3, "member": 0, "nll": 0.5, "avu": None}, {"epoch": 3, "member": 1, "nll": 0.7}])
    {'nll': 0.6}
    """
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for record in records for name in record if name not in ("epoch", "member")):
        values = [float(record[name]) for record in records if record.get(name) is not None]
        if values:
            means[name] = sum(values) / len(values)
    return means


def in_part(on_epoch: OnEpoch | None, part: str, start: int) -> OnEpoch | None:
    """Return `on_epoch` for one part of a training: its figures are named `part/...`, its epochs count from `start`."""
    if on_epoch is None:
        return None

    def named(epoch: int, values: dict[str, float]) -> None:
        on_epoch(start + epoch, {f"{part}/{name}": value for name, value in values.items()})

    return named
