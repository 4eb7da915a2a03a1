"""Instance normalisation with several ranks: the running statistics of one process, and a rank without rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from avuc.data import Dataset
from avuc.methods import SVI, Vanilla
from avuc.train import TrainSettings, fit

# 23 rows and a last batch of 3: uneven shares, and with 4 ranks one that has no row at all
SETTINGS = TrainSettings(epochs=2, batch_size=23, learning_rate=1e-3, pad=0, flip=False)
ROWS = 2 * 23 + 3


class Net(nn.Module):
    """In float64, where the order of sums does not show. Two branches: no order of their sums but that of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(1, 3, 3), nn.Conv2d(1, 3, 3)
        self.tracked = nn.InstanceNorm2d(3, affine=True, track_running_stats=True, momentum=0.3)
        self.batch = nn.BatchNorm2d(3)
        self.plain = nn.InstanceNorm2d(3)
        self.head = nn.Linear(3, 10)
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        x = images.double()
        x = self.tracked(self.one(x)).relu() + self.batch(self.other(x)).relu()
        logits: Tensor = self.head(self.plain(x).relu().square().mean((2, 3)))
        return logits


def train_all(data: Dataset) -> dict[str, dict[str, Tensor]]:
    def net(generator: torch.Generator) -> nn.Module:
        return Net()

    states = {}
    for name, method in {"vanilla": Vanilla(), "svi": SVI(), "own": Vanilla()}.items():
        settings = replace(SETTINGS, sync_batch_norm=name != "own")
        states[name] = fit(method, net, data, settings=settings, seed=2, progress=False).models[0].state_dict()
    return states


def rank_main(rank: int, port: int, ranks: int, images: Tensor, labels: Tensor, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    torch.save(train_all(Dataset(images, labels, 10)), f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


@pytest.mark.parametrize("ranks", [2, 4])
def test_instance_normalisation_of_ranks_is_that_of_one_process(
    ranks: int, digits: Dataset, tmp_path: Path, run_ranks: Callable[..., None]
) -> None:
    data = digits.subset(range(ROWS))
    run_ranks(rank_main, ranks, ranks, data.images, data.labels, str(tmp_path))
    expected = train_all(data)
    by_rank = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(ranks)]
    for states in by_rank:
        for name in ("vanilla", "svi"):
            for key, value in expected[name].items():
                torch.testing.assert_close(states[name][key], value, rtol=1e-7, atol=1e-9, msg=f"{name} {key}")
        for key, value in by_rank[0]["own"].items():  # another result, but the same one on all ranks
            assert torch.equal(states["own"][key], value), key
    for key in ("tracked.running_mean", "tracked.running_var"):  # up to the uneven shares
        torch.testing.assert_close(by_rank[0]["own"][key], expected["own"][key], rtol=0.2, atol=0.05)
