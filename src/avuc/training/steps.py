"""Joint steps: one training step of several models. Here the protocol and the eager steps.

`captured.py` has steps as one CUDA graph, `compiled_steps.py` compiled steps of several ranks. The optional folder
`avuc.gpu` offers steps of several models as one stacked network, found through `avuc.core.accelerators`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.data.arrays import as_input
from avuc.data.tensors import MemoryData
from avuc.training.model_trainer import ModelTrainer, NotFinite


class Diverged(InputError):
    """Training produced NaN or infinity."""

    def __init__(self, trainer: ModelTrainer, step: int, term: str) -> None:
        self.trainer: ModelTrainer = trainer
        self.step: int = step
        self.term: str = term
        super().__init__(f"step {step}: the {term} became NaN or infinite")


class Steps(Protocol):
    """A joint step of several models. All implementations compute the same, up to rounding."""

    trainers: Sequence[ModelTrainer]

    def prepare(self, sizes: Sequence[int]) -> None:
        """Get ready for an epoch with batches of these sizes."""

    def __call__(self, indices: Tensor) -> None:
        """Take one step. Row m of `indices` (models, batch) has the numbers of the training images of model m."""

    def release(self) -> None:
        """Free what the steps hold; the models keep their state."""


class EagerSteps:
    """Steps one model after the other. On a CPU every step is checked for NaN at once."""

    def __init__(self, trainers: Sequence[ModelTrainer], data: MemoryData | None = None) -> None:
        self.trainers: Sequence[ModelTrainer] = trainers
        self.data: MemoryData | None = data
        self.random: GlobalNumbers = GlobalNumbers(trainers)

    def prepare(self, sizes: Sequence[int]) -> None:
        self.random = GlobalNumbers(self.trainers)

    def __call__(self, indices: Tensor) -> None:
        assert self.data is not None
        for trainer, rows in zip(self.trainers, indices, strict=True):
            with self.random.of(trainer):
                take(trainer, *trainer.batch(self.data, rows))
            if trainer.device.type == "cpu":
                check(trainer)

    def on_stream(self, batch: tuple[Tensor, Tensor]) -> None:
        """Take one step of every model on the same batch of images and labels, read from files."""
        images, labels = batch
        share = self.trainers[0].ranks.share(len(labels))
        for trainer in self.trainers:
            with self.random.of(trainer):
                take(trainer, as_input(images[share]), labels[share])
            if trainer.device.type == "cpu":
                check(trainer)

    def release(self) -> None:
        return


class GlobalNumbers:
    """The numbers of torch's global generator in one epoch of several jobs: each job gets those it would get alone.

    A network of the user's own may draw from that generator, for example in nn.Dropout. The models of one job, which
    are an ensemble, share one stream.
    """

    def __init__(self, trainers: Sequence[ModelTrainer]) -> None:
        self.first: dict[int, ModelTrainer] = {}  # the first model of each model's job
        for trainer in trainers:
            latest = next(reversed(self.first.values()), trainer)
            self.first[id(trainer)] = latest if trainer.index else trainer
        self.several: bool = len({id(trainer) for trainer in self.first.values()}) > 1
        self.states: dict[int, list[Tensor]] = {}

    @contextlib.contextmanager
    def of(self, trainer: ModelTrainer) -> Iterator[None]:
        """Draw the numbers of a model's job inside."""
        if not self.several:  # `Loop` has seeded the generator
            yield
            return
        first, on_gpu = self.first[id(trainer)], trainer.device.type == "cuda"
        if id(first) not in self.states:
            torch.manual_seed(first.global_seed(first.epoch))
        else:
            torch.set_rng_state(self.states[id(first)][0])
            if on_gpu:
                torch.cuda.set_rng_state(self.states[id(first)][1], trainer.device)
        yield
        self.states[id(first)] = [torch.get_rng_state()]
        if on_gpu:
            self.states[id(first)].append(torch.cuda.get_rng_state(trainer.device))


def take(trainer: ModelTrainer, images: Tensor, labels: Tensor) -> None:
    """Take one step of one model; raise `Diverged` if its loss reports NaN."""
    try:
        trainer.step(images, labels)
    except NotFinite as error:
        raise Diverged(trainer, int(trainer.meters.sums[-1]), str(error)) from error


def check(trainer: ModelTrainer) -> None:
    """Raise `Diverged` if a term has become NaN or infinite since the epoch began."""
    bad = trainer.meters.first_bad()
    if bad is not None:
        raise Diverged(trainer, *bad)


@contextlib.contextmanager
def unchanged(trainers: Sequence[ModelTrainer]) -> Iterator[None]:
    """Undo all steps taken inside.

    Random generators are not restored: each epoch seeds them again.
    """
    before = {id(tensor): tensor.detach().clone() for trainer in trainers for tensor in trainer.state()}
    try:
        yield
    finally:
        with torch.no_grad():
            for trainer in trainers:
                for tensor in trainer.state():
                    if id(tensor) in before:
                        tensor.copy_(before[id(tensor)])
                    else:
                        tensor.zero_()  # a moment that the first step created; moments start at 0
                trainer.optimizer.zero_grad(set_to_none=True)


def error_text(error: Exception) -> str:
    """Return the type and the first line of an error, for a message of one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
