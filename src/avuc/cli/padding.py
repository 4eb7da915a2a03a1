"""Padding of the file of --apply: it gets sets and answers, is marked in what --to writes, and counts in no figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from avuc.evaluation.files import ScoreFile
    from avuc.predictions import Predictions


@dataclass
class Padding:
    """Which rows labels mark as padding.

    Args:
        mask: (N,) bool; None: no row is.
    """

    mask: Tensor | None

    @staticmethod
    def of(file: ScoreFile) -> Padding:
        return Padding(file.ignored)

    def separately(self, apply: Callable[[Predictions], Tensor], predictions: Predictions) -> Tensor:
        """Return `apply` of the real rows and of padding as one: random numbers depend on all rows that go together."""
        if self.mask is None:
            return apply(predictions)
        from avuc.evaluation.decomposition import rows_of

        real = apply(rows_of(predictions, ~self.mask))
        both = real.new_empty(len(self.mask), *real.shape[1:])
        both[~self.mask], both[self.mask] = real, apply(rows_of(predictions, self.mask))
        return both

    def real(self, values: Any) -> Any:
        """Return the real ones of an array of rows."""
        return values if self.mask is None else values[~self.mask.numpy()]

    @property
    def remark(self) -> str:
        """The end of a line about the real rows."""
        if self.mask is None:
            return ""
        return f" {int(self.mask.sum()):,} of {len(self.mask):,} rows are padding by their labels and do not count."

    @property
    def count(self) -> dict[str, int]:
        """The number of rows of padding, for the JSON, if there are any."""
        return {} if self.mask is None else {"padding": int(self.mask.sum())}

    def array(self, shape: Sequence[int]) -> dict[str, Any]:
        """Return the array that marks padding in an .npz, if there is any."""
        return {} if self.mask is None else {"padding": self.mask.numpy().reshape(shape)}

    def table(self, head: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> tuple[Sequence[str], Sequence[Any]]:
        """Return a table with a column that marks padding, if there is any."""
        if self.mask is None:
            return head, rows
        return [*head, "padding"], [(*row, int(mark)) for row, mark in zip(rows, self.mask.tolist(), strict=True)]
