"""Compiled steps of several ranks.

The forward and backward pass of the network, the weight samples, the KL, the objective, the augmentation and the
metrics are compiled, as they are for one rank. The sums over ranks inside the network (batch normalisation) and inside
the objective (AvUC) are operators in the compiled graphs. Averaging the gradients and the optimizer are not compiled:
both are one fused call already. The step is not captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from avuc.core.data_parallel import rehearsal
from avuc.data.arrays import Dataset
from avuc.training.compiled import LEVELS, attach, compiling, eager_pieces
from avuc.training.distributed import Ranks
from avuc.training.model_trainer import ModelTrainer
from avuc.training.steps import Diverged, check, error_text, take, unchanged


class CompiledSteps:
    """Compiled steps, one model after the other; see `Steps`.

    Every rank compiles in a rehearsal, in which nothing is sent. If compiling fails on one rank, all ranks compile
    less of the step.
    """

    def __init__(self, trainers: Sequence[ModelTrainer], data: Dataset, say: Callable[[str], None]) -> None:
        self.trainers: Sequence[ModelTrainer] = trainers
        self.data: Dataset = data
        self.say: Callable[[str], None] = say
        self.ranks: Ranks = trainers[0].ranks
        self.levels: list[str] = list(LEVELS)
        self.ready: set[int] = set()
        self.phase: tuple[bool, ...] = ()
        self.attached: str = ""
        eager = {piece: reason for trainer in trainers for piece, reason in eager_pieces(trainer).items()}
        parts = "".join(f"; the {piece} runs eagerly ({reason})" for piece, reason in eager.items())
        say(
            f"training: the steps of {self.ranks.size} ranks are compiled, but not captured as CUDA graphs, because "
            f"ranks exchange messages in a step{parts}"
        )

    def prepare(self, sizes: Sequence[int]) -> None:
        """Compile the steps for these batch sizes, unless that is done."""
        for trainer in self.trainers:
            trainer.train_mode()
            trainer.loss.train()
        phase = tuple(trainer.loss.warming_up for trainer in self.trainers)
        if phase != self.phase:
            # the objective computes something else from this epoch on
            self.phase, self.ready = phase, set()
        for rows in sorted(set(sizes), reverse=True):
            if rows not in self.ready and self._is_compiled(rows):
                self._compile(rows)
                self.ready.add(rows)

    def __call__(self, indices: Tensor) -> None:
        self._attach(self.levels[0] if self._is_compiled(indices.shape[1]) else "none")
        for trainer, rows in zip(self.trainers, indices, strict=True):
            take(trainer, *trainer.batch(self.data, rows))
            if trainer.device.type == "cpu":
                check(trainer)

    def release(self) -> None:
        self._attach("none")

    def _is_compiled(self, rows: int) -> bool:
        """Whether steps of this batch size are compiled: not those in which some rank has no rows."""
        return rows >= self.ranks.size

    def _attach(self, level: str) -> None:
        if level != self.attached:
            for trainer in self.trainers:
                attach(trainer, level)
            self.attached = level

    def _compile(self, rows: int) -> None:
        while True:
            level = self.levels[0]
            self._attach(level)
            error = self._rehearse(rows)
            reasons = self.ranks.gather(None if error is None else error_text(error))
            failures = [reason for reason in reasons if reason is not None]
            if not failures:
                return
            if len(self.levels) == 1:
                raise error or RuntimeError(f"the training step of another rank fails: {failures[0]}")
            self.levels.pop(0)
            self.say(f"training: the step fails with {level} of it compiled ({failures[0]}); now {self.levels[0]}")

    def _rehearse(self, rows: int) -> Exception | None:
        """Take a step that is undone, without the other ranks; return the error it raises, or None."""
        indices = torch.arange(rows, device=self.data.device)
        try:
            with compiling(), rehearsal(), unchanged(self.trainers):
                for trainer in self.trainers:
                    take(trainer, *trainer.batch(self.data, indices))
        except Diverged:
            return None  # it runs; the step itself will report the NaN on all ranks
        except Exception as error:  # compilers fail in many ways; for each there is a slower way
            return error
        return None
