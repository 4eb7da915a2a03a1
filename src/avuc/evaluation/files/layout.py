"""Layouts of scores: which dimension has the classes, and how scores and labels become rows.

(N, C), (S, N, C)               one row per sample; S Monte Carlo draws come first
(N, C, *spatial), (N, *, C)     dense: one row per position, with labels (N, *spatial)
(N,), (N, 1), (N, 1, *spatial)  binary: one number per row or position, for class 1
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from avuc.core.tasks import not_ignored

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Where the draws and the classes of an array of scores are."""

    shape: Shape  # shape of the array
    draws: bool = False  # whether the first dimension counts Monte Carlo draws
    axis: int | None = None  # dimension of the classes; None: one number per row
    ignore: int | None = None  # rows with this label are left out
    left_out: int = 0  # number of rows that are left out

    @property
    def row_axis(self) -> int:
        """The dimension that counts the samples."""
        return int(self.draws)

    @property
    def binary(self) -> bool:
        """Whether there is one number per row or position."""
        return self.axis is None or self.shape[self.axis] == 1

    @property
    def dense(self) -> bool:
        """Whether a sample has several positions with a label each."""
        return len(self.shape) - int(self.draws) - int(self.axis is not None) > 1

    @property
    def flat(self) -> Shape:
        """Shape of all rows: (M, C) or (S, M, C); C is 1 for binary scores."""
        classes = 1 if self.axis is None else self.shape[self.axis]
        front = self.shape[:1] if self.draws else ()
        return (*front, math.prod(self.shape) // classes // math.prod(front), classes)

    def rows(self, block: Tensor) -> Tensor:
        """Return a block of samples as rows (M, C) or (S, M, C)."""
        last = block[..., None] if self.axis is None else block.movedim(self.axis, -1)
        return last.reshape(*last.shape[:1], -1, last.shape[-1]) if self.draws else last.reshape(-1, last.shape[-1])

    def back(self, rows: Tensor) -> Tensor:
        """Return rows in the shape of the array."""
        if self.axis is None:
            return rows.reshape(self.shape)
        order = [*self.shape[: self.axis], *self.shape[self.axis + 1 :], self.shape[self.axis]]
        return rows.reshape(order).movedim(-1, self.axis).contiguous()

    def kept(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows and labels without those that are left out."""
        if self.ignore is None:
            return scores, labels
        keep = not_ignored(labels, self.ignore)
        return (scores, labels) if bool(keep.all()) else (scores[..., keep, :], labels[keep])


def as_numbers(rows: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """Return binary rows (…, 2) as one number each: the probability or the logit of class 1.

    >>> as_numbers(torch.tensor([[0.0, 2.0]]), "logits", torch.float32).tolist()
    [[2.0]]
    """
    first, second = rows[..., :1].double(), rows[..., 1:].double()
    if kind == "probs":
        return torch.where(first < second, 1 - first, second)  # the smaller of the two has more digits
    logits = second - first
    limits: Any = torch.finfo(dtype)
    return logits.clamp(limits.min, limits.max)
