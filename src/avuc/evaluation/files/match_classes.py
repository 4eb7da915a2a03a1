"""Match the classes of a file with those of a calibrator by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.evaluation.files.messages import file_error, listing


@dataclass(frozen=True)
class ReorderedCalibrator:
    """A calibrator for logits with another class order; `order` has the index of each of the calibrator's classes."""

    calibrator: Any
    order: list[int]

    def transform(self, logits: Tensor) -> Tensor:
        result = torch.empty_like(logits)
        result[..., self.order] = self.calibrator.transform(logits[..., self.order])
        return result


def match_classes(path: Path, names: Sequence[str] | None, calibrator: Any) -> Any:
    """Return the calibrator for the class order of this file; raise if the classes differ.

    If the file or the calibrator has no class names, classes are matched by position.
    """
    order = class_order(path, names, getattr(calibrator, "class_names_", None))
    return calibrator if order is None else ReorderedCalibrator(calibrator, order)


def class_order(path: Path, names: Sequence[str] | None, fitted: Sequence[str] | None) -> list[int] | None:
    """Return the index of each fitted class among the names of a file; None: same order, or no names on one side.

    Args:
        path: the file, for messages.
        names: of its classes.
        fitted: names of the classes of a fit.

    >>> class_order(Path("a.csv"), ["dog", "cat"], ["cat", "dog"])
    [1, 0]
    """
    if fitted is None or names is None or tuple(fitted) == tuple(names):
        return None
    named = _as_fitted(names, fitted)
    if sorted(fitted) != sorted(named) or len(set(fitted)) < len(fitted):
        raise file_error(
            path,
            f"has the classes {listing(names)}, but the calibrator was fitted on {listing(fitted)}",
            "apply it to scores with the same class names",
        )
    return None if tuple(fitted) == tuple(named) else [named.index(name) for name in fitted]


def check_counted(path: Path, names: Sequence[str] | None, fitted: Sequence[str] | None) -> None:
    """Raise if a file counts its classes in another order than a fit without names, whose classes are 0, 1, 2, …

    Args:
        path: the file, for messages.
        names: of its classes.
        fitted: names of the classes of the fit.
    """
    if fitted is not None or names is None or only_count(names) or not all(name.isdecimal() for name in names):
        return
    counted = sorted(names, key=int)
    if only_count(counted):
        raise file_error(
            path,
            f"has the classes in the order {listing(names, 5)}, but the fit has no class names, so that its order is "
            f"{listing(counted, 5)}",
            "save the scores in this order",
        )


def names_for(names: Sequence[str] | None, positive: str | None, fitted: Sequence[str] | None) -> Sequence[str] | None:
    """Return the class names of a file; if it has one number per row, for the class `positive`, take both from a fit.

    >>> names_for(None, "no", ["no", "yes"])
    ('yes', 'no')
    """
    if names is not None or positive is None or fitted is None or len(fitted) != 2 or only_count(fitted):
        return names  # `prob_0` may be the first and only column, and the score of class 1
    return (fitted[1 - list(fitted).index(positive)], positive) if positive in fitted else None


def only_count(names: Sequence[str]) -> bool:
    """Return whether class names only count: 0, 1, 2, … or 1, 2, 3, …

    >>> only_count(["1", "2", "3"]), only_count(["1", "0"])
    (True, False)
    """
    if not all(name.isascii() and name.isdecimal() for name in names):
        return False
    first = int(names[0])
    return first in (0, 1) and [int(name) for name in names] == list(range(first, first + len(names)))


def _as_fitted(names: Sequence[str], fitted: Sequence[str]) -> list[str]:
    """Return the names with a common prefix removed or added, if that is how they differ from the fitted names.

    A file with columns `p_cat, p_dog` has the classes `cat, dog` if its labels show that, and else the whole names.
    """
    first, wanted = min(names), min(fitted)
    longer = first if len(first) > len(wanted) else wanted
    beginning = longer[: abs(len(first) - len(wanted))]
    # 13, 15 are not the classes 3, 5
    if longer == beginning + min(first, wanted, key=len) and not beginning[-1:].isdecimal():
        if longer == first and all(name.startswith(beginning) for name in names):
            return [name.removeprefix(beginning) for name in names]
        if longer == wanted and all(name.startswith(beginning) for name in fitted):
            return [beginning + name for name in names]
    return list(names)
