"""A compiled network whose weights change in place, so that a forward pass on a GPU is one CUDA graph.

There are two buffers for weights. While the network runs with one, the next sample is drawn into the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from avuc.bayes import BayesianModule
from avuc.nets.runner import LOCK, Runner
from avuc.prediction.arguments import Arguments, Array, tensor_of
from avuc.prediction.backends.backend import bytes_of
from avuc.prediction.backends.weight_buffers import WeightBuffers, affine_in_weights, copy_parts

# how often a compiled function runs before it is captured: libraries choose their algorithms in the first calls
TRIALS = 2
# input shapes for which the network is compiled; inputs of other shapes run uncompiled, because compiling takes 9 to
# 22 s for each shape
MOST_SHAPES = 4
# types of arguments that are equal if their texts are; other arguments may hold tensors, which a graph would read at
# their old address
PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

Shapes = tuple[object, ...]


class Captured(NamedTuple):
    """A graph of the network with one buffer, and the output that it writes."""

    graph: torch.cuda.CUDAGraph
    output: Any


class StaticNet:
    """Runs samples of a Bayesian module, one after the other.

    Args:
        bayesian: the posterior.
        runner: its network, compiled.
        dtype: type of autocast, None without.
        seed: of the samples.
        memory: bytes of samples that are kept.
        arguments: arguments of the network, for a trial run.
    """

    def __init__(
        self,
        bayesian: BayesianModule,
        runner: Runner,
        dtype: torch.dtype | None,
        seed: int,
        memory: int,
        arguments: Arguments,
    ) -> None:
        self._runner, self._draws = runner, WeightBuffers(bayesian, runner, dtype, seed, arguments)
        self._device = device = self._draws.mean.device
        self._cuda = device.type == "cuda"
        self._buffers = [self._draws.new_buffer() for _ in range(2 if self._cuda else 1)]
        self._functions = [runner.with_all(buffer.weights) for buffer in self._buffers]
        self._uncompiled = [runner.with_all(buffer.weights, compiled=False) for buffer in self._buffers]
        self._shapes: set[Shapes] = set()  # shapes for which the network is compiled
        self._held: list[int | None] = [None] * len(self._buffers)  # which sample a buffer holds
        self._kept: dict[int, list[Tensor]] = {}
        self.memory_left: int = memory
        self._active, self._next = 0, -1
        self._graphs: dict[Shapes, tuple[Arguments, dict[int, Captured]]] = {}
        self._copied: tuple[Shapes, list[tuple[int, int]]] | None = None  # what the graphs' input holds
        self._pool: Any = None
        self.uncaptured: str | None = None  # why there is no graph
        if self._cuda:
            self._side = torch.cuda.Stream(device)
            self._filled = [torch.cuda.Event() for _ in self._buffers]
            self._used = [torch.cuda.Event() for _ in self._buffers]

    @staticmethod
    def supports(bayesian: BayesianModule, runner: Runner) -> bool:
        """Return whether samples of this posterior can be drawn into fixed memory."""
        return not bayesian.recurrent and affine_in_weights(bayesian, runner)

    def ready(self, index: int, upcoming: int | None) -> None:
        """Select sample `index` for the next calls; `upcoming` is drawn meanwhile."""
        if index not in self._held:
            self._fill(1 - self._active if len(self._held) > 1 else 0, index)
        self._active = self._held.index(index)
        self._next = -1 if upcoming is None else upcoming
        if self._cuda:
            torch.cuda.current_stream(self._device).wait_event(self._filled[self._active])

    def __call__(self, arguments: Arguments) -> Any:
        """Return the network's output, which the next call may overwrite."""
        shapes = _shapes(arguments)
        few = shapes in self._shapes or len(self._shapes) < MOST_SHAPES
        if few:
            self._shapes.add(shapes)
        function = (self._functions if few else self._uncompiled)[self._active]
        if not self._cuda:
            return function(*arguments.args, **arguments.kwargs)
        with torch.cuda.device(self._device):
            captured = few and self.uncaptured is None and _is_plain(arguments)
            output = self._on_gpu(arguments, shapes) if captured else function(*arguments.args, **arguments.kwargs)
        self._used[self._active].record(torch.cuda.current_stream(self._device))
        if self._next >= 0:
            if self._next not in self._held:
                self._fill(1 - self._active, self._next)
            self._next = -1
        return output

    def end(self) -> None:
        """Wait for the sample that is being drawn, so that its memory can be freed."""
        if self._cuda:
            torch.cuda.current_stream(self._device).wait_stream(self._side)
        self._copied = None

    def _fill(self, buffer_index: int, index: int) -> None:
        self._held[buffer_index] = None
        if not self._cuda:
            self._draw(buffer_index, index)
        else:
            current = torch.cuda.current_stream(self._device)
            # for the first sample: the buffers may just have been created on this stream
            if self._held[1 - buffer_index] is None:
                self._side.wait_stream(current)
            self._side.wait_event(self._used[buffer_index])
            with torch.cuda.stream(self._side):
                self._draw(buffer_index, index)
                self._filled[buffer_index].record(self._side)
        self._held[buffer_index] = index

    def _draw(self, buffer_index: int, index: int) -> None:
        buffer = self._buffers[buffer_index]
        if index in self._kept:
            copy_parts(self._kept[index], buffer)
            return
        self._draws.fill(buffer, index)
        size = bytes_of(memory for _, memory in buffer.parts)
        if size <= self.memory_left:
            self.memory_left -= size
            self._kept[index] = [memory.clone() for _, memory in buffer.parts]

    def _on_gpu(self, arguments: Arguments, shapes: Shapes) -> Any:
        arrays = [tensor_of(array) for _, array in arguments.arrays()]
        function = self._functions[self._active]
        if shapes not in self._graphs:
            self._graphs[shapes] = (arguments.map(lambda array: tensor_of(array).clone()), {})
            self._copied = None
        fixed, captured = self._graphs[shapes]
        # one batch that all samples share is copied once
        known = not any(array.is_inference() for array in arrays)  # inference tensors do not show whether they changed
        now = (shapes, [(id(array), array._version) for array in arrays]) if known else None
        if now is None or now != self._copied:
            for (_, target), source in zip(fixed.arrays(), arrays, strict=True):
                tensor_of(target).copy_(source)
            self._copied = now
            self._source = arrays  # held, so that no other tensor gets the same id
        if self._active not in captured:
            result = function(*fixed.args, **fixed.kwargs)  # compiles; an error here is the network's or the compiler's
            try:
                with LOCK:  # one capture at a time
                    captured[self._active] = self._capture(fixed)
            except Exception as error:  # not every network can be captured; this one then runs without a graph
                torch.cuda.synchronize()
                self.uncaptured = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return result
        captured[self._active].graph.replay()
        return captured[self._active].output

    def _capture(self, fixed: Arguments) -> Captured:
        function = self._functions[self._active]
        trial = torch.cuda.Stream()
        trial.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(trial):
            for _ in range(TRIALS):
                function(*fixed.args, **fixed.kwargs)
        torch.cuda.current_stream(self._device).wait_stream(trial)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # the two graphs never run at the same time, so they share their memory
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = function(*fixed.args, **fixed.kwargs)
        self._pool = graph.pool()
        return Captured(graph, output)


def _shapes(arguments: Arguments) -> Shapes:
    """Return what a compiled function depends on, besides the values in tensors."""

    def fact(value: Any) -> object:
        if isinstance(value, Array):
            tensor = tensor_of(value)
            return tuple(tensor.shape), tensor.stride(), tensor.dtype
        return repr(value) if isinstance(value, PLAIN) else type(value)

    return (*map(fact, arguments.args), *((name, fact(value)) for name, value in arguments.kwargs.items()))


def _is_plain(arguments: Arguments) -> bool:
    return all(isinstance(value, (Tensor, *PLAIN)) for value in (*arguments.args, *arguments.kwargs.values()))
