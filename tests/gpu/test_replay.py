"""Work that comes again is recorded: the rules on any machine, the graphs on a GPU."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

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
        self.default, self.fails, self.changes, self.waits = True, False, (), 0

    def recordable(self) -> bool:
        return self.default

    def settings(self) -> tuple[Any, ...]:
        return self.changes

    def record(self, work: Callable[[], None]) -> Recorded:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return Recorded(work)

    def wait(self) -> None:
        self.waits += 1


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


def test_a_failure_ends_recording(cuda: Pretended) -> None:
    recorder = Recorder(cuda)
    cuda.fails = True
    with pytest.warns(UserWarning, match=r"no CUDA graphs.*not permitted when stream is capturing\)"):
        assert calls(recorder, ["a", "a", "a"]) == [0, 1, 2]
    cuda.fails = False
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
    assert cuda.waits == 3 * KEYS - GRAPHS  # a graph that goes may still run
    # the oldest is recorded again, the newest is there
    assert calls(recorder, [3 * KEYS - 1]) != [0]
    assert calls(recorder, [0, 0, 0]) == [0, 1, 1]


def test_memory_that_never_comes_twice_in_a_row_is_not_recorded_for_ever(cuda: Pretended) -> None:
    recorder = Recorder(cuda)
    keys = [number % (GRAPHS + 4) for number in range(2000)]  # each key is gone when it comes again
    calls(recorder, keys)
    assert FREE < recorder.recordings <= FREE + recorder.replays // WORTH + 1 < 200


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


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A new recorder of the GPU, switched on."""
    new = Recorder(Cuda(torch.device("cuda", torch.cuda.current_device())))
    monkeypatch.setattr(replay, "recorder", lambda device: new)
    monkeypatch.setattr(replay, "RECORD", True)
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
def test_threads_on_a_gpu(recorder: Recorder) -> None:
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

    monkeypatch.setattr(torch, "mm", waits)
    with pytest.warns(UserWarning, match="no CUDA graphs"):
        same(trained(), plain)
    assert recorder.failed
