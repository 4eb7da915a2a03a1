"""Two ranks compute what one process computes from all predictions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from avuc.metrics import METRICS, evaluate
from avuc.predictions import Predictions
from avuc.torchmetrics import ECE, CalibrationSuite

ROWS, CLASSES = 61, 4
# predictions of the first rank
CUTS = (20, ROWS)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, CLASSES, generator=generator) * 2
    return logits, torch.randint(CLASSES, (ROWS,), generator=generator)


def rank_main(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results = [measure(*((x[:cut] if rank == 0 else x[cut:]) for x in data())) for cut in CUTS]
    torch.save(results, f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def measure(logits: torch.Tensor, labels: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, int]:
    """All values and one value over both ranks, and the number of predictions after a synchronisation."""
    suite, single = CalibrationSuite(CLASSES), ECE(CLASSES)
    for start in range(0, len(labels), 7):
        suite.update(logits[start : start + 7], labels[start : start + 7])
        single.update(logits[start : start + 7], labels[start : start + 7])
    batches = len(suite.confidence)
    together = suite.compute()
    assert len(suite.confidence) == batches  # the states are this rank's again
    single.sync()
    rows = len(single.confidence)
    single.unsync()
    return together, single.compute(), rows


def test_two_ranks_equal_one_process(tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    """Also with uneven shares, and with a rank that has no prediction at all."""
    run_ranks(rank_main, 2, str(tmp_path))
    logits, labels = data()
    expected = evaluate(Predictions(logits.softmax(1), labels))
    for rank in range(2):
        for together, single, rows in torch.load(tmp_path / f"{rank}.pt", weights_only=True):
            assert rows == ROWS
            assert {name: float(value) for name, value in together.items()} == pytest.approx(expected, abs=1e-6)
            assert float(single) == pytest.approx(METRICS["ece"](logits.softmax(1), labels), abs=1e-6)
