"""Joint steps of several models on CUDA as one CUDA graph over compiled pieces, with one stream per model.

A replay reads its input from fixed tensors: the row numbers from a buffer that is filled before each replay, learning
rate and KL weight from tensors, random numbers from generators that are registered with the graph. Compiling and
capturing need trial steps, which are undone. If a step cannot be captured it runs eagerly, and one line says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from avuc._old_names import forward
from avuc.data.arrays import Dataset
from avuc.training.compiled import LEVELS, attach, compiling
from avuc.training.model_trainer import ModelTrainer
from avuc.training.steps import Diverged, error_text, take, unchanged

# cuDNN, cuBLAS and the compiler have made their choices after this many steps
TRIAL_STEPS = 3


class Captured(NamedTuple):
    """A captured step and the buffer (models, batch) it reads its row numbers from."""

    graph: torch.cuda.CUDAGraph
    indices: Tensor


class CapturedSteps:
    """Joint steps on a GPU; see `Steps`."""

    def __init__(self, trainers: Sequence[ModelTrainer], data: Dataset, say: Callable[[str], None]) -> None:
        settings = trainers[0].settings
        self.trainers: Sequence[ModelTrainer] = trainers
        self.data: Dataset = data
        self.say: Callable[[str], None] = say
        self.capturing: bool = settings.capture
        self.levels: list[str] = list(LEVELS) if settings.compile else [LEVELS[-1]]
        self.streams: list[torch.cuda.Stream] = (
            [torch.cuda.Stream(trainers[0].device) for _ in trainers] if len(trainers) > 1 else []
        )
        self.graphs: dict[int, Captured] = {}
        self.ready: set[int] = set()
        self.phase: tuple[bool, ...] = ()

    def prepare(self, sizes: Sequence[int]) -> None:
        """Compile and capture a step for each batch size, unless that is done."""
        for trainer in self.trainers:
            trainer.train_mode()
            trainer.loss.train()
        phase = tuple(trainer.loss.warming_up for trainer in self.trainers)
        if phase != self.phase:
            # the objective computes something else from this epoch on
            self.phase, self.graphs, self.ready = phase, {}, set()
        for rows in sorted(set(sizes), reverse=True):
            if rows not in self.ready:
                self._prepare(rows)
                self.ready.add(rows)

    def __call__(self, indices: Tensor) -> None:
        captured = self.graphs.get(indices.shape[1])
        if captured is None:
            self._joint(indices)
        else:
            captured.indices.copy_(indices)
            captured.graph.replay()

    def release(self) -> None:
        self.graphs, self.ready = {}, set()

    def _prepare(self, rows: int) -> None:
        while True:
            level = self.levels[0]
            for trainer in self.trainers:
                attach(trainer, level)
            try:
                indices = torch.arange(rows, device=self.data.device).expand(len(self.trainers), rows).contiguous()
                with compiling():
                    with unchanged(self.trainers):
                        tried(lambda: self._joint(indices), self.data.device)  # noqa: B023  (called at once)
                    if self.capturing:
                        self.graphs[rows] = captured(lambda: self._joint(indices), self.trainers, indices)  # noqa: B023
                return
            except Diverged:
                raise
            except Exception as error:  # compiler and driver fail in many ways; for each there is a slower way
                reason = error_text(error)
                torch.cuda.synchronize()
                fresh_generators(self.trainers, self.data.device)
                if len(self.levels) > 1:
                    self.levels.pop(0)
                    self.say(f"training: the step fails with {level} of it compiled ({reason}); now {self.levels[0]}")
                elif self.capturing:
                    self.capturing = False
                    self.graphs = {}
                    self.say(f"training: the step cannot be captured as a CUDA graph ({reason}); running eagerly")
                else:
                    raise

    def _joint(self, indices: Tensor) -> None:
        if not self.streams:
            self._step(self.trainers[0], indices[0])
            return
        main = torch.cuda.current_stream()
        for trainer, stream, rows in zip(self.trainers, self.streams, indices, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                self._step(trainer, rows)
        for stream in self.streams:
            main.wait_stream(stream)

    def _step(self, trainer: ModelTrainer, rows: Tensor) -> None:
        take(trainer, *trainer.batch(self.data, rows))


def tried(step: Callable[[], None], device: torch.device) -> None:
    """Run the trial steps before a capture, on a stream of their own."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(TRIAL_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def captured(step: Callable[[], None], trainers: Sequence[ModelTrainer], indices: Tensor) -> Captured:
    """Return a joint step that reads `indices`, as a graph in which the models' generators are registered."""
    graph = torch.cuda.CUDAGraph()
    for trainer in trainers:
        for generator in (trainer.noise, trainer.augmenting):
            graph.register_generator_state(generator)
        trainer.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    return Captured(graph, indices)


def fresh_generators(trainers: Sequence[ModelTrainer], device: torch.device) -> None:
    """Give all generators a new state. A capture that failed leaves them in a state that waits for its end."""
    default = torch.cuda.default_generators[device.index]
    for generator in (default, *(g for trainer in trainers for g in (trainer.noise, trainer.augmenting))):
        generator.graphsafe_set_state(torch.Generator(device=device).graphsafe_get_state())


__getattr__: Callable[[str], object] = forward(__name__)
