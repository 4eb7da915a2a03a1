"""The fast path on CUDA: a joint step of several models as one CUDA graph, a stream for each, over compiled pieces.

What a replay reads lies in fixed places: the rows of the step in a buffer that is filled before it, learning rate and
KL weight in tensors, random numbers in generators that the graph knows. Trial steps that compiling and capturing need
are taken back afterwards. Whatever cannot be captured runs eagerly, and one line says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from avuc.data.arrays import Dataset
from avuc.training.compiled import LEVELS, attach, compiling
from avuc.training.model_trainer import Member
from avuc.training.steps import Diverged, take

__all__ = ["Captured", "FastSteps", "captured", "fresh_generators", "tried", "unchanged"]

# cuDNN, cuBLAS and the compiler settle within this many steps
TRIAL_STEPS = 3


class Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    indices: Tensor


class FastSteps:
    """A joint step of models on a GPU; see `Steps`."""

    def __init__(self, members: Sequence[Member], data: Dataset, say: Callable[[str], None]) -> None:
        settings = members[0].settings
        self.members, self.data, self.say = members, data, say
        self.capturing = settings.capture
        # the objective counts epochs, so that outside a graph it would be compiled anew for each of them
        levels = list(LEVELS) if self.capturing else list(LEVELS[1:])
        self.levels = levels if settings.compile else [LEVELS[-1]]
        self.streams = [torch.cuda.Stream(members[0].device) for _ in members] if len(members) > 1 else []
        self.graphs: dict[int, Captured] = {}
        self.ready: set[int] = set()
        self.phase: tuple[bool, ...] = ()

    def prepare(self, sizes: Sequence[int]) -> None:
        """Before an epoch: compile and capture a step for each batch size, unless that is done."""
        for member in self.members:
            member.model.train()
            member.loss.train()
        phase = tuple(member.loss.warming_up for member in self.members)
        if phase != self.phase:
            # the objective does something else from now on
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

    def _prepare(self, rows: int) -> None:
        while True:
            level = self.levels[0]
            for member in self.members:
                attach(member, level)
            try:
                indices = torch.arange(rows, device=self.data.device).expand(len(self.members), rows).contiguous()
                with compiling():
                    with unchanged(self.members):
                        tried(lambda: self._joint(indices), self.data.device)  # noqa: B023  (called at once)
                    if self.capturing:
                        self.graphs[rows] = captured(lambda: self._joint(indices), self.members, indices)  # noqa: B023
                return
            except Diverged:
                raise
            except Exception as error:  # compiler and driver fail in many ways; every one of them has a slower way out
                reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"
                torch.cuda.synchronize()
                fresh_generators(self.members, self.data.device)
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
            self._step(self.members[0], indices[0])
            return
        main = torch.cuda.current_stream()
        for member, stream, rows in zip(self.members, self.streams, indices, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                self._step(member, rows)
        for stream in self.streams:
            main.wait_stream(stream)

    def _step(self, member: Member, rows: Tensor) -> None:
        take(member, *member.batch(self.data, rows), len(rows))


def tried(step: Callable[[], None], device: torch.device) -> None:
    """The steps before a capture, aside from the main stream."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(TRIAL_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def captured(step: Callable[[], None], members: Sequence[Member], indices: Tensor) -> Captured:
    """A joint step that reads `indices`, as a graph that knows the models' generators."""
    graph = torch.cuda.CUDAGraph()
    for member in members:
        for generator in (member.noise, member.augmenting):
            graph.register_generator_state(generator)
        member.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    return Captured(graph, indices)


def fresh_generators(members: Sequence[Member], device: torch.device) -> None:
    """A capture that broke off leaves its generators waiting for the end of it."""
    default = torch.cuda.default_generators[device.index]
    for generator in (default, *(g for member in members for g in (member.noise, member.augmenting))):
        generator.graphsafe_set_state(torch.Generator(device=device).graphsafe_get_state())


@contextlib.contextmanager
def unchanged(members: Sequence[Member]) -> Iterator[None]:
    """Whatever steps are taken inside, the models are afterwards as they were. Streams of random numbers are not: each
    epoch starts them anew."""
    before = {id(tensor): tensor.detach().clone() for member in members for tensor in member.state()}
    try:
        yield
    finally:
        with torch.no_grad():
            for member in members:
                for tensor in member.state():
                    if id(tensor) in before:
                        tensor.copy_(before[id(tensor)])
                    else:
                        tensor.zero_()  # moments that the first step made; they begin at 0
                member.optimizer.zero_grad(set_to_none=True)
