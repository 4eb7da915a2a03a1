"""Work on a GPU that comes again with the same memory is recorded as a CUDA graph, and started by one call.

Starting a hundred small kernels takes Python longer than the GPU needs for them. In training, the allocator gives every
step the same addresses as the step before: a graph, which has the addresses in it, fits again.

    first time       run, and remember the key
    second time      record, then replay
    from then on     replay

What keeps a replay right:

- The key has everything that kernels take from the processor: addresses, sizes, strides, types, numbers, settings.
- Work uses memory of the caller only, and what torch takes for cuBLAS while it is recorded. The latter is in one pool
  for all graphs of a GPU, which nothing else uses; the pool lives as long as a graph does.
- Graphs run on the default stream only, so never two at once. Work on other streams is not recorded.
- The stream that records is made by the driver and belongs to nobody else: torch's streams are shared after the 32nd,
  and the memory of cuBLAS is kept by stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import Any, Protocol

import torch

# Off: it has not run on a GPU in this form.
RECORD = False
# Graphs that are kept for a GPU, and keys that are remembered.
GRAPHS, KEYS = 8, 64
# A recording takes as long as some steps: after FREE of them there must be replays, too, this many for each.
FREE, WORTH = 8, 16
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

Work = Callable[[], None]


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Start it on the current stream."""


class Cuda:
    """What a recorder needs of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device: torch.device = device
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None  # torch's handle of the memory that graphs share

    def recordable(self) -> bool:
        """Return whether work that is started now is on the default stream, and nobody else records it."""
        if torch.cuda.is_current_stream_capturing():
            return False
        return torch.cuda.current_stream(self.device) == torch.cuda.default_stream(self.device)

    def settings(self) -> Hashable:
        """Return what decides how a product is computed, besides its matrices."""
        matmul = torch.backends.cuda.matmul
        return (
            matmul.allow_tf32,
            matmul.allow_bf16_reduced_precision_reduction,
            matmul.allow_fp16_reduced_precision_reduction,
            torch.are_deterministic_algorithms_enabled(),
            str(torch.backends.cuda.preferred_blas_library()),
        )

    def record(self, work: Work) -> Graph:
        """Return the graph of `work`, which is not run."""
        if self.stream is None:
            self.stream, self.pool = _own_stream(self.device), torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # other threads may go on using the GPU; a collection might free what cannot be freed now
        with torch.cuda.stream(self.stream), _no_collection():
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph

    def wait(self) -> None:
        """Wait until no graph runs."""
        torch.cuda.default_stream(self.device).synchronize()


class Recorder:
    """Runs work, or replays what it did last time.

    Args:
        cuda: of one GPU.
    """

    def __init__(self, cuda: Cuda) -> None:
        self.cuda: Cuda = cuda
        self.graphs: OrderedDict[Hashable, Graph] = OrderedDict()
        self.keys: OrderedDict[Hashable, None] = OrderedDict()
        self.recordings: int = 0
        self.replays: int = 0
        self.failed: bool = False
        self.lock: threading.Lock = threading.Lock()

    def run(self, key: Hashable, work: Work) -> None:
        """Do `work`; it depends on nothing from the processor that `key` does not have."""
        if self.failed or not self.cuda.recordable() or not self.lock.acquire(blocking=False):
            work()
            return
        try:
            self._run((key, self.cuda.settings()), work)
        finally:
            self.lock.release()

    def _run(self, key: Hashable, work: Work) -> None:
        graph = self.graphs.get(key)
        if graph is None and key in self.keys and self.recordings < FREE + self.replays // WORTH:
            graph = self._recorded(key, work)
        if graph is None:
            work()
            self.keys[key] = None
            self.keys.move_to_end(key)
            while len(self.keys) > KEYS:
                self.keys.popitem(last=False)
            return
        self.graphs.move_to_end(key)
        self.replays += 1
        graph.replay()

    def _recorded(self, key: Hashable, work: Work) -> Graph | None:
        try:
            graph = self.cuda.record(work)
        except RuntimeError as error:
            self.failed = True
            reason = str(error).splitlines()[0][:200]
            warnings.warn(f"linear_avuc: no CUDA graphs, each kernel is started by itself ({reason})", stacklevel=2)
            return None
        self.recordings += 1
        self.graphs[key] = graph
        if len(self.graphs) > GRAPHS:
            self.cuda.wait()  # it may still run
            self.graphs.popitem(last=False)
        return graph


@cache
def recorder(device: torch.device) -> Recorder:
    """Return the recorder of this GPU."""
    return Recorder(Cuda(device))


def _own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream of this GPU that nobody else has; it does not wait for the default stream."""
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # binds the GPU's context to this thread
        try:
            create = ctypes.CDLL("libcuda.so.1").cuStreamCreate
        except (OSError, AttributeError) as error:
            raise RuntimeError(f"the driver cannot be asked for a stream: {error}") from error
        address = ctypes.c_void_p()
        code = create(ctypes.byref(address), NON_BLOCKING)
        if code or not address.value:
            raise RuntimeError(f"the driver gave no stream (error {code})")
        return torch.cuda.ExternalStream(address.value, device=device)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
