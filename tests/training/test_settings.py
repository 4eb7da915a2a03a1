"""Settings that came later, and the augmentation a model in training uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from avuc.core.errors import InputError
from avuc.data import Augmentation, Dataset, as_input, augment
from avuc.methods import Objective, Vanilla
from avuc.train import Fitted, TrainSettings, fit
from avuc.training.distributed import Ranks
from avuc.training.model_trainer import ModelTrainer

Factory = Callable[[torch.Generator], nn.Module]
QUICK = TrainSettings(epochs=2, batch_size=100, learning_rate=3e-3, pad=1, flip=False)
OFTEN = replace(QUICK, checkpoint_seconds=60.0)


def test_the_identity_of_earlier_runs_stays() -> None:
    """A checkpoint from before there was a policy says nothing of it, and is the same run as one with crops."""
    told = TrainSettings().identity()
    assert told == {
        "epochs": "200",
        "batch_size": "107",
        "optimizer": "'adam'",
        "learning_rate": "0.001189",
        "milestones": "(80, 120, 160, 180)",
        "factors": "(0.1, 0.01, 0.001, 0.0005)",
        "momentum": "0.9",
        "nesterov": "False",
        "weight_decay": "0.0",
        "pad": "4",
        "flip": "True",
        "kl_anneal_epochs": "0",
        "clip_norm": "0.0",
        "ema_decay": "0.0",
        "patience": "0",
        "validate_every": "1",
        "validation_draws": "1",
        "precision": "'float32'",
        "sync_batch_norm": "True",
        "rank_noise": "'shared'",
    }
    assert TrainSettings(augmentation="augmix").identity() == told | {"augmentation": "'augmix'"}
    assert TrainSettings(reset_optimizer=True).identity() == told | {"reset_optimizer": "True"}
    assert TrainSettings(keep="best_accuracy").identity() == told | {"keep": "'best_accuracy'"}
    assert TrainSettings(freeze_trunk=True).identity() == told | {"freeze_trunk": "True"}
    assert OFTEN.identity() == QUICK.identity()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"augmentation": "mixup"}, "augmentation must be one of crop, augmix; found 'mixup'"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds must not be negative"),
        ({"keep": "best"}, "keep must be one of last, best_accuracy; found 'best'"),
        ({"keep": "best_accuracy", "patience": 3}, "cannot be combined with keep"),
    ],
)
def test_settings_refuse(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainSettings(**change)  # type: ignore[arg-type]


def a_trainer(net: Factory, settings: TrainSettings) -> ModelTrainer:
    device = torch.device("cpu")
    common = {"num_train": 500, "num_classes": 10, "seed": 3, "index": 0, "device": device, "ranks": Ranks()}
    trainer = ModelTrainer(Vanilla(), net, Objective(), settings, **common)  # type: ignore[arg-type]
    trainer.begin(1)
    return trainer


@pytest.mark.parametrize("change", [{}, {"augmentation": "augmix"}, {"pad": 0}, {"augmentation": "augmix", "pad": 0}])
def test_a_batch_is_drawn_and_applied(train: Dataset, plain_net: Factory, change: dict[str, object]) -> None:
    settings = replace(QUICK, **change)  # type: ignore[arg-type]
    trainer, again = a_trainer(plain_net, settings), a_trainer(plain_net, settings)
    policy = Augmentation(settings.augmentation, pad=settings.pad, flip=settings.flip)
    assert trainer.augmentation == policy
    for rows in (torch.arange(100), torch.arange(100, 137)):
        images, labels = trainer.batch(train, rows)
        drawn = policy.draw(len(rows), again.augmenting, "cpu")
        assert torch.equal(images, as_input(policy.apply(train.images, rows, drawn)))
        assert torch.equal(labels, train.labels[rows])


def test_crops_are_those_of_earlier_runs(train: Dataset, plain_net: Factory) -> None:
    trainer, again = (a_trainer(plain_net, replace(QUICK, flip=True)) for _ in range(2))
    rows = torch.arange(50)
    cropped = augment(train.images, rows, again.augmenting, pad=1, flip=True)
    assert torch.equal(trainer.batch(train, rows)[0], as_input(cropped))


def test_training_with_augmix_repeats_and_is_another_run(train: Dataset, plain_net: Factory, tmp_path: Path) -> None:
    settings = replace(QUICK, augmentation="augmix")
    whole, same, cropped = (
        fit(Vanilla(), plain_net, train, objective=Objective(), settings=one, seed=1, progress=False, directory=folder)
        for one, folder in ((settings, tmp_path / "a"), (settings, None), (QUICK, None))
    )
    weights = [list(fitted.models[0].state_dict().values()) for fitted in (whole, same, cropped)]
    assert all(torch.equal(one, other) for one, other in zip(weights[0], weights[1], strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(weights[0], weights[2], strict=True))
    with pytest.raises(InputError, match=r"train\.augmentation is not set, was 'augmix'"):
        fit(Vanilla(), plain_net, train, settings=QUICK, seed=1, progress=False, directory=tmp_path / "a")


# names of version 0.1.0


def test_the_old_name_of_models_per_step_still_works() -> None:
    with pytest.warns(DeprecationWarning, match=r"TrainSettings\(at_once=\) is now models_per_step"):
        settings = TrainSettings(at_once=3)  # type: ignore[call-arg]
    assert settings == TrainSettings(models_per_step=3)
    with pytest.warns(DeprecationWarning, match=r"TrainSettings\.at_once is now models_per_step"):
        assert settings.at_once == 3
    with pytest.raises(InputError, match="at_once is the old name of models_per_step; give models_per_step only"):
        TrainSettings(at_once=3, models_per_step=3)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="models_per_step must be at least 1, found 0"):
        TrainSettings(models_per_step=0)


def test_models_per_step_is_no_part_of_a_runs_identity() -> None:
    """Version 0.1.0 left `at_once` out, so its checkpoints match whatever the new setting is."""
    assert TrainSettings(models_per_step=3).identity() == TrainSettings().identity()


@pytest.mark.parametrize("caller", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("frozen", [True, False])
def test_an_autocast_of_the_caller_changes_nothing(
    precision: str, caller: bool, frozen: bool, train: Dataset, normalised_net: Factory
) -> None:
    """Torch keeps cast weights until the outermost autocast ends: even a disabled one froze the weights of bfloat16."""
    settings = replace(QUICK, precision=precision, pad=0, ema_decay=0.5, freeze_trunk=frozen)

    def run() -> Fitted:
        objective = Objective("avuc", warmup_epochs=1)
        return fit(
            Vanilla(), normalised_net, train, objective=objective, settings=settings, validation=train, progress=False
        )

    expected = run()
    with torch.autocast("cpu", torch.bfloat16, enabled=caller):
        found = run()
        assert torch.is_autocast_enabled("cpu") == caller
    for ours, theirs in zip(expected.models[0].parameters(), found.models[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert expected.history[-1]["validation_nll"] == found.history[-1]["validation_nll"]
