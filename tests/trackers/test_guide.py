"""The code of docs/guide/training.md that tracks a training run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from avuc.data import Dataset
from avuc.nets import mlp
from avuc.train import TrainSettings


def test_a_tracked_training(
    guide_code: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    mlflow = pytest.importorskip("mlflow")
    code = guide_code("guide/training", "needs your network and data")
    assert "on_epoch=tracker)" in code
    labels = torch.arange(60) % 3
    images = torch.full((60, 4, 4, 1), 20, dtype=torch.uint8) * (1 + labels.view(-1, 1, 1, 1)).to(torch.uint8)
    data = Dataset(images, labels, 3, "grey")
    namespace = {
        "net": mlp(3, (4, 4, 1), hidden=(4,), generator=torch.Generator().manual_seed(0)),
        "settings": TrainSettings(epochs=2, batch_size=30, milestones=(), factors=(), pad=0, flip=False),
        "train": data,
        "validation": data,
    }
    few = "on_epoch=tracker, settings=settings, progress=False)"
    exec(compile(code.replace("on_epoch=tracker)", few), "training.md", "exec"), namespace)
    client = mlflow.MlflowClient(tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params) == ("svi", "FINISHED", {"beta": "3.0"})
    assert len(client.get_metric_history(run.info.run_id, "validation_nll")) == 2
