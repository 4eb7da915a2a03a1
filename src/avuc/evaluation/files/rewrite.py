"""Scores that go back into a file after calibration: classes matched by name, numbers that fit the file's type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.evaluation.files.names import listing, refuse

__all__ = ["Reordered", "by_name", "fitting"]


@dataclass(frozen=True)
class Reordered:
    """A calibrator for logits whose classes stand in another order; `places` says where each of its classes is."""

    calibrator: Any
    places: list[int]

    def transform(self, logits: Tensor) -> Tensor:
        result = torch.empty_like(logits)
        result[..., self.places] = self.calibrator.transform(logits[..., self.places])
        return result


def by_name(path: Path, names: Sequence[str] | None, calibrator: Any) -> Any:
    """The calibrator for the order that the classes have in this file; other classes than its own are refused.

    Where the file or the calibrator has no names, classes are matched by their position.
    """
    fitted = getattr(calibrator, "class_names_", None)
    if fitted is None or names is None or tuple(fitted) == tuple(names):
        return calibrator
    if sorted(fitted) != sorted(names) or len(set(fitted)) < len(fitted):
        raise refuse(
            path,
            f"its classes are {listing(names)}, but the calibrator was fitted on {listing(fitted)}",
            "apply it to scores of the same classes, under the same names",
        )
    return Reordered(calibrator, [list(names).index(name) for name in fitted])


def fitting(path: Path, scores: Tensor, dtype: torch.dtype, kind: str) -> Tensor:
    """The scores in the file's own type, all finite.

    Rows of logits that the type cannot hold are shifted, so that the largest is 0, and cut where softmax gives 0
    anyway: their probabilities stay the same.
    """
    cast = scores.to(dtype)
    lost = (cast.isinf() & scores.isfinite()).any(-1, keepdim=True)
    if kind == "logits" and bool(lost.any()):
        below = (scores - scores.amax(-1, keepdim=True)).clamp(min=torch.finfo(dtype).min)
        cast = torch.where(lost, below.to(dtype), cast)
    if not bool(cast.isfinite().all()):
        raise refuse(path, "the new scores are not finite", "look for NaN or infinity in what is to be written")
    return cast
