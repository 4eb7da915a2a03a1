"""Every tracker writes what `fit` found, read back by the library it is for; without the library it names the extra."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sklearn.datasets import load_digits

from avuc import trackers
from avuc.core.errors import MissingExtra
from avuc.data import Dataset
from avuc.methods import Vanilla
from avuc.nets import mlp
from avuc.train import Fitted, TrainSettings, fit

FIGURES = [(0, {"nll": 1.5, "validation_accuracy": 0.5}), (1, {"nll": 0.75, "validation_accuracy": 0.625})]


def trained(on_epoch: Callable[[int, dict[str, float]], object]) -> Fitted:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images[:200] * 255 / 16).round().to(torch.uint8).view(-1, 8, 8, 1)
    data = Dataset(pixels, torch.from_numpy(labels[:200]).long(), 10, "digits")
    settings = TrainSettings(epochs=2, batch_size=100, pad=0, flip=False)
    net = mlp(10, (8, 8, 1), hidden=(8,), generator=torch.Generator().manual_seed(0))
    return fit(Vanilla(), net, data, settings=settings, progress=False, on_epoch=on_epoch)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with trackers.tensorboard(tmp_path, prefix="run/") as tracker:
        fitted = trained(tracker)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("run/nll")]
    assert found == [(record["epoch"], pytest.approx(record["nll"])) for record in fitted.history]
    assert "run/epoch" not in events.Tags()["scalars"]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than mlflow-skinny
    mlflow = pytest.importorskip("mlflow")
    uri = tmp_path.as_uri()
    client = mlflow.MlflowClient(uri)
    for name in ("one", "two"):
        with trackers.mlflow("digits", run_name=name, params={"beta": 3.0}, uri=uri, prefix="p/") as tracker:
            fitted = trained(tracker)
            assert client.get_run(tracker.run.info.run_id).info.status == "RUNNING"
    experiment = client.get_experiment_by_name("digits")
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.run_name for run in runs} == {"one", "two"}
    run = client.get_run(tracker.run.info.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"beta": "3.0"}
    found = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "p/nll")]
    assert found == [(record["epoch"], pytest.approx(record["nll"])) for record in fitted.history]
    assert mlflow.active_run() is None  # the user's own runs are left alone

    def fails() -> None:
        with trackers.mlflow("digits", uri=uri) as other:
            failed.append(other.run.info.run_id)
            raise KeyError("a figure")

    failed: list[str] = []
    with pytest.raises(KeyError, match="a figure"):
        fails()
    assert client.get_run(failed[0]).info.status == "FAILED"


NAMES = ["accuracy %", "top-5%", "%", "50%/x", "a=1", "a?1", "ä/β", "../nll", "/p//nll/", "a:b", "n" * 300, "n" * 301]


def test_mlflow_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name is accepted, names that MLflow takes stay, and no two names become one."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    uri = tmp_path.as_uri()
    with trackers.mlflow("digits", uri=uri, params={"rate %": 10, "p/q": 1}) as tracker:
        for epoch in range(2):
            tracker(epoch, {name: float(number) for number, name in enumerate(NAMES)} | {"validation_nll": 99.0})
    found = mlflow.MlflowClient(uri).get_run(tracker.run.info.run_id).data
    assert sorted(found.metrics.values()) == [*map(float, range(len(NAMES))), 99.0]
    assert found.metrics["accuracy percent"] == 0
    assert found.metrics["top-5 percent"] == 1
    assert found.metrics["validation_nll"] == 99
    assert found.metrics["ä/β"] == NAMES.index("ä/β")
    assert found.params == {"rate percent": "10", "p/q": "1"}
    with trackers.mlflow("digits", uri=uri) as tracker:
        tracker(0, {"": 1.0, ".": 2.0})
    assert sorted(mlflow.MlflowClient(uri).get_run(tracker.run.info.run_id).data.metrics) == ["_", "__2"]


@pytest.fixture
def wandb_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("wandb")
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    return tmp_path


def test_wandb_offline(wandb_folder: Path) -> None:
    tmp_path = wandb_folder
    with trackers.wandb("digits", mode="offline", dir=str(tmp_path), config={"beta": 3.0}) as tracker:
        for epoch, figures in FIGURES:
            tracker(epoch, figures)
        assert tracker.run.config["beta"] == 3.0
        assert tracker.run.step == 2  # the next one: both epochs are sent
        assert dict(tracker.run.summary)["nll"] == 0.75
    assert list(tmp_path.rglob("run-*.wandb"))


def test_wandb_keeps_a_second_training_and_values_of_the_user(wandb_folder: Path) -> None:
    """W&B's own step never goes down: a second training that begins at epoch 0 was lost."""
    with trackers.wandb("digits", mode="offline", dir=str(wandb_folder)) as tracker:
        for seed in (0, 1):
            tracker.run.log({"mine": seed})
            for epoch, figures in FIGURES:
                tracker(epoch, {f"seed-{seed}/{name}": value + seed for name, value in figures.items()})
        assert tracker.run.step == 6
        summary = dict(tracker.run.summary)
        assert (summary["seed-0/nll"], summary["seed-1/nll"]) == (0.75, 1.75)
        assert (summary["mine"], summary["epoch"]) == (1, 1)


def test_wandb_draws_figures_over_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, object]] = []

    class Run:
        def define_metric(self, name: str, **options: object) -> None:
            calls.append((name, options))

        def log(self, values: dict[str, float], **options: object) -> None:
            calls.append(("log", values))
            assert options == {"commit": True}

        def finish(self) -> None:
            pass

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda project: Run()))
    with trackers.wandb("digits", prefix="a/") as tracker:
        tracker(0, {"nll": 1.5})
        tracker(1, {"nll": 0.75})
    assert calls == [
        ("a/nll", {"step_metric": "a/epoch"}),
        ("log", {"a/nll": 1.5, "a/epoch": 0}),
        ("log", {"a/nll": 0.75, "a/epoch": 1}),
    ]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_without_the_library_one_line_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [loaded for loaded in sys.modules if loaded.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"avuc\[{name}\]") as caught:
        getattr(trackers, name)("anything")
    assert "\n" not in str(caught.value)


def test_closing_twice_finishes_once() -> None:
    closed: list[str] = []
    tracker = trackers.Tracker(lambda epoch, figures: None, lambda: closed.append("once"), None)
    with tracker:
        tracker.close()
    assert closed == ["once"]


def test_an_error_in_the_block_closes_too_and_passes() -> None:
    closed: list[str] = []

    def fails() -> None:
        with trackers.Tracker(lambda epoch, figures: None, lambda: closed.append("once"), None):
            raise KeyError("a figure")

    with pytest.raises(KeyError, match="a figure"):
        fails()
    assert closed == ["once"]
    tracker = trackers.Tracker(print, lambda: closed.append("finished"), None, lambda: closed.append("failed"))
    with pytest.raises(KeyError), tracker:
        raise KeyError
    tracker.close()
    assert closed == ["once", "failed"]


def test_the_figures_are_plain_json(tmp_path: Path) -> None:
    lines: list[str] = []
    trained(lambda epoch, figures: lines.append(json.dumps({"epoch": epoch, **figures})))
    assert len(lines) == 2
