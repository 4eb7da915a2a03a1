"""How a joint step of several models is run: one after the other, or (captured.py) as one CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from avuc.core.errors import InputError
from avuc.data.arrays import Dataset, as_input
from avuc.training.model_trainer import Member, NotFinite

__all__ = ["Diverged", "EagerSteps", "Steps", "check", "take"]


class Diverged(InputError):
    """Training produced NaN or infinity."""

    def __init__(self, member: Member, step: int, term: str) -> None:
        self.member, self.step, self.term = member, step, term
        super().__init__(f"step {step}: the {term} became NaN or infinite")


class Steps(Protocol):
    """A joint step of `members`."""

    members: Sequence[Member]

    def prepare(self, sizes: Sequence[int]) -> None:
        """Before an epoch with batches of these sizes."""

    def __call__(self, indices: Tensor) -> None:
        """Row m of `indices` (M, rows) are the images of model m."""


class EagerSteps:
    """The plain way; on a CPU each step is checked at once."""

    def __init__(self, members: Sequence[Member], data: Dataset | None = None) -> None:
        self.members, self.data = members, data

    def prepare(self, sizes: Sequence[int]) -> None:
        return

    def __call__(self, indices: Tensor) -> None:
        assert self.data is not None
        for member, rows in zip(self.members, indices, strict=True):
            take(member, *member.batch(self.data, rows), len(rows))
            if member.device.type == "cpu":
                check(member)

    def on_stream(self, batch: tuple[Tensor, Tensor]) -> None:
        """The same batch of pictures and labels, from files, for all models."""
        images, labels = batch
        share = self.members[0].ranks.share(len(labels))
        for member in self.members:
            take(member, as_input(images[share]), labels[share], len(labels))
            if member.device.type == "cpu":
                check(member)


def take(member: Member, images: Tensor, labels: Tensor, rows: int) -> None:
    """One step of one model."""
    try:
        member.step(images, labels, rows)
    except NotFinite as error:
        raise Diverged(member, int(member.meters.sums[-1]), str(error)) from error


def check(member: Member) -> None:
    """Raise if anything has stopped being finite since the epoch began."""
    found = member.meters.first_bad()
    if found is not None:
        raise Diverged(member, *found)
