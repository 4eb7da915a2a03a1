"""N ranks are one rank for data with labels of pixels or tokens, and with rows that have no label; in float64."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from avuc.core.tasks import IGNORE_INDEX
from avuc.data.tensors import TensorData
from avuc.methods import SVI, Objective, Vanilla
from avuc.train import TrainSettings, fit

SHAPES = {"rows": (), "tokens": (7,), "pixels": (4, 6)}
ROWS, CLASSES = 25, 5  # the last batch has one row: all other ranks have none
SETTINGS = TrainSettings(epochs=2, batch_size=8, learning_rate=0.01, optimizer="sgd", pad=0, flip=False)


def examples(kind: str, ignored: bool) -> TensorData:
    generator, shape = torch.Generator().manual_seed(0), SHAPES[kind]
    inputs = torch.randn(ROWS, 3, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (ROWS, *shape), generator=generator)
    if ignored:  # some examples have many labels, some few
        share = torch.rand(ROWS, *[1] * len(shape), generator=generator)
        labels[torch.rand(labels.shape, generator=generator) < share] = IGNORE_INDEX
    return TensorData(inputs, labels, CLASSES)


def make_net(kind: str) -> nn.Module:
    torch.manual_seed(3)
    layers = {"rows": nn.Linear, "tokens": nn.Conv1d, "pixels": nn.Conv2d}
    sizes = [(3, 8), (8, CLASSES)] if kind == "rows" else [(3, 8, 1), (8, CLASSES, 1)]
    first, last = (layers[kind](*size) for size in sizes)
    # batch normalisation over all ranks, in the precision of the network
    norm = nn.BatchNorm2d(8) if kind == "pixels" else nn.Identity()
    return nn.Sequential(first, norm, nn.ReLU(), last).double()


def train_all() -> dict[str, tuple[dict[str, Tensor], list[float]]]:
    results = {}
    for kind in SHAPES:
        for ignored in (False, True):
            for method in (Vanilla(), SVI(train_draws=2)):
                fitted = fit(
                    method,
                    make_net(kind),
                    examples(kind, ignored),
                    objective=Objective("avuc", warmup_epochs=1),
                    settings=SETTINGS,
                    progress=False,
                )
                curve = [record["total"] for record in fitted.history]
                results[f"{kind} {ignored} {method.name}"] = (fitted.models[0].state_dict(), curve)
    return results


def rank_main(rank: int, port: int, ranks: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    torch.save(train_all(), f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def test_ranks_weigh_the_cross_entropy_by_their_labels(tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    run_ranks(rank_main, 2, 2, str(tmp_path))
    expected = train_all()
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, (state, curve) in expected.items():
            assert results[name][1] == pytest.approx(curve, rel=1e-9), name
            for key, value in state.items():
                torch.testing.assert_close(results[name][0][key], value, rtol=1e-9, atol=1e-10, msg=f"{name} {key}")
