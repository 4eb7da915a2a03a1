"""A training of one's own that never leaves the warm-up is reported when the loss is deleted."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from avuc.losses import AvUCLoss


@pytest.fixture(autouse=True)
def no_error_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error that ends the program nothing is reported; pytest keeps the errors of other tests there."""
    monkeypatch.delattr(sys, "last_value", raising=False)


def train(loss: AvUCLoss, epochs: int, batches: int, *, end: bool = True) -> None:
    net = nn.Linear(2, 2)
    for _ in range(epochs):
        for _ in range(batches):
            loss(net(torch.randn(4, 2)), torch.tensor([0, 1, 0, 1]))
        if end:
            loss.epoch_end()


@pytest.mark.parametrize(
    ("options", "training", "words"),
    [
        ({}, lambda loss: train(loss, 3, 2), "ended after 3 of 5 warm-up epochs; pass fewer warmup_epochs"),
        ({}, lambda loss: train(loss, 1, 100, end=False), r"epoch_end\(\) was never called in 100 batches"),
        ({"warmup_steps": 9}, lambda loss: train(loss, 4, 2), "ended after 8 of 9 warm-up batches"),
    ],
)
def test_the_end_of_a_training_in_its_warm_up(
    options: dict[str, Any], training: Callable[[AvUCLoss], None], words: str
) -> None:
    loss = AvUCLoss(**options)
    training(loss)
    with pytest.warns(UserWarning, match=f"the AvUC term was never used: .*{words}"):
        del loss


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({}, lambda loss: train(loss, 5, 2)),
        ({"warmup_steps": 8}, lambda loss: train(loss, 4, 2)),
        ({"threshold": 0.5}, lambda loss: train(loss, 1, 100)),
        ({"beta": 0.0}, lambda loss: train(loss, 1, 100)),
        ({}, lambda loss: train(loss, 1, 99, end=False)),  # a trial
        ({}, lambda loss: train(loss.eval(), 1, 100)),
        ({}, lambda loss: (loss(torch.zeros(2, 2), torch.tensor([0, 1])), loss.epoch_end())),  # no gradient
        ({}, lambda loss: (train(loss, 1, 2), loss.unused_reason(4))),  # the caller has said it
        ({}, lambda loss: train(copy.deepcopy(loss), 1, 2)),  # a copy does not report
    ],
)
def test_nothing_is_reported(options: dict[str, Any], training: Callable[[AvUCLoss], None]) -> None:
    loss = AvUCLoss(**options)
    training(loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del loss


def test_a_state_after_the_warm_up_ends_it() -> None:
    done, loss = AvUCLoss(warmup_epochs=1), AvUCLoss(warmup_epochs=1)
    train(done, 1, 2)
    train(loss, 1, 100, end=False)
    loss.load_state_dict(done.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del loss
