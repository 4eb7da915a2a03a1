"""Work that comes again is recorded: the rules on any machine, the graphs on a GPU."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from avuc.gpu import linear, replay
from avuc.gpu.replay import FREE, GRAPHS, KEYS, WORTH, Cuda, Recorder
from avuc.losses import linear_avuc
from avuc.losses.linear.tiles import Coefficients, Options


class Recorded:
    """A graph: the work of the call that was recorded, with the memory of that call."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class Pretended(Cuda):
    """A GPU that records by keeping the function."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.default, self.fails, self.changes, self.threads = True, None, (), False

    def recordable(self) -> bool:
        return self.default

    def alone(self) -> bool:
        return not self.threads

    def settings(self) -> tuple[Any, ...]:
        return self.changes

    def record(self, work: Callable[[], None]) -> Recorded:
        if self.fails is not None:
            raise self.fails
        return Recorded(work)


@pytest.fixture
def cuda() -> Pretended:
    return Pretended()


def calls(recorder: Recorder, keys: list[Any]) -> list[int]:
    """Return for each key the number of the call whose work was done."""
    done: list[int] = []
    for number, key in enumerate(keys):
        recorder.run(key, lambda number=number: done.append(number))
    return done


def test_the_second_call_is_recorded(cuda: Pretended) -> None:
    recorder = Recorder(cuda)
    assert calls(recorder, ["a", "a", "a", "b", "a", "b", "b"]) == [0, 1, 1, 3, 1, 5, 5]
    assert (recorder.recordings, recorder.replays) == (2, 5)


def test_other_settings_are_another_key(cuda: Pretended) -> None:
    recorder = Recorder(cuda)
    assert calls(recorder, ["a", "a"]) == [0, 1]
    cuda.changes = ("tf32",)
    assert calls(recorder, ["a", "a", "a"]) == [0, 1, 1]


def test_other_streams_are_not_recorded(cuda: Pretended) -> None:
    recorder = Recorder(cuda)
    cuda.default = False
    assert calls(recorder, ["a"] * 4) == [0, 1, 2, 3]
    cuda.default = True
    assert calls(recorder, ["a"] * 3) == [0, 1, 1]
    cuda.default = False
    assert calls(recorder, ["a"] * 2) == [0, 1]


def test_nothing_is_recorded_beside_other_threads(cuda: Pretended) -> None:
    recorder = Recorder(cuda)
    cuda.threads = True
    assert calls(recorder, ["a"] * 3) == [0, 1, 2]
    cuda.threads = False
    assert calls(recorder, ["a"] * 2) == [0, 0]
    cuda.threads = True  # what is recorded can be replayed
    assert calls(recorder, ["b", "b"]) == [0, 1]
    assert recorder.replays == 2
    calls(recorder, ["a"])
    assert recorder.replays == 3


def test_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    main, here = threading.main_thread(), threading.Thread(target=lambda: None)
    here._ident = threading.get_ident()
    daemon, other = (threading.Thread(target=lambda: None, daemon=daemon) for daemon in (True, False))
    for threads, alone in (([main, here, daemon], True), ([main], True), ([main, other], False)):
        monkeypatch.setattr(threading, "enumerate", lambda threads=threads: threads)
        assert Cuda(torch.device("cpu")).alone() == alone


def test_threads_that_wait_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, begun, end = Cuda(torch.device("cpu")), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as executor:
        (thread,) = {executor.submit(threading.current_thread).result()}
        monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), thread])
        limit = time.monotonic() + 60
        while not cuda.alone():  # it goes back to its queue
            assert time.monotonic() < limit
        executor.submit(lambda: (begun.set(), end.wait()))
        assert begun.wait(60)
        assert not cuda.alone()
        end.set()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("operation not permitted when stream is capturing\nmore"), "stream is capturing"),
        (TypeError(), "TypeError"),  # another version of torch
    ],
)
def test_a_failure_ends_recording(cuda: Pretended, error: Exception, reason: str) -> None:
    recorder = Recorder(cuda)
    cuda.fails = error
    with pytest.warns(UserWarning, match=rf"no CUDA graphs.*{reason}\)"):
        assert calls(recorder, ["a", "a", "a"]) == [0, 1, 2]
    cuda.fails = None
    assert calls(recorder, ["b", "b"]) == [0, 1]
    assert not recorder.recordings


def test_work_inside_work_and_in_other_threads_is_done(cuda: Pretended) -> None:
    recorder, done = Recorder(cuda), []

    def outer() -> None:
        done.append("outer")
        recorder.run("inner", lambda: done.append("inner"))
        thread = threading.Thread(target=lambda: recorder.run("inner", lambda: done.append("thread")))
        thread.start()
        thread.join()

    recorder.run("outer", outer)
    assert done == ["outer", "inner", "thread"]


def test_errors_of_the_work_pass_and_free_the_recorder(cuda: Pretended) -> None:
    recorder = Recorder(cuda)

    def fails() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        recorder.run("a", fails)
    assert calls(recorder, ["a", "a", "a"]) == [0, 1, 1]


def test_graphs_and_keys_are_limited(cuda: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "FREE", 1000)
    recorder = Recorder(cuda)
    for key in range(3 * KEYS):
        calls(recorder, [key, key])
        assert len(recorder.graphs) <= GRAPHS
        assert len(recorder.keys) <= KEYS
    # the oldest is recorded again, the newest is there
    assert calls(recorder, [3 * KEYS - 1]) != [0]
    assert calls(recorder, [0, 0, 0]) == [0, 1, 1]


def test_memory_that_never_comes_twice_in_a_row_is_not_recorded_for_ever(cuda: Pretended) -> None:
    recorder = Recorder(cuda)
    keys = [number % (GRAPHS + 4) for number in range(2000)]  # each key is gone when it comes again
    calls(recorder, keys)
    assert FREE < recorder.recordings <= FREE + recorder.replays // WORTH + 1 < 200


class Driver:
    """Stands for torch.cuda while something is recorded: notes what is called, in which order."""

    def __init__(self, patches: pytest.MonkeyPatch, pool: tuple[int, int] = (0, 1), size: int = 1 << 60) -> None:
        self.said: list[str] = []
        self.state = "state of all"
        self.invalid = False
        driver, pair = self, contextlib.nullcontext()

        class Graph:
            def capture_begin(self, **settings: Any) -> None:
                assert settings == {"pool": pool, "capture_error_mode": "thread_local"}
                driver.said.append(f"begin with the {driver.state}")

            def capture_end(self) -> None:
                driver.said.append("end")
                if driver.invalid:
                    raise RuntimeError("operation failed due to a previous error during capture")

        class Generator:
            def clone_state(self) -> str:
                return f"copy of the {driver.state}"

            def graphsafe_get_state(self) -> str:
                return driver.state

            def graphsafe_set_state(self, state: str) -> None:
                driver.state = state

        patches.setattr(torch.cuda, "CUDAGraph", Graph)
        patches.setattr(torch.cuda, "current_blas_handle", lambda: self.said.append("handle"))
        patches.setattr(torch.cuda, "default_generators", (Generator(),))
        patches.setattr(torch.cuda, "device", lambda device: pair)
        patches.setattr(torch.cuda, "stream", lambda stream: pair)
        patches.setattr(torch.cuda, "graph_pool_handle", lambda: pool)
        patches.setattr(torch.cuda, "memory_snapshot", lambda of: [{"address": 0, "total_size": size}][of != pool :])
        patches.setattr(torch._C, "_cuda_endAllocateToPool", self.end_of_pool, raising=False)
        patches.setattr(replay, "_own_stream", lambda device: "stream")
        patches.setattr(torch, "empty", lambda *sizes, device: torch.zeros(sizes))

    def end_of_pool(self, device: int, pool: tuple[int, int]) -> None:
        self.said.append("pool")
        if not self.invalid:
            raise RuntimeError("not currently recording to mempool_id")


@pytest.mark.parametrize("own", [True, False])
def test_a_recording_leaves_the_generator_alone(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, cuda = Driver(monkeypatch), Cuda(torch.device("cuda", 0))
    monkeypatch.setattr(replay, "EACH_ITS_STATE", own)
    graph = cuda.record(lambda: driver.said.append(f"work with the {driver.state}"))
    state = "state of all" if own else "copy of the state of all"
    # the handle is made before: no thread can make one while it records
    assert driver.said == ["handle", f"begin with the {state}", "work with the state of all", "end"]
    assert not cuda.broken
    assert isinstance(graph, torch.cuda.CUDAGraph)


@pytest.mark.parametrize("error", [RuntimeError("one"), KeyboardInterrupt("one")])
@pytest.mark.parametrize("invalid", [True, False])
def test_a_recording_that_fails_is_ended(error: BaseException, invalid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the driver says that the recording is invalid, torch itself leaves its allocator as if it went on."""
    driver, cuda = Driver(monkeypatch), Cuda(torch.device("cuda", 0))
    driver.invalid = invalid
    enabled = gc.isenabled()

    def fails() -> None:
        raise error

    with pytest.raises(RuntimeError if invalid else type(error), match="previous error" if invalid else "one"):
        cuda.record(fails)
    assert driver.said[-2:] == ["end", "pool"]
    assert driver.state == "state of all"
    assert len(cuda.broken) == 1  # torch has a pointer to it
    assert gc.isenabled() == enabled


def test_memory_of_another_pool_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(torch.device("cuda", 0))
    Driver(monkeypatch, size=0)
    with pytest.raises(RuntimeError, match="a pool of the caller"):
        cuda.record(lambda: None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fp32_precision", "tf32"),  # `allow_tf32` cannot be read then
        ("allow_bf16_reduced_precision_reduction", False),
        ("allow_fp16_reduced_precision_reduction", False),
        ("allow_fp16_accumulation", True),
    ],
)
def test_settings_of_products(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.cuda.matmul
    before, plain = getattr(matmul, name), Cuda(torch.device("cpu")).settings()
    setattr(matmul, name, value)
    try:
        assert Cuda(torch.device("cpu")).settings() != plain
    finally:
        setattr(matmul, name, before)
    assert Cuda(torch.device("cpu")).settings() == plain
    hash(plain)


@pytest.mark.parametrize(
    "change", ["nothing", "other stream", "recorded", "cudaMallocAsync", "AMD", "operations are counted"]
)
def test_where_work_is_recorded(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = "cudaMallocAsync" if change == "cudaMallocAsync" else "native"
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: int(change == "other stream"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: change == "recorded")
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: backend)
    monkeypatch.setattr(torch.version, "hip", "7.0" if change == "AMD" else None)
    with FlopCounterMode(display=False) if change == "operations are counted" else contextlib.nullcontext():
        assert Cuda(torch.device("cpu")).recordable() == (change == "nothing")


class Memory:
    """Gives a step the memory of earlier steps, as the allocator of a GPU does."""

    def __init__(self) -> None:
        self.places: dict[Any, Tensor] = {}
        self.taken: dict[Any, int] = {}

    def like(self, new: Tensor) -> Tensor:
        """Return memory for `new`: of tensors of one kind, the first one of each step has the same place, and so on."""
        kind = (tuple(new.shape), new.dtype, new.stride())
        self.taken[kind] = number = self.taken.get(kind, 0) + 1
        return self.places.setdefault((kind, number), new)

    def patch(self, patches: pytest.MonkeyPatch) -> None:
        for of, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
            real = getattr(of, name)
            patches.setattr(of, name, lambda *a, real=real, **k: self.like(real(*a, **k)))


def step_of(choose: random.Random, dtype: torch.dtype, memory: Memory) -> tuple[Any, ...]:
    """Return arguments of both passes: of a few kinds, with numbers that no other step has."""
    tokens, words = choose.choice([(16, 64), (16, 80), (32, 64)])
    sizes = [((tokens, 16), dtype), ((words, 16), dtype), ((words,), dtype), *[((tokens,), torch.float32)] * 4]
    hidden, weight, bias, *columns = (
        memory.like(torch.empty(size, dtype=kind)).copy_(torch.randn(size)) for size, kind in sizes
    )
    labels = memory.like(torch.empty(tokens, dtype=torch.long)).copy_(torch.randint(0, words, (tokens,)))
    options = choose.choice([Options(), Options(3.0, None, 32), Options(None, 0.5)])
    needed = choose.choice([(True, True, True), (True, False, False), (False, True, True)])
    return hidden, weight, choose.choice([None, bias]), labels, columns, options, needed


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_passes_of_random_steps(dtype: torch.dtype, cuda: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that leaves something out would replay other memory, sizes or options, and give other gradients."""
    torch.manual_seed(0)
    recorder, choose = Recorder(cuda), random.Random(1)
    memories = [Memory(), Memory()]
    monkeypatch.setattr(replay, "recorder", lambda device: recorder)
    monkeypatch.setattr(replay, "FREE", 10**6)
    for _ in range(250):
        memory = choose.choice(memories)
        memory.taken.clear()
        hidden, weight, bias, labels, columns, options, needed = step_of(choose, dtype, memory)
        results = []
        for records in (False, True):
            with monkeypatch.context() as patches:
                patches.setattr(replay, "RECORD", records)
                if records:
                    memory.patch(patches)
                part = linear.forward_tiles(hidden, weight, bias, labels, options)
                coefficients = Coefficients(part.largest, *columns)
                arguments = (hidden, weight, bias, labels, part.predicted, coefficients, options, needed)
                found = linear.backward_tiles(*arguments)
            results.append([None if x is None else x.clone() for x in (*part, *found)])
        for plain, replayed in zip(*results, strict=True):
            assert (plain is None) == (replayed is None)
            if plain is not None:
                torch.testing.assert_close(replayed, plain, rtol=0, atol=0)
    assert recorder.replays > 80


class Elsewhere(Tensor):
    """A tensor whose memory might not be where `data_ptr` says."""


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("change", ["nothing", "hidden", "weight", "gaps", "tiles", "logits"])
def test_passes_that_are_not_recorded(change: str, cuda: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(cuda)
    monkeypatch.setattr(replay, "recorder", lambda device: recorder)
    monkeypatch.setattr(replay, "RECORD", True)
    hidden, weight, labels = torch.randn(16, 32), torch.randn(64, 32), torch.zeros(16, dtype=torch.long)
    if change == "hidden":
        hidden = hidden.as_subclass(Elsewhere)
    elif change == "weight":
        weight = weight.as_subclass(Elsewhere)
    elif change == "gaps":
        weight = torch.randn(64, 64)[:, ::2]
    elif change == "tiles":
        monkeypatch.setattr(linear, "RECORDED_TILES", 3)
    elif change == "logits":
        monkeypatch.setattr(linear, "RECORDED_LOGITS", 16 * 64 - 1)
    options = Options(width=16)
    part = linear.forward_tiles(
        hidden, torch.nn.Parameter(weight, False) if change == "nothing" else weight, None, labels, options
    )
    assert len(recorder.keys) == (change == "nothing")
    coefficients = Coefficients(*torch.zeros(5, 16))
    linear.backward_tiles(hidden, weight, None, labels, part.predicted, coefficients, options, (True, True, False))
    assert len(recorder.keys) == 2 * (change == "nothing")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A new recorder of the GPU, switched on."""
    new = Recorder(Cuda(torch.device("cuda", torch.cuda.current_device())))
    monkeypatch.setattr(replay, "recorder", lambda device: new)
    monkeypatch.setattr(replay, "RECORD", True)
    monkeypatch.setattr(new.cuda, "alone", lambda: True)  # whatever threads the test runner has
    return new


def trained(steps: int = 8, tokens: int = 256, between: Callable[[int], None] = lambda step: None) -> list[Tensor]:
    """Return losses and gradients of steps of training: new hidden states, and weights that change in place."""
    generator = torch.Generator("cuda").manual_seed(0)
    weight = torch.randn(1000, 128, generator=generator, device="cuda").bfloat16().requires_grad_()
    bias = torch.zeros(1000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    found = []
    for step in range(steps):
        hidden = torch.randn(tokens, 128, generator=generator, device="cuda").bfloat16().requires_grad_()
        labels = torch.randint(0, 1000, (tokens,), generator=generator, device="cuda")
        weight.grad = bias.grad = None
        result = linear_avuc(hidden, weight, labels, bias=bias, threshold=3.0)
        result.loss.backward()
        found += [x.detach().cpu() for x in (result.loss, result.entropy, hidden.grad, weight.grad, bias.grad)]
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            bias -= 0.1 * bias.grad
        del result, hidden
        between(step)
    return found


def expected(**settings: Any) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(replay, "RECORD", False)
        return trained(**settings)


def same(found: list[Tensor], others: list[Tensor]) -> None:
    for one, other in zip(found, others, strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_training_on_a_gpu(recorder: Recorder) -> None:
    plain = expected(steps=12)
    assert not recorder.recordings
    same(trained(steps=12), plain)
    assert recorder.replays >= 10
    assert not recorder.failed


@pytest.mark.gpu
def test_gradients_that_are_kept_stay(recorder: Recorder) -> None:
    """Replays must not write to gradients of earlier steps that somebody still holds."""
    weight = torch.randn(1000, 128, device="cuda").bfloat16().requires_grad_()
    kept, copies = [], []
    for _ in range(10):
        hidden = torch.randn(256, 128, device="cuda").bfloat16().requires_grad_()
        labels = torch.randint(0, 1000, (256,), device="cuda")
        gradients = torch.autograd.grad(linear_avuc(hidden, weight, labels, threshold=3.0).loss, (hidden, weight))
        kept.append(gradients)
        copies.append([x.clone() for x in gradients])
    for one, other in zip(kept, copies, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.gpu
def test_memory_of_cublas_that_is_freed(recorder: Recorder) -> None:
    fillers: list[Tensor] = []

    def between(step: int) -> None:
        if step == 5:  # what inductor does; whoever takes this memory next must not be overwritten by a replay
            torch._C._cuda_clearCublasWorkspaces()
            gc.collect()
            torch.cuda.empty_cache()
            fillers.extend(torch.full((1 << 20,), 7.0, device="cuda") for _ in range(64))

    plain = expected(steps=12)
    same(trained(steps=12, between=between), plain)
    assert recorder.replays
    assert all(bool((filler == 7).all()) for filler in fillers)


@pytest.mark.gpu
def test_other_streams_on_a_gpu(recorder: Recorder) -> None:
    plain = expected()
    same(trained(), plain)
    before = recorder.replays
    for _ in range(40):  # torch has 32 streams: some are used twice
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            same(trained(steps=2), plain[:10])
        torch.cuda.current_stream().wait_stream(stream)
    assert recorder.replays == before
    same(trained(), plain)
    assert recorder.replays > before


@pytest.mark.gpu
def test_threads_on_a_gpu(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(recorder.cuda, "alone")  # a handle of cuBLAS that one thread makes would end a recording
    plain, found = expected(), {}
    threads = [threading.Thread(target=lambda n=n: found.__setitem__(n, trained())) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found.values():
        same(one, plain)
    assert len(found) == 3


@pytest.mark.gpu
def test_many_shapes_on_a_gpu(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "FREE", 1000)
    sizes = [64 + 8 * number for number in range(GRAPHS)]
    plain = {tokens: expected(steps=4, tokens=tokens) for tokens in sizes}
    for _ in range(3):
        for tokens in sizes:
            same(trained(steps=4, tokens=tokens), plain[tokens])
    assert recorder.recordings > GRAPHS
    assert len(recorder.graphs) <= GRAPHS


@pytest.mark.gpu
def test_inside_a_graph_of_the_user(recorder: Recorder) -> None:
    trained()
    recorded = recorder.recordings
    weight = torch.randn(1000, 128, device="cuda").bfloat16().requires_grad_()
    hidden = torch.randn(256, 128, device="cuda").bfloat16().requires_grad_()
    labels = torch.randint(0, 1000, (256,), device="cuda")

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(linear_avuc(hidden, weight, labels, threshold=3.0).loss, (hidden, weight))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gradients()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients()
    with torch.no_grad():
        hidden.copy_(torch.randn_like(hidden))
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(found, gradients(), strict=True))
    assert recorder.recordings == recorded


@pytest.mark.gpu
def test_settings_of_products_on_a_gpu(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    for reduced in (True, False, True):
        matmul.allow_bf16_reduced_precision_reduction = reduced
        try:
            same(trained(), expected())
        finally:
            matmul.allow_bf16_reduced_precision_reduction = before
    assert recorder.recordings >= 4


@pytest.mark.gpu
def test_memory_that_is_kept(recorder: Recorder) -> None:
    trained()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        trained()
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + 2**20


@pytest.mark.gpu
def test_a_recording_that_fails_on_a_gpu(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = expected()
    real = torch.mm

    def waits(*arguments: Any, **named: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()  # not permitted
        return real(*arguments, **named)

    torch.cuda.manual_seed(0)
    numbers = [torch.rand(10, device="cuda").cpu() for _ in range(2)]
    torch.cuda.manual_seed(0)
    found = [torch.rand(10, device="cuda").cpu()]
    with monkeypatch.context() as patches:
        patches.setattr(torch, "mm", waits)
        with pytest.warns(UserWarning, match="no CUDA graphs"):
            same(trained(), plain)
    assert recorder.failed
    # the rest of torch works as if nothing had been recorded
    found.append(torch.rand(10, device="cuda").cpu())
    same(found, numbers)
    before = torch.cuda.memory_allocated()
    shared, stream = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()
    shared.record_stream(stream)
    del shared
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before
    graph, x = torch.cuda.CUDAGraph(), torch.zeros(3, device="cuda")
    with torch.cuda.graph(graph):
        x += 1
    graph.replay()
    assert x.tolist() == [1, 1, 1]


def drawn_meanwhile() -> Tensor:
    """Return numbers that are drawn while `trained` runs, by a graph of the user and without one."""
    torch.cuda.manual_seed(0)
    graph, x, drawn = torch.cuda.CUDAGraph(), torch.empty(100, device="cuda"), []
    with torch.cuda.graph(graph):
        torch.cuda._sleep(50_000_000)  # it still runs when the next step is recorded
        x.uniform_()

    def between(step: int) -> None:
        graph.replay()
        drawn.extend((x.sum(), torch.rand((), device="cuda")))

    trained(between=between)
    return torch.stack(drawn).cpu()


@pytest.mark.gpu
def test_random_numbers_go_on(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn_meanwhile()
    assert recorder.recordings
    monkeypatch.setattr(replay, "RECORD", False)
    assert torch.equal(found, drawn_meanwhile())


@pytest.mark.gpu
def test_numbers_that_another_thread_draws(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread draws while work is being recorded."""
    real, errors, drawn = torch.mm, [], []

    def draw() -> None:
        try:
            drawn.append(torch.rand(10, device="cuda").cpu())
        except RuntimeError as error:
            errors.append(error)

    def mm(*arguments: Any, **named: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            thread = threading.Thread(target=draw)
            thread.start()
            thread.join()
        return real(*arguments, **named)

    plain = expected()
    monkeypatch.setattr(torch, "mm", mm)
    same(trained(), plain)
    assert not errors
    assert drawn
    assert recorder.replays
    assert not recorder.failed


@pytest.mark.gpu
def test_every_step_in_a_thread_of_its_own(recorder: Recorder) -> None:
    """The thread that records has never used cuBLAS."""
    weight = torch.randn(1000, 128, device="cuda").bfloat16()
    hidden = torch.randn(256, 128, device="cuda").bfloat16()
    labels = torch.randint(0, 1000, (256,), device="cuda")
    kept = [threading.Event() for _ in range(4)]  # threads that end would pass their handles on
    losses: list[Tensor] = []

    def step(number: int) -> None:
        losses.append(linear_avuc(hidden, weight, labels, threshold=3.0).loss.cpu())
        kept[number].wait()

    threads = [threading.Thread(target=step, args=(number,)) for number in range(4)]
    for number, thread in enumerate(threads):
        thread.start()
        while thread.is_alive() and len(losses) <= number:
            time.sleep(0.001)
    for event, thread in zip(kept, threads, strict=True):
        event.set()
        thread.join()
    assert recorder.recordings
    assert len(losses) == 4
    assert len({float(loss) for loss in losses}) == 1
    assert not recorder.failed


@pytest.mark.gpu
def test_a_pool_of_the_user(recorder: Recorder) -> None:
    """Memory that torch takes while it records would be in that pool, and be used by others after it."""
    plain = expected()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # passes of another thread, the backward ones, may be recorded
        same(trained(), plain)
    assert recorder.failed
