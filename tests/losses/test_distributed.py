"""N ranks under DistributedDataParallel compute the loss and the gradients of one process on the whole batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from avuc.losses import AvUCLoss, auavuc_loss, avuc_loss

ROWS, FEATURES, CLASSES = 24, 6, 4
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{
        f"avuc {v}": lambda z, y, v=v: avuc_loss(z, y, 0.9, variant=v)
        for v in ("paper", "stopgrad", "monotone", "soft")
    },
    "auavuc 21 points": lambda z, y: auavuc_loss(z, y),
    "auavuc exact": lambda z, y: auavuc_loss(z, y, points=None),
    "mutual information": lambda z, y: avuc_loss(torch.stack((z, 2 * z)), y, 0.02, uncertainty="mutual_information"),
}


def net() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    layers = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return layers


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, CLASSES, (ROWS,), generator=generator)


def measure(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, list[Tensor]]]:
    results = {}
    for name, loss in LOSSES.items():
        model.zero_grad()
        value = loss(model(inputs), labels)
        value.backward()
        results[name] = (value.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None])
    return results


def learned_threshold(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    module = AvUCLoss(warmup_epochs=1)
    module(model(inputs), labels)
    module.epoch_end()
    return module.threshold


def rank_main(rank: int, port: int, ranks: int, cuts: list[int], out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    inputs, labels = (x[cuts[rank] : cuts[rank + 1]] for x in data())
    model = DistributedDataParallel(net())
    results = measure(model, inputs, labels)
    alone = avuc_loss(model(inputs), labels, 0.9, group=False).detach()
    try:
        avuc_loss(torch.full_like(model(inputs), torch.nan if rank == 0 else 0.0), labels, 0.9)
        message = "no error"
    except ValueError as error:
        message = str(error)
    threshold = learned_threshold(model, inputs, labels)
    torch.save((results, alone, message, threshold), f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


@pytest.mark.parametrize(("ranks", "cuts"), [(1, [0, 24]), (2, [0, 12, 24]), (2, [0, 5, 24]), (4, [0, 6, 6, 13, 24])])
def test_ranks_equal_one_process(ranks: int, cuts: list[int], tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    """Also with uneven shares and a rank that has no row at all."""
    run_ranks(rank_main, ranks, ranks, cuts, str(tmp_path))
    expected = measure(net(), *data())
    threshold = learned_threshold(net(), *data())
    for rank in range(ranks):
        results, alone, message, learned = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, (loss, gradients) in expected.items():
            torch.testing.assert_close(results[name][0], loss, rtol=1e-6, atol=1e-9, msg=f"{name}, rank {rank}")
            for ours, whole in zip(results[name][1], gradients, strict=True):
                torch.testing.assert_close(ours, whole, rtol=1e-6, atol=1e-9, msg=f"{name}, rank {rank}")
        inputs, labels = (x[cuts[rank] : cuts[rank + 1]] for x in data())
        torch.testing.assert_close(alone, avuc_loss(net()(inputs), labels, 0.9).detach())
        assert "NaN" in message  # rank 0 alone has the NaN; every rank must stop, or the others would wait for ever
        torch.testing.assert_close(learned, threshold)
