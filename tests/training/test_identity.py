"""A folder holds one run: other inputs, other layers or other validation data do not silently give the old result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.data import Dataset
from avuc.methods import SWAG, Ensemble, Objective, Vanilla
from avuc.train import Fitted, Job, TrainSettings, fit, fit_calibrated, fit_many
from avuc.training.identity import LATER

SETTINGS = TrainSettings(epochs=3, batch_size=64, milestones=(), factors=(), pad=0, flip=False, checkpoint_seconds=0)


def dropping(rate: float) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(rate), nn.ReLU(), nn.Linear(16, 10))


def network(generator: torch.Generator, rate: float = 0.3) -> nn.Module:
    """A network of the user's own: its dropout draws from torch's global generator."""
    made = dropping(rate)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)
    return made


def pair(data: Dataset, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    return data.images.flatten(1).float() / 255 * scale, data.labels


def nlls(fitted: Fitted) -> list[float]:
    return [record["nll"] for record in fitted.history]


def test_other_inputs_are_refused(train: Dataset, tmp_path: Path) -> None:
    first = fit(Vanilla(), network, pair(train), settings=SETTINGS, directory=tmp_path, progress=False)
    again = fit(Vanilla(), network, pair(train), settings=SETTINGS, directory=tmp_path, progress=False)
    assert nlls(first) == nlls(again)
    with pytest.raises(InputError, match=r"another run \(inputs is .*, was .*choose another folder"):
        fit(Vanilla(), network, pair(train, 16), settings=SETTINGS, directory=tmp_path, progress=False)


def test_images_that_differ_in_one_pixel_are_refused(train: Dataset, tmp_path: Path) -> None:
    fit(Vanilla(), network, train, settings=SETTINGS, directory=tmp_path, progress=False)
    images = train.images.clone()
    images[-1, -1, -1] += 1
    other = Dataset(images, train.labels, 10, train.name)
    with pytest.raises(InputError, match="inputs is"):
        fit(Vanilla(), network, other, settings=SETTINGS, directory=tmp_path, progress=False)


def test_another_dropout_rate_is_refused(train: Dataset, tmp_path: Path) -> None:
    fit(Vanilla(), network, train, settings=SETTINGS, directory=tmp_path, progress=False)
    with pytest.raises(InputError, match=r"net \(torch"):
        fit(Vanilla(), lambda g: network(g, 0.6), train, settings=SETTINGS, directory=tmp_path, progress=False)


def test_validation_counts_where_it_chooses(train: Dataset, held_out: Dataset, tmp_path: Path) -> None:
    other = held_out.subset(range(50))
    plain, keeping = SETTINGS, TrainSettings(**{**vars(SETTINGS), "keep": "best_accuracy"})
    for settings, name in ((plain, "plain"), (keeping, "keeping")):
        fit(
            Vanilla(), network, train, settings=settings, validation=held_out, directory=tmp_path / name, progress=False
        )
    fit(Vanilla(), network, train, settings=plain, validation=other, directory=tmp_path / "plain", progress=False)
    with pytest.raises(InputError, match="validation is"):
        fit(
            Vanilla(),
            network,
            train,
            settings=keeping,
            validation=other,
            directory=tmp_path / "keeping",
            progress=False,
        )


def test_checkpoints_without_digests_still_match(train: Dataset, tmp_path: Path) -> None:
    first = fit(Vanilla(), network, train, settings=SETTINGS, directory=tmp_path, progress=False)
    for path in tmp_path.glob("checkpoint-*"):
        mapped, metadata = read_tensors(path)
        tensors = {name: tensor.clone() for name, tensor in mapped.items()}
        content = json.loads(metadata["avuc"])
        old = {key: text for key, text in content["identity"].items() if key.partition(" (")[0] not in LATER}
        assert len(old) == len(content["identity"]) - 2
        write_tensors(path, tensors, {"avuc": json.dumps(content | {"identity": old})})
    assert nlls(first) == nlls(fit(Vanilla(), network, train, settings=SETTINGS, directory=tmp_path, progress=False))


class Noisy(TorchDataset[tuple[Tensor, int]]):
    """A random transform gives other inputs every time."""

    def __init__(self, data: Dataset) -> None:
        self.data: Dataset = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.data.images[index].flatten().float() / 255 + torch.rand(()), int(self.data.labels[index])


def test_random_transforms_may_resume(train: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Noisy(train.subset(range(100))), batch_size=20, shuffle=True)
    first = fit(Vanilla(), network, loader, settings=SETTINGS, directory=tmp_path, progress=False)
    assert "other inputs" not in capsys.readouterr().err
    assert nlls(fit(Vanilla(), network, loader, settings=SETTINGS, directory=tmp_path, progress=False)) == nlls(first)
    assert "trained on other inputs than the data give now" in capsys.readouterr().err


def test_other_starting_weights_are_named(train: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They do not refuse the run: a network whose weights are random in every process may resume."""
    start = network(torch.Generator().manual_seed(0))
    for _ in range(2):
        fit(Vanilla(), start, pair(train), settings=SETTINGS, directory=tmp_path, progress=False)
    assert "other weights" not in capsys.readouterr().err
    other = network(torch.Generator().manual_seed(1))
    fit(Vanilla(), other, pair(train), settings=SETTINGS, directory=tmp_path, progress=False)
    assert "started from other weights than the network has now" in capsys.readouterr().err


def test_a_temperature_of_other_validation_data_is_fitted_again(
    train: Dataset, held_out: Dataset, tmp_path: Path
) -> None:
    data, easy, hard = pair(train), pair(held_out), pair(held_out, 8)

    def temperature(validation: tuple[Tensor, Tensor], folder: Path | None) -> float:
        found = fit_calibrated(network, data, validation, epochs=2, directory=folder, progress=False)
        return float(found.calibrator.temperature_)

    first = temperature(easy, tmp_path)
    assert temperature(easy, tmp_path) == first
    assert temperature(hard, tmp_path) == temperature(hard, None) != first
    (tmp_path / "second" / "calibrated-on.txt").unlink()  # as version 0.1.0 leaves the folder
    assert temperature(easy, tmp_path) == first


def test_jobs_together_draw_the_global_numbers_of_jobs_alone(train: Dataset) -> None:
    def jobs() -> list[Job]:
        few = dict.fromkeys((0, 1, 2))
        made = [Job(Vanilla(), network, train, Objective(), SETTINGS, seed=seed) for seed in few]
        return [*made, Job(Ensemble(2), network, train, Objective(), SETTINGS, seed=3)]

    together = fit_many(jobs(), progress=False)
    for job, fitted in zip(jobs(), together, strict=True):
        alone = fit_many([job], progress=False)[0]
        for one, other in zip(alone.models, fitted.models, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_jobs_that_resume_at_different_epochs_end_alike(train: Dataset, tmp_path: Path) -> None:
    def jobs(folder: Path) -> list[Job]:
        return [
            Job(Vanilla(), network, train, Objective(), SETTINGS, seed=s, directory=folder / str(s)) for s in (0, 1)
        ]

    whole = fit_many(jobs(tmp_path / "whole"), progress=False)
    fit_many(jobs(tmp_path / "killed"), progress=False)
    (tmp_path / "killed" / "1" / "checkpoint-000003.safetensors").unlink()  # as if killed before it was written
    resumed = fit_many(jobs(tmp_path / "killed"), progress=False)
    for one, other in zip(whole, resumed, strict=True):
        pairs = zip(one.models[0].parameters(), other.models[0].parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("member", [False, True])
def test_the_moving_average_leaves_what_swag_collected(train: Dataset, member: bool) -> None:
    method = Ensemble(2, SWAG(start=0.3)) if member else SWAG(start=0.3)

    def collected(decay: float) -> list[Tensor]:
        settings = TrainSettings(**{**vars(SETTINGS), "ema_decay": decay})
        models = fit(method, network, train, settings=settings, progress=False).models
        return [tensor for model in models for name, tensor in model.named_buffers() if not name.startswith("net.")]

    for plain, averaged in zip(collected(0.0), collected(0.999), strict=True):
        assert torch.equal(plain, averaged)


def test_the_seed_determines_the_start_of_a_network_that_ignores_the_generator(train: Dataset) -> None:
    settings = TrainSettings(**{**vars(SETTINGS), "epochs": 1, "learning_rate": 1e-30})

    def starts(seed: int) -> list[Tensor]:
        fitted = fit(Ensemble(2), lambda _: dropping(0.0), train, settings=settings, seed=seed, progress=False)
        return [next(model.parameters()).detach() for model in fitted.models]

    before = torch.get_rng_state()
    one, other = starts(0), starts(1)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)  # the state of the caller does not matter
    assert all(torch.equal(a, b) for a, b in zip(one, starts(0), strict=True))
    assert len({tuple(tensor.flatten().tolist()) for tensor in (*one, *other)}) == 4
