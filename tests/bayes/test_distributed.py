"""Two data-parallel processes, seeded alike: each its own noise, one gradient."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from avuc.bayes import to_bayesian
from avuc.core.random_numbers import rank_generators


def rank_main(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results = {}
    for estimator in ("weight", "flipout"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
        bayesian = to_bayesian(net, estimator=estimator)  # type: ignore[arg-type]
        x = torch.randn(2, 6, 4, dtype=torch.float64)[rank]
        # the same draw through the wrapper and without it: this rank's generator starts over in between
        for way, module in {"parallel": DistributedDataParallel(bayesian), "alone": bayesian}.items():
            rank_generators.clear()
            bayesian.zero_grad()
            (module(x).square().mean() + bayesian.kl() / 10).backward()
            for name, p in bayesian.named_parameters():
                assert p.grad is not None
                results[f"{estimator}.{way}.{name}"] = p.grad.clone()
        results[f"{estimator}.noise"] = bayesian.noise()
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def test_ranks_draw_their_own_noise_and_share_the_gradient(tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    run_ranks(rank_main, 2, str(tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for estimator in ("weight", "flipout"):
        assert not torch.isclose(first[f"{estimator}.noise"], second[f"{estimator}.noise"]).any()
        for name in ("mu", "rho", "module.1.weight", "module.1.bias"):
            parallel, alone = f"{estimator}.parallel.{name}", f"{estimator}.alone.{name}"
            assert torch.equal(first[parallel], second[parallel])
            assert not torch.equal(first[alone], second[alone])
            torch.testing.assert_close(first[parallel], (first[alone] + second[alone]) / 2, rtol=1e-10, atol=1e-12)


def test_outside_a_distributed_run_torch_itself_draws() -> None:
    from avuc.bayes.noise import own_generator

    assert own_generator(torch.device("cpu")) is None
