"""A run that is stopped anywhere ends with the weights of one that was not, bit for bit."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import avuc.core.tensor_file
from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.methods import METHODS, SVI, SWAG, Ensemble, Method, Objective, Vanilla
from avuc.nets import mlp
from avuc.train import Fitted, Job, TrainSettings, fit, fit_many
from avuc.training.model_trainer import ModelTrainer
from avuc.training.run import Run

QUICK = TrainSettings(epochs=4, batch_size=128, learning_rate=3e-3, pad=1, flip=False, checkpoint_seconds=0.0)
Factory = Callable[[torch.Generator], nn.Module]


def weights(fitted: Fitted) -> list[Tensor]:
    return [tensor for model in fitted.models for tensor in model.state_dict().values()]


def assert_equal(one: Fitted, other: Fitted) -> None:
    for ours, theirs in zip(weights(one), weights(other), strict=True):
        assert torch.equal(ours, theirs)
    strip = [{k: v for k, v in r.items() if k not in ("seconds", "images_per_second")} for r in one.history]
    assert strip == [{k: v for k, v in r.items() if k not in ("seconds", "images_per_second")} for r in other.history]


class Stopped(Exception):
    pass


def stop_after(monkeypatch: pytest.MonkeyPatch, saves: int) -> None:
    """Interrupt once the given number of checkpoints is written."""
    original, count = Run._save, [0]

    def save_then_stop(run: Run) -> None:
        original(run)
        count[0] += 1
        if count[0] == saves:
            raise Stopped

    monkeypatch.setattr(Run, "_save", save_then_stop)


CASES: dict[str, tuple[Method, Objective, dict[str, object]]] = {
    "vanilla": (Vanilla(), Objective(), {}),
    "vanilla sgd": (Vanilla(), Objective(), {"optimizer": "sgd", "learning_rate": 0.02}),
    "svi-avuc, in warm-up": (SVI(), Objective("avuc", warmup_epochs=3), {"kl_anneal_epochs": 3}),
    "svi-avuc, after warm-up": (SVI(train_draws=2), Objective("avuc", warmup_epochs=1), {"clip_norm": 1.0}),
    "radial-auavuc": (METHODS["radial"](), Objective("auavuc", warmup_epochs=2), {}),
    "dropout": (METHODS["dropout"](), Objective(), {}),
    "flipout": (SVI(estimator="flipout"), Objective(), {}),
    "swag": (SWAG(start=0.25), Objective(), {}),
    "ensemble": (Ensemble(members=2), Objective("avuc", warmup_epochs=1), {}),
    "moving average": (Vanilla(), Objective(), {"ema_decay": 0.9}),
}


@pytest.mark.parametrize(("method", "objective", "change"), CASES.values(), ids=CASES.keys())
def test_interrupted_between_epochs(
    method: Method,
    objective: Objective,
    change: dict[str, object],
    train: Dataset,
    held_out: Dataset,
    normalised_net: Factory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(QUICK, **change)  # type: ignore[arg-type]

    def run(directory: Path | None) -> Fitted:
        return fit(
            method,
            normalised_net,
            train.subset(range(300)),
            objective=objective,
            settings=settings,
            validation=held_out,
            seed=6,
            directory=directory,
            progress=False,
        )

    whole = run(None)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            run(tmp_path)
    resumed = run(tmp_path)
    assert_equal(whole, resumed)
    assert_equal(whole, run(tmp_path))  # finished: read back
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == resumed.history
    assert [line["epoch"] for line in lines if line["member"] == 0] == [0, 1, 2, 3]
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2


def test_seconds_between_checkpoints(train: Dataset, plain_net: Factory, tmp_path: Path) -> None:
    """The last one is written whatever the clock says; by default there is half a minute between them."""
    for seconds, kept in ((0.0, [3, 4]), (1e9, [4]), (TrainSettings().checkpoint_seconds, [4])):
        folder = tmp_path / str(seconds)
        settings = replace(QUICK, checkpoint_seconds=seconds)
        fit(Vanilla(), plain_net, train, settings=settings, directory=folder, progress=False)
        assert sorted(int(path.stem.removeprefix("checkpoint-")) for path in folder.glob("checkpoint-*")) == kept


def test_early_stop_survives_an_interruption(
    train: Dataset, held_out: Dataset, plain_net: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(QUICK, epochs=40, learning_rate=0.03, patience=2, pad=0)
    whole = fit(Vanilla(), plain_net, train, validation=held_out, settings=settings, progress=False)
    with monkeypatch.context() as patch:
        stop_after(patch, whole.epochs - 1)
        with pytest.raises(Stopped):
            fit(Vanilla(), plain_net, train, validation=held_out, settings=settings, directory=tmp_path, progress=False)
    for _ in range(2):
        resumed = fit(
            Vanilla(), plain_net, train, validation=held_out, settings=settings, directory=tmp_path, progress=False
        )
        assert resumed.epochs == whole.epochs < 40
        assert_equal(whole, resumed)


@pytest.mark.parametrize("change", [{"keep": "best_accuracy"}, {"reset_optimizer": True}], ids=["best", "new adam"])
def test_the_best_epoch_and_a_reset_optimizer_survive_an_interruption(
    change: dict, train: Dataset, held_out: Dataset, plain_net: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(QUICK, epochs=12, learning_rate=0.05, pad=0, **change)
    whole = fit(Vanilla(), plain_net, train, validation=held_out, settings=settings, progress=False)
    with monkeypatch.context() as patch:
        stop_after(patch, 11)
        with pytest.raises(Stopped):
            fit(Vanilla(), plain_net, train, validation=held_out, settings=settings, directory=tmp_path, progress=False)
    resumed = fit(
        Vanilla(), plain_net, train, validation=held_out, settings=settings, directory=tmp_path, progress=False
    )
    assert_equal(whole, resumed)


class Centred(nn.Module):
    """Subtracts a running mean, which is a buffer outside the `state_dict`; a cache grows in the first pass."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.net = mlp(10, (8, 8, 1), hidden=(16,), generator=generator)
        self.register_buffer("mean", torch.zeros(8, 8), persistent=False)
        self.register_buffer("cache", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean((0, 1)), 0.01)
                self.cache = torch.ones(3)
        return self.net(x - self.mean)


@pytest.mark.parametrize("change", [{}, {"keep": "best_accuracy"}], ids=["last", "best"])
def test_buffers_outside_the_state_dict_survive_an_interruption(
    change: dict, train: Dataset, held_out: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(QUICK, learning_rate=0.05, pad=0, **change)

    def run(directory: Path | None) -> Tensor:
        options: dict[str, Any] = {"validation": held_out, "settings": settings, "directory": directory}
        fitted = fit(SVI(), lambda g: Centred(g), train, progress=False, **options)
        module = fitted.models[0].module
        assert isinstance(module, Centred)
        assert module.cache.tolist() == [1, 1, 1]
        return module.mean

    whole = run(None)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            run(tmp_path)
    for _ in ("resumed", "read back"):
        assert torch.equal(run(tmp_path), whole)


def train_slowly(images: Tensor, labels: Tensor, directory: Path, pause: float) -> None:
    torch.set_num_threads(1)
    step = ModelTrainer.step

    def slow(trainer: ModelTrainer, *args: Any) -> None:
        step(trainer, *args)
        time.sleep(pause)

    ModelTrainer.step = slow  # type: ignore[method-assign]
    fitted = fit(
        SVI(),
        lambda g: mlp(10, (8, 8, 1), hidden=(32,), generator=g),
        Dataset(images, labels, 10, "digits"),
        seed=3,
        directory=directory,
        progress=False,
        settings=TrainSettings(epochs=5, batch_size=128, pad=0, flip=False, checkpoint_seconds=0.0),
        objective=Objective("avuc", warmup_epochs=2),
    )
    torch.save(fitted.models[0].state_dict(), directory / "end.pt")


def test_killed_in_the_middle_of_an_epoch(train: Dataset, plain_net: Factory, tmp_path: Path) -> None:
    """SIGKILL, twice, at whatever step the process happens to be in."""
    directory, context = tmp_path / "killed", multiprocessing.get_context("forkserver")
    data = (train.images, train.labels, directory)
    for epochs in (1, 3):
        process = context.Process(target=train_slowly, args=(*data, 0.05))
        process.start()
        while not (directory / f"checkpoint-{epochs:06d}.safetensors").exists():
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(0.07)  # into the next epoch
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not (directory / "end.pt").exists()
    with (directory / "log.jsonl").open("a") as log:
        log.write('{"epoch": 3, "torn')  # as a kill in a write might leave it
    process = context.Process(target=train_slowly, args=(*data, 0))
    process.start()
    process.join()
    assert process.exitcode == 0
    whole = fit(
        SVI(),
        plain_net,
        train,
        objective=Objective("avuc", warmup_epochs=2),
        settings=TrainSettings(epochs=5, batch_size=128, pad=0, flip=False),
        seed=3,
        progress=False,
    )
    ours = torch.load(directory / "end.pt", weights_only=True)
    for name, value in whole.models[0].state_dict().items():
        assert torch.equal(ours[name], value), name
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(5))


@pytest.mark.parametrize("damage", ["cut", "flipped bit", "empty", "noise"])
def test_damaged_checkpoint_falls_back_to_the_one_before(
    damage: str,
    train: Dataset,
    plain_net: Factory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = fit(SVI(), plain_net, train, settings=QUICK, progress=False)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stopped):
            fit(SVI(), plain_net, train, settings=QUICK, directory=tmp_path, progress=False)
    newest = tmp_path / "checkpoint-000003.safetensors"
    content = bytearray(newest.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped bit":
        content[-100] ^= 4
    else:
        content = bytearray() if damage == "empty" else bytearray(os.urandom(4096))
    newest.write_bytes(content)
    resumed = fit(SVI(), plain_net, train, settings=QUICK, directory=tmp_path, progress=False)
    said = capsys.readouterr().err
    assert "checkpoint-000003.safetensors: damaged checkpoint" in said
    assert said.count("\n") == 1
    assert_equal(whole, resumed)


def test_another_run_in_the_same_directory_is_refused(train: Dataset, plain_net: Factory, tmp_path: Path) -> None:
    settings = replace(QUICK, epochs=1)
    fit(Vanilla(), plain_net, train, settings=settings, directory=tmp_path, progress=False)
    with pytest.raises(InputError, match=r"made by another run \(seed is 1, was 0"):
        fit(Vanilla(), plain_net, train, settings=settings, seed=1, directory=tmp_path, progress=False)
    changed = replace(settings, learning_rate=0.1)
    with pytest.raises(InputError, match=r"train.learning_rate is 0.1, was 0.003"):
        fit(Vanilla(), plain_net, train, settings=changed, directory=tmp_path, progress=False)
    other = train.subset(range(499))
    with pytest.raises(InputError, match="data is digits 499"):
        fit(Vanilla(), plain_net, other, settings=settings, directory=tmp_path, progress=False)
    # how it is computed may differ
    fit(Vanilla(), plain_net, train, settings=replace(settings, capture=False), directory=tmp_path, progress=False)
    job = Job(Vanilla(), plain_net, train, Objective(), settings, directory=tmp_path)
    with pytest.raises(InputError, match="same directory"):
        fit_many([job, job])


def test_full_disk_is_one_clear_line_and_loses_nothing(
    train: Dataset, plain_net: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(Vanilla(), plain_net, train, settings=QUICK, progress=False)
    original, count = avuc.core.tensor_file.write_tensors, [0]

    def full(*args: object) -> None:
        count[0] += 1
        if count[0] == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("avuc.training.checkpoint.write_tensors", full)
        with pytest.raises(InputError, match=r"No space left.*make room and run the same"):
            fit(Vanilla(), plain_net, train, settings=QUICK, directory=tmp_path, progress=False)
    resumed = fit(Vanilla(), plain_net, train, settings=QUICK, directory=tmp_path, progress=False)
    assert_equal(whole, resumed)


def test_runs_that_stand_at_different_epochs_catch_up(train: Dataset, plain_net: Factory, tmp_path: Path) -> None:
    """A kill between the checkpoints of two runs that train side by side."""
    alone = [fit(SVI(), plain_net, train, settings=QUICK, seed=seed, progress=False) for seed in (0, 1)]
    jobs = [Job(SVI(), plain_net, train, Objective(), QUICK, seed=s, directory=tmp_path / str(s)) for s in (0, 1)]
    fit_many(jobs, progress=False)
    (tmp_path / "1" / "checkpoint-000004.safetensors").unlink()
    for ours, theirs in zip(fit_many(jobs, progress=False), alone, strict=True):
        assert_equal(ours, theirs)


def test_tensorboard_is_asked_for_by_name_when_missing(
    train: Dataset, plain_net: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    settings = replace(QUICK, tensorboard=True)
    with pytest.raises(ImportError, match="TensorBoard log needs"):
        fit(Vanilla(), plain_net, train, settings=settings, directory=tmp_path, progress=False)
