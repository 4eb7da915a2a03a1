"""Rows that read a model with batch normalisation measured again for each draw."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from avuc import metrics
from avuc.core.errors import InputError
from avuc.methods.batch_norm import PerDrawBatchNorm, evenly_spaced
from avuc.nets import NETS
from avuc.prediction import predict
from avuc.study import load_recipe
from avuc.study.evaluation.validation_fit import ValidationFit
from avuc.study.grid import CLEAN, VALIDATION, ModelKey
from avuc.study.worker import StudyWorker

RECIPE = """
[study]
name = "own"
samples = 3
[data]
source = "npz"
root = "{root}"
validation = 150
[net]
name = "normed"
[train]
epochs = 2
batch_size = 50
pad = 0
flip = false
[[methods]]
name = "SVI"
method = {{ kind = "svi", initial_std = 0.2 }}
[[methods]]
name = "own"
of = "SVI"
bn_images = 100
[[methods]]
name = "own, scaled"
of = "SVI"
calibrator = "temperature"
bn_images = 100
"""


def normed(classes: int, shape: tuple[int, int, int], *, generator: torch.Generator) -> nn.Module:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, classes))
    for parameter in net.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.1, generator=generator)
    return net


def test_each_row_reads_the_model_its_way(digits_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETS, "normed", normed)
    path = tmp_path / "own.toml"
    path.write_text(RECIPE.format(root=digits_file))
    recipe = load_recipe(path)
    assert "bn_images = 100" in recipe.to_toml()
    work = StudyWorker(recipe, tmp_path / "study", "cpu", progress=False)
    key = ModelKey("SVI", 0)
    cells = {cell.method: cell for cell in work.evaluate(key, VALIDATION, recipe.methods, {})}
    learned = {name: ValidationFit(cell.calibrator, cell.result.metrics["threshold"]) for name, cell in cells.items()}
    found = {cell.method: cell.result.metrics for cell in work.evaluate(key, CLEAN, recipe.methods, learned)}
    images, labels = work.data.test.images, work.data.test.labels
    train = work.data.train(50, 0)
    own = PerDrawBatchNorm(work.posterior(key), evenly_spaced(train.images, 100))
    for name, posterior in (("SVI", work.posterior(key)), ("own", own)):
        expected = predict(posterior, images, labels, samples=3, seed=0, progress=False)
        assert found[name]["nll"] == pytest.approx(metrics.nll(expected.probs, labels), rel=1e-6)
    assert found["own"]["nll"] != found["SVI"]["nll"]
    assert found["own, scaled"]["nll"] != found["own"]["nll"]


@pytest.mark.parametrize(
    "change",
    ["methods.own.bn_images=-1", "methods.own.bn_images=0", "methods.SVI.method=vanilla", "data.stream=true"],
)
def test_refused(digits_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setitem(NETS, "normed", normed)
    path = tmp_path / "own.toml"
    path.write_text(RECIPE.format(root=digits_file))
    with pytest.raises(InputError, match="bn_images"):
        load_recipe(path, [change])
