"""N ranks are one rank: the same weights from the same global batches; a rank that dies is named, and others go on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from avuc.data import Dataset
from avuc.methods import METHODS, SVI, Method, Objective, Vanilla
from avuc.nets import mlp, small_cnn
from avuc.train import TrainSettings, fit
from avuc.training import compiled
from avuc.training.compiled_steps import CompiledSteps
from avuc.training.distributed import Ranks
from avuc.training.model_trainer import ModelTrainer
from avuc.training.steps import EagerSteps

Factory = Callable[[torch.Generator], nn.Module]
# 107 rows and a last batch of 3: uneven shares, and with 4 ranks one that has no row at all
SETTINGS = TrainSettings(epochs=2, batch_size=107, learning_rate=1e-3, pad=1, flip=True, clip_norm=5.0)
ROWS = 2 * 107 + 3


def plain(generator: torch.Generator) -> nn.Module:
    return mlp(10, (8, 8, 1), hidden=(16,), generator=generator).double()


def normalised(generator: torch.Generator) -> nn.Module:
    return small_cnn(10, (8, 8, 1), width=2, generator=generator)


CASES: dict[str, tuple[Method, Factory, Objective]] = {
    "vanilla": (Vanilla(), plain, Objective()),
    "vanilla-avuc": (Vanilla(), plain, Objective("avuc", warmup_epochs=1)),
    "svi-avuc": (SVI(), plain, Objective("avuc", warmup_epochs=1, kl_weight=0.1)),
    "svi-auavuc": (SVI(train_draws=2), plain, Objective("auavuc", warmup_epochs=1)),
    "batch normalisation": (Vanilla(), normalised, Objective("avuc", warmup_epochs=1)),
    "each on its own": (SVI(), normalised, Objective("avuc", warmup_epochs=1)),
}


def train_all(data: Dataset, directory: Path | None = None) -> dict[str, tuple[dict[str, Tensor], list[float]]]:
    found = {}
    for name, (method, net, objective) in CASES.items():
        factory = net if net is normalised else (lambda g, net=net: _Cast(net(g)))
        settings = SETTINGS
        if name == "each on its own":
            settings = replace(settings, rank_noise="own", sync_batch_norm=False)
        fitted = fit(method, factory, data, objective=objective, settings=settings, seed=2, progress=False)
        found[name] = (fitted.models[0].state_dict(), [record["total"] for record in fitted.history])
    return found


class _Cast(nn.Module):
    """A net in float64, where the order of sums does not show."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images.double())
        return logits


def rank_main(rank: int, port: int, ranks: int, images: Tensor, labels: Tensor, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    torch.save(train_all(Dataset(images, labels, 10)), f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("ranks", [2, 4])
def test_n_ranks_are_one_rank(ranks: int, digits: Dataset, tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    data = digits.subset(range(ROWS))
    run_ranks(rank_main, ranks, ranks, data.images, data.labels, str(tmp_path))
    expected = train_all(Dataset(data.images, data.labels, 10))
    _, alone = expected.pop("each on its own")
    first = torch.load(tmp_path / "0.pt", weights_only=True)
    # own noise and statistics make another run, but still one run
    assert first["each on its own"][1] != pytest.approx(alone, rel=1e-3)
    for rank in range(ranks):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for key, value in found["each on its own"][0].items():
            assert torch.equal(value, first["each on its own"][0][key]), key
        for name, (state, curve) in expected.items():
            exact = name != "batch normalisation"
            assert found[name][1] == pytest.approx(curve, rel=1e-9 if exact else 1e-4), (name, rank)
            for key, value in state.items():
                ours = found[name][0][key]
                if exact:
                    torch.testing.assert_close(ours, value, rtol=1e-7, atol=1e-9, msg=f"{name} {key} {rank}")
                else:
                    torch.testing.assert_close(ours, value, rtol=1e-2, atol=2e-3, msg=f"{name} {key} {rank}")


RECIPE = """
[data]
name = "digits.npz"
split = "all"
[net]
name = "mlp"
hidden = [32]
[method]
name = "svi"
[objective]
kind = "avuc"
variant = "paper"
warmup_epochs = 1
[train]
epochs = 6
batch_size = 100
pad = 0
flip = false
checkpoint_seconds = 0.0
"""
# the command itself, with a pause in every step so that there is time to kill a rank
SLOW = """
import os, sys, time, torch
torch.set_num_threads(1)
from avuc.training.model_trainer import ModelTrainer
step = ModelTrainer.step
def slow(trainer, *args):
    step(trainer, *args)
    time.sleep(float(os.environ["PAUSE"]))
ModelTrainer.step = slow
from avuc.cli import app
from avuc.cli.train import COMMAND
app.COMMANDS.setdefault("train", COMMAND)
sys.exit(app.main(sys.argv[1:]))
"""


def start(ranks: int, folder: Path, pause: float, timeout: float = 30) -> list[subprocess.Popen[str]]:
    """The processes torchrun would start, so that one of them can be killed."""
    port = free_port()
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            "PAUSE": str(pause),
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, "-c", SLOW, "train", "recipe.toml", "--out", "run", "--device", "cpu"]
        processes.append(
            subprocess.Popen(
                [*command, "--timeout", str(timeout)],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def test_a_rank_dies_and_the_run_goes_on_with_another_number(digits: Dataset, tmp_path: Path) -> None:
    import numpy as np

    data = digits.subset(range(300))
    np.savez(tmp_path / "digits.npz", images=data.images.numpy(), labels=data.labels.numpy())
    (tmp_path / "recipe.toml").write_text(RECIPE)
    survivor, victim = start(2, tmp_path, pause=0.1)
    while not (tmp_path / "run" / "checkpoint-000002.safetensors").exists():
        assert survivor.poll() is None, survivor.communicate()[1]
        time.sleep(0.02)
    victim.kill()
    _, said = survivor.communicate(timeout=60)
    victim.communicate()
    assert survivor.returncode == 2
    line = [line for line in said.splitlines() if line.startswith("avuc:")]
    assert len(line) == 1, said
    assert "most likely another rank has died; the last checkpoint is run/checkpoint-00000" in line[0]
    (alone,) = start(1, tmp_path, pause=0)
    out, said = alone.communicate(timeout=60)
    assert alone.returncode == 0, said
    assert "svi: 6 epochs" in out
    from avuc.training.checkpoint import _read

    resumed = _read(tmp_path / "run" / "checkpoint-000006.safetensors")
    whole = fit(
        SVI(),
        lambda g: mlp(10, (8, 8, 1), hidden=(32,), generator=g),
        data,
        objective=Objective("avuc", variant="paper", warmup_epochs=1),
        settings=TrainSettings(epochs=6, batch_size=100, pad=0, flip=False),
        progress=False,
    )
    assert [record["epoch"] for record in resumed.history] == list(range(6))
    assert [r["total"] for r in resumed.history] == pytest.approx([r["total"] for r in whole.history], rel=1e-4)


def test_methods_with_noise_of_their_own_train_under_ranks() -> None:
    """Ranks with one stream would draw the same masks for different rows."""
    from avuc.training.model_trainer import draws_for_each_row

    assert draws_for_each_row(METHODS["dropout"]())
    assert draws_for_each_row(SVI(estimator="flipout"))
    assert not draws_for_each_row(SVI())


# compiled steps

COMPILED: dict[str, tuple[Method, Objective]] = {
    "svi-avuc": (SVI(), Objective("avuc", warmup_epochs=1, kl_weight=0.1)),
    "svi-auavuc": (SVI(), Objective("auavuc", warmup_epochs=1)),
}


def traced_rank(rank: int, port: int, images: Tensor, labels: Tensor, out: str) -> None:
    """Train eagerly and compiled, and save both. Graphs are traced whole but run without the slow code generator."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    traced: dict[object, object] = {}

    def quickly(function: Callable[..., object]) -> object:
        if function not in traced:
            traced[function] = torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")
        return traced[function]

    compiled.compiled = quickly  # type: ignore[assignment]
    data, results = Dataset(images, labels, 10), {}
    settings = replace(SETTINGS, batch_size=25)
    for name in ("eager", "compiled"):
        trainers = [
            ModelTrainer(
                method,
                normalised,
                objective,
                settings,
                num_train=len(data),
                num_classes=10,
                seed=seed,
                index=0,
                device=torch.device("cpu"),
                ranks=Ranks(),
            )
            for seed, (method, objective) in enumerate(COMPILED.values())
        ]
        lines: list[str] = []
        steps = EagerSteps(trainers, data) if name == "eager" else CompiledSteps(trainers, data, lines.append)
        graphs, curves = [], []
        for epoch in range(3):
            steps.prepare([25, 1])
            prepared = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            for trainer in trainers:
                trainer.begin(epoch)
            for indices in torch.stack([trainer.order(len(data), epoch) for trainer in trainers]).split(25, dim=1):
                steps(indices)
            graphs.append((prepared, torch._dynamo.utils.counters["stats"]["unique_graphs"]))
            curves.append([trainer.end(epoch)["total"] for trainer in trainers])
        states = [trainer.model.state_dict() for trainer in trainers]
        level = steps.levels[0] if isinstance(steps, CompiledSteps) else "none"
        results[name] = {"states": states, "curves": curves, "graphs": graphs, "lines": lines, "level": level}
    torch.save(results, f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def test_compiled_steps_of_ranks_are_eager_steps(
    digits: Dataset, tmp_path: Path, run_ranks: Callable[..., None]
) -> None:
    """Batch normalisation and AvUC sum over ranks inside the compiled graphs. The last batch has one row: rank 0 has
    none, and that step is eager."""
    data = digits.subset(range(51))
    run_ranks(traced_rank, 2, data.images, data.labels, str(tmp_path))
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        eager, quick = results["eager"], results["compiled"]
        assert quick["level"] == "all"
        assert quick["graphs"][0][0] > 5  # the pieces were compiled before the first step
        for prepared, after in quick["graphs"]:
            assert after == prepared  # and no step compiled anything
        assert quick["graphs"][2] == quick["graphs"][1]  # nor does a new epoch in the same phase
        assert eager["graphs"] == [(0, 0)] * 3
        assert len(quick["lines"]) == 1
        assert "2 ranks are compiled, but not captured" in quick["lines"][0]
        assert "the objective runs eagerly (AUAvUC gathers rows" in quick["lines"][0]
        for ours, theirs in zip(quick["curves"], eager["curves"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
        for ours, theirs in zip(quick["states"], eager["states"], strict=True):
            for key, value in theirs.items():
                torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-5, msg=key)


def failing_rank(rank: int, port: int, images: Tensor, labels: Tensor, out: str) -> None:
    """Rank 1 cannot compile."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

    def compile_it(function: Callable[..., object]) -> object:
        def fail(*args: object) -> object:
            raise RuntimeError("no compiler here")

        return fail if rank == 1 else function

    compiled.compiled = compile_it  # type: ignore[assignment]
    data = Dataset(images, labels, 10)
    common = {"num_train": 50, "num_classes": 10, "seed": 0, "index": 0, "device": torch.device("cpu")}
    trainer = ModelTrainer(Vanilla(), normalised, Objective(), SETTINGS, ranks=Ranks(), **common)  # type: ignore[arg-type]
    lines: list[str] = []
    steps = CompiledSteps([trainer], data, lines.append)
    before = [tensor.clone() for tensor in trainer.state()]
    steps.prepare([50])
    unchanged = all(
        torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(before, trainer.state(), strict=False)
    )
    trainer.begin(0)
    steps(torch.arange(50)[None])
    results = {"level": steps.levels[0], "lines": lines, "unchanged": unchanged, "state": trainer.model.state_dict()}
    torch.save(results, f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts while Python shuts down


def test_a_rank_that_cannot_compile_makes_all_ranks_eager(
    digits: Dataset, tmp_path: Path, run_ranks: Callable[..., None]
) -> None:
    data = digits.subset(range(50))
    run_ranks(failing_rank, 2, data.images, data.labels, str(tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for result in (first, second):
        assert result["level"] == "none"
        assert result["unchanged"]
        assert [line for line in result["lines"] if "RuntimeError: no compiler here" in line]
    for key, value in first["state"].items():
        assert torch.equal(value, second["state"][key]), key
