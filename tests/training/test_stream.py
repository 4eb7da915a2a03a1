"""Pictures from files, decoded batch by batch, train as pictures in memory do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from avuc.core.errors import InputError
from avuc.data import Dataset, Stream, list_folder
from avuc.methods import SVI, Objective
from avuc.nets import mlp
from avuc.train import TrainSettings, fit

SETTINGS = TrainSettings(epochs=3, batch_size=64, learning_rate=3e-3, checkpoint_seconds=0.0)


def net(generator: torch.Generator) -> nn.Module:
    return mlp(10, (8, 8, 3), hidden=(32,), generator=generator)


@pytest.fixture
def folder(digits: Dataset, tmp_path: Path) -> Path:
    for number in range(150):
        place = tmp_path / "pictures" / str(int(digits.labels[number]))
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.images[number, :, :, 0].numpy()).save(place / f"{number:03d}.png")
    return tmp_path / "pictures"


def stream(folder: Path, batch_size: int = 64) -> Stream:
    return Stream(list_folder(folder), batch_size, train=True, size=8, seed=0, workers=0)


def test_a_stream_trains_and_resumes(folder: Path, tmp_path: Path) -> None:
    objective = Objective("avuc", warmup_epochs=1)
    whole = fit(SVI(), net, stream(folder), objective=objective, settings=SETTINGS, progress=False)
    assert whole.history[-1]["nll"] < whole.history[0]["nll"]
    run = tmp_path / "run"
    fit(SVI(), net, stream(folder), objective=objective, settings=SETTINGS, directory=run, progress=False)
    (run / "checkpoint-000003.safetensors").unlink()
    resumed = fit(SVI(), net, stream(folder), objective=objective, settings=SETTINGS, directory=run, progress=False)
    for ours, theirs in zip(
        whole.models[0].state_dict().values(), resumed.models[0].state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_stream_refuses_a_network_that_ends_in_a_softmax(folder: Path) -> None:
    soft = nn.Sequential(mlp(10, (8, 8, 3)), nn.Softmax(-1))
    with pytest.raises(InputError, match=r"look like probabilities.*but fit needs logits"):
        fit(SVI(), soft, stream(folder), settings=SETTINGS, progress=False)


def test_a_stream_crops_its_own(folder: Path) -> None:
    """It would train without AugMix, and say nothing."""
    with pytest.raises(InputError, match=r"pictures: augmentation 'augmix' is for .* use 'crop'") as said:
        fit(SVI(), net, stream(folder), settings=replace(SETTINGS, augmentation="augmix"), progress=False)
    assert "\n" not in str(said.value)


def test_a_stream_with_other_batches_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="150 pictures in 3 batches are not batches of 32"):
        fit(SVI(), net, stream(folder), settings=replace(SETTINGS, batch_size=32), progress=False)
