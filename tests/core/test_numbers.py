"""Numbers of settings that are texts, or no numbers at all: one line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from avuc import to_bayesian
from avuc.bayes import Moped, Normal
from avuc.core.errors import InputError
from avuc.methods import LLSVI, SVI, SWAG, Dropout, Ensemble, Radial
from avuc.train import TrainSettings

NET = nn.Linear(4, 3)
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "initial_std": (lambda: to_bayesian(NET, initial_std="0.1"), "initial_std must be a number, found '0.1'; leave"),
    "no initial_std": (lambda: to_bayesian(NET, initial_std=None), "initial_std must be a number, found None$"),
    "prior mean": (lambda: to_bayesian(NET, prior=Normal("0")), "prior mean must be a number.* found '0'; leave"),
    "prior std": (lambda: to_bayesian(NET, prior=Normal(std="wide")), "prior std must be a number.* found 'wide'$"),
    "Moped": (lambda: Moped("0.5"), "Moped: delta must be a number, found '0.5'; leave out the quotes"),
    "rate": (lambda: TrainSettings(learning_rate="1e-3"), "train: learning_rate must be a number, found '1e-3'"),
    "epochs": (lambda: TrainSettings(epochs="20"), "train: epochs must be a number, found '20'; leave out the quotes"),
    "half": (lambda: TrainSettings(epochs=2.5), "train: epochs must be a whole number, found 2.5"),
    "list": (lambda: TrainSettings(batch_size=[8]), r"train: batch_size must be a number, found \[8\]"),
    "factors": (lambda: TrainSettings(milestones=(3,), factors=("0.1",)), "factors must be numbers, found '0.1'"),
    "milestones": (lambda: TrainSettings(milestones=("3",), factors=(0.1,)), "milestones must be numbers, found '3'"),
    "one milestone": (lambda: TrainSettings(milestones=3, factors=(0.1,)), "milestones must be a list of numbers"),
    "flip": (lambda: TrainSettings(flip="false"), "train: flip must be True or False, found 'false'"),
    "svi": (lambda: SVI(initial_std="0.1"), "svi: initial_std must be a number, found '0.1'"),
    "svi samples": (lambda: SVI(train_draws="2"), "svi: train_draws must be a number"),
    "ll_svi": (lambda: LLSVI(delta="0.2"), "ll_svi: delta must be a number"),
    "radial": (lambda: Radial(prior_std="1"), "radial: prior_std must be a number"),
    "dropout": (lambda: Dropout("0.1"), "dropout: rate must be a number"),
    "dropout choice": (lambda: Dropout(drop_input="no"), "dropout: drop_input must be True or False, found 'no'"),
    "swag": (lambda: SWAG(start="0.5"), "swag: start must be a number"),
    "ensemble": (lambda: Ensemble("5"), "ensemble: members must be a number"),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_line(name: str) -> None:
    call, message = CALLS[name]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_numbers_of_other_libraries_are_taken() -> None:
    TrainSettings(epochs=np.int64(3), learning_rate=np.float32(0.1), factors=(), milestones=[], flip=np.bool_(True))
    TrainSettings(learning_rate=1, clip_norm=0, kl_anneal_epochs=2.5, milestones=[1], factors=[1])
    to_bayesian(NET, initial_std=np.float32(0.1), prior=Normal(np.float64(0), torch.tensor(0.5)))
    to_bayesian(NET, initial_std=torch.tensor(0.1).item(), prior=Moped(1))
    SVI(prior_std=1, moped=True)
    SWAG(start=0, rank=np.int32(3))
