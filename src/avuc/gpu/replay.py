"""Work on a GPU that comes again with the same memory is recorded as a CUDA graph, and started by one call.

Starting a hundred small kernels takes Python longer than the GPU needs for them. In training, the allocator gives every
step the same addresses as the step before: a graph, which has the addresses in it, fits again.

    first time       run, and remember the key
    second time      record, then replay
    from then on     replay

What keeps a replay right:

- The key has everything that kernels take from the processor: addresses, sizes, strides, types, numbers, settings.
- Work uses memory of the caller only, and what torch takes for cuBLAS while it is recorded. The latter is in one pool
  for all graphs of a GPU, which nothing else uses (`Cuda.record` checks that); the pool lives as long as a graph does.
- Graphs run on the default stream only, so never two at once. Work on other streams is not recorded.
- The stream that records is made by the driver and belongs to nobody else: torch's streams are shared after the 32nd,
  and the memory of cuBLAS is kept by stream. Nothing runs on that stream unless it is recorded, otherwise that memory
  would be in the pool of all tensors.

What keeps the rest of the process right, above all if a recording fails:

- Torch ends a recording only if the driver does. If not, `empty_cache` fails from then on, and memory that several
  streams use is never free again. `Cuda.record` ends it.
- Until torch 2.13 a recording changes the state of the GPU's default generator: other threads cannot draw numbers
  meanwhile, and nobody can after a failure. The recording gets a copy of that state (`_spare_generator`).
- A thread without a cuBLAS handle cannot make one while it records: it is made before.
- While one thread records, another one cannot wait for the whole GPU (`torch.cuda.synchronize`) or free its cache.
  Nothing is recorded while there are other threads, save the main one (it waits for the thread of the backward pass),
  daemons, and those that wait for work (torch.compile leaves some).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from types import FrameType
from typing import Any, Protocol

import torch

# Off: it has not run on a GPU in this form.
RECORD = False
# Graphs that are kept for a GPU, and keys that are remembered.
GRAPHS, KEYS = 8, 64
# A recording takes as long as some steps: after FREE of them there must be replays, too, this many for each.
FREE, WORTH = 8, 16
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
# Whether each recording has a state of the generator by itself.
EACH_ITS_STATE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

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
        self.broken: list[Graph] = []  # recordings that failed

    def recordable(self) -> bool:
        """Return whether work that is started now is on the default stream, and nobody else records or watches it.

        Only torch's own allocator has pools. A dispatch mode (it counts operations, say) must see each operation.
        """
        return (
            torch.version.hip is None
            and not torch.cuda.is_current_stream_capturing()
            and torch.cuda.current_stream(self.device) == torch.cuda.default_stream(self.device)
            and torch.cuda.memory.get_allocator_backend() == "native"
            and not torch._C._len_torch_dispatch_stack()
        )

    def alone(self) -> bool:
        """Return whether no other thread is likely to use the GPU now."""
        known, frames = (threading.get_ident(), threading.main_thread().ident), sys._current_frames()
        others = [thread for thread in threading.enumerate() if not thread.daemon and thread.ident not in known]
        return all(_waits_for_work(frames.get(thread.ident or 0)) for thread in others)

    def settings(self) -> Hashable:
        """Return what decides how a product is computed, besides its matrices."""
        matmul = torch.backends.cuda.matmul
        # `allow_tf32` raises an error if `fp32_precision` was set; the last two are not in every version
        names = (
            "fp32_precision",
            "allow_bf16_reduced_precision_reduction",
            "allow_fp16_reduced_precision_reduction",
            "allow_fp16_accumulation",
            "allow_bf16_reduced_precision_reduction_split_k",
            "allow_fp16_reduced_precision_reduction_split_k",
        )
        return (
            *(getattr(matmul, name, None) for name in names),
            torch.are_deterministic_algorithms_enabled(),
            str(torch.backends.cuda.preferred_blas_library()),
        )

    def record(self, work: Work) -> Graph:
        """Return the graph of `work`, which is not run."""
        with torch.cuda.device(self.device):
            torch.cuda.current_blas_handle()  # of this thread; also binds the GPU's context to it
            if self.stream is None:
                self.stream, self.pool = _own_stream(self.device), torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads may go on using the GPU; a collection might free what cannot be freed now
            with torch.cuda.stream(self.stream), _no_collection():
                with _spare_generator(self.device):
                    graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    probe = torch.empty(1, device=self.device)
                    work()
                finally:
                    graph.capture_end()
        except BaseException:
            self.broken.append(graph)  # torch may keep a pointer to it
            with contextlib.suppress(RuntimeError):  # torch has ended it
                torch._C._cuda_endAllocateToPool(self.device.index, self.pool)
            raise
        places = ((part["address"], part["total_size"]) for part in torch.cuda.memory_snapshot(self.pool))
        if not any(0 <= probe.data_ptr() - first < size for first, size in places):
            raise RuntimeError("memory is taken from a pool of the caller")  # torch.cuda.use_mem_pool
        return graph


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
        if graph is None and key in self.keys and self.recordings < FREE + self.replays // WORTH and self.cuda.alone():
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
        except Exception as error:  # whatever it is: without a recording, `work` does it or says why not
            self.failed = True
            reason = (str(error) or type(error).__name__).splitlines()[0][:200]
            warnings.warn(f"linear_avuc: no CUDA graphs, each kernel is started by itself ({reason})", stacklevel=2)
            return None
        self.recordings += 1
        self.graphs[key] = graph
        if len(self.graphs) > GRAPHS:
            self.graphs.popitem(last=False)  # it may still run: then the driver frees it later, and the pool stays
        return graph


@cache
def recorder(device: torch.device) -> Recorder:
    """Return the recorder of this GPU."""
    return Recorder(Cuda(device))


def _own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream of this GPU, the current one, that nobody else has; it does not wait for the default stream."""
    try:
        create = ctypes.CDLL("libcuda.so.1").cuStreamCreate
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"the driver cannot be asked for a stream: {error}") from error
    address = ctypes.c_void_p()
    code = create(ctypes.byref(address), NON_BLOCKING)
    if code or not address.value:
        raise RuntimeError(f"the driver gave no stream (error {code})")
    return torch.cuda.ExternalStream(address.value, device=device)


def _waits_for_work(frame: FrameType | None) -> bool:
    """Return whether a thread with this frame is one of an executor, and has nothing to do."""
    if frame is None:
        return False
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) == ("concurrent.futures.thread", "_worker")


@contextlib.contextmanager
def _spare_generator(device: torch.device) -> Iterator[None]:
    """Let a recording that begins here have a copy of the default generator's state. The work draws no numbers."""
    if EACH_ITS_STATE:
        yield
        return
    generator = torch.cuda.default_generators[device.index]
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(state)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
