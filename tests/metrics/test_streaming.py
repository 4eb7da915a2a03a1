"""Any split and any order of merging equals the pure functions; metrics from histograms lie within their bounds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.metrics import METRICS, avu, evaluate
from avuc.metrics.log_histogram import LOG_BINS, log_bin_edges, log_bin_index
from avuc.metrics.streaming import StreamingMetrics
from avuc.predictions import Predictions

World = Callable[..., tuple[np.ndarray, np.ndarray]]


def check(stream: StreamingMetrics, probs: np.ndarray, labels: np.ndarray, **options: object) -> None:
    want = evaluate(Predictions(torch.from_numpy(probs), torch.from_numpy(labels)), **options)  # type: ignore[arg-type]
    got, bounds = stream.compute(), stream.bounds()
    assert set(got) == set(METRICS)
    for name, value in want.items():
        if name in bounds and not math.isnan(value):
            low, high = bounds[name]
            assert low - 1e-12 <= value <= high + 1e-12, name
            assert low <= got[name] <= high
        elif name not in bounds:
            assert got[name] == pytest.approx(value, abs=1e-12, nan_ok=True), name


@settings(max_examples=25)
@given(
    st.integers(1, 60),
    st.integers(2, 5),
    st.integers(0, 99),
    st.randoms(use_true_random=False),
    st.sampled_from(["auto", 0.4]),
)
def test_any_split_and_any_order_of_merging(n: int, c: int, seed: int, random, threshold) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    probs, labels = rng.dirichlet(np.full(c, 0.5), n), rng.integers(0, c, n)
    probs[::3] = np.eye(c)[0]
    cuts = sorted(random.sample(range(n + 1), k=min(n, 4)))
    parts = [StreamingMetrics(c, threshold=threshold) for _ in range(3)]
    for low, high in zip([0, *cuts], [*cuts, n], strict=True):
        if high > low:
            random.choice(parts).update(probs[low:high], labels[low:high])
    random.shuffle(parts)
    total = StreamingMetrics(c, threshold=threshold)
    for part in parts:
        total.merge(part)
    assert len(total) == n
    check(total, probs, labels, threshold=threshold)


@pytest.mark.parametrize(("n", "c", "scale"), [(5000, 10, 2), (5000, 10, 12), (2000, 2, 1), (700, 300, 4)])
def test_bounds_are_narrow_on_ordinary_data(n: int, c: int, scale: float, world: World) -> None:
    probs, labels = world(n, c, scale=scale, sharpen=1.3)
    stream = StreamingMetrics(c).update(probs, labels)
    check(stream, probs, labels)
    for name, (low, high) in stream.bounds().items():
        assert math.isnan(low) or high - low < 0.02, name


def test_awkward_rows(awkward: World) -> None:
    probs, labels = awkward(600, 7)
    stream = StreamingMetrics(7, bins=10)
    for rows in np.array_split(np.arange(600), 11):
        stream.update(probs[rows], labels[rows])
    check(stream, probs, labels, bins=10)


def test_cells() -> None:
    edges = log_bin_edges()
    assert len(edges) == LOG_BINS + 1
    values = np.concatenate([edges[:-1], np.nextafter(edges[1:-1], 0), 10.0 ** np.linspace(-12, 3, 1000), [0.0]])
    index = log_bin_index(values)
    assert ((edges[index] <= values) & (values < edges[index + 1])).all()
    inner = edges[1:-1]
    assert (np.diff(inner) / inner[:-1]).max() <= 1 / 1024


def test_a_refused_batch_changes_nothing(world: World) -> None:
    probs, labels = world(50, 3)
    stream = StreamingMetrics(3).update(probs, labels)
    before = stream.state_dict()["sums"]
    bad = probs.copy()
    bad[40] = np.nan
    with pytest.raises(InputError, match="NaN"):
        stream.update(bad, labels)
    with pytest.raises(InputError, match="expected 3 classes, found 2"):
        stream.update([[0.5, 0.5]], [0])
    assert torch.equal(stream.state_dict()["sums"], before)


def test_state_dict_and_files(world: World, tmp_path: Path) -> None:
    probs, labels = world(80, 4)
    for i, rows in enumerate(np.array_split(np.arange(80), 3)):
        StreamingMetrics(4).update(probs[rows], labels[rows]).save(tmp_path / f"{i}.safetensors")
    total = StreamingMetrics(4)
    for i in range(3):
        total.merge(StreamingMetrics(4).load(tmp_path / f"{i}.safetensors"))
    check(total, probs, labels)
    again = StreamingMetrics(4)
    again.load_state_dict(total.state_dict())
    assert again.compute() == pytest.approx(total.compute(), nan_ok=True)
    for other in (StreamingMetrics(5), StreamingMetrics(4, bins=10), StreamingMetrics(4, threshold=0.5)):
        with pytest.raises(InputError, match="cannot merge"):
            total.merge(other)
        with pytest.raises(InputError, match="belongs to"):
            other.load_state_dict(total.state_dict())
        with pytest.raises(InputError, match=r"0\.safetensors: this state belongs to"):
            other.load(tmp_path / "0.safetensors")


def test_nothing_yet_and_bad_arguments() -> None:
    with pytest.raises(InputError, match="no samples yet"):
        StreamingMetrics(3).compute()
    with pytest.raises(InputError, match="at least 1"):
        StreamingMetrics(0)


def test_a_threshold_of_nan_is_refused_as_in_memory(world: World) -> None:
    """Nothing is below NaN, so every prediction counted as uncertain; `metrics.avu` refused it."""
    with pytest.raises(InputError, match="threshold is NaN"):
        StreamingMetrics(3, threshold=float("nan"))
    with pytest.raises(InputError, match="threshold is NaN"):
        avu(*world(20, 3), threshold=float("nan"))


def test_the_state_does_not_grow(world: World) -> None:
    probs, labels = world(3000, 4)
    stream = StreamingMetrics(4).update(probs[:10], labels[:10])
    size = stream.state_dict()["sums"].numel()
    stream.update(probs, labels)
    assert stream.state_dict()["sums"].numel() == size


def _rank(rank: int, world_size: int, port: int, probs: np.ndarray, labels: np.ndarray) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    mine = StreamingMetrics(4).update(probs[rank::world_size], labels[rank::world_size])
    check(mine.all_reduced(), probs, labels)
    # a second time gives the same: a rank's own state was left alone
    check(mine.all_reduced(), probs, labels)
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def test_ranks(world: World) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("fork")
    ranks = [context.Process(target=_rank, args=(r, 2, port, *world(101, 4))) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, 0]


@pytest.mark.gpu
def test_on_the_gpu(world: World) -> None:
    probs, labels = world(500, 10)
    stream = StreamingMetrics(10).update(torch.from_numpy(probs).cuda(), torch.from_numpy(labels).cuda())
    check(stream, probs, labels)
