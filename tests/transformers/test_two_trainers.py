"""One `AvUCObjective` in two trainers: the settings and the model of the first do not reach the second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import avuc
from avuc.losses import AvUCLoss
from avuc.transformers import AvUCObjective, AvUCTrainer


def cross_entropy(model: Any, data: Any, smoothing: float = 0.0) -> float:
    with torch.no_grad():
        logits = model.eval()(input_ids=data.ids, attention_mask=data.mask).logits
    return float(F.cross_entropy(logits, data.labels, label_smoothing=smoothing))


def test_label_smoothing_is_that_of_each_trainer(
    settings: Callable[..., Any], tiny_model: Callable[..., Any], rows: Any
) -> None:
    data, objective = rows(16, tokens=False), AvUCObjective(AvUCLoss(threshold=1.0))
    for smoothing in (0.3, 0.0):
        model = tiny_model()
        args = settings(label_smoothing_factor=smoothing, max_steps=1)
        trainer = AvUCTrainer(model, args, avuc=objective, train_dataset=data, eval_dataset=data)
        before = cross_entropy(model, data, smoothing)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(before, rel=1e-5)  # before any training
        trainer.train()
        assert trainer.evaluate()["eval_loss"] == pytest.approx(cross_entropy(model, data, smoothing), rel=1e-5)


def test_the_kl_is_that_of_the_model_in_training(
    settings: Callable[..., Any], tiny_model: Callable[..., Any], rows: Any
) -> None:
    losses: list[Tensor] = []

    class Kept(AvUCObjective):
        def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
            losses.append(super().__call__(*args, **kwargs))
            return losses[-1]

    data, objective = rows(8, tokens=False), Kept(AvUCLoss(threshold=1.0, beta=0.0))
    args = settings(max_steps=1, per_device_train_batch_size=8)
    AvUCTrainer(avuc.to_bayesian(tiny_model()), args, avuc=objective, train_dataset=data).train()
    model = tiny_model()
    expected = cross_entropy(model, data)
    AvUCTrainer(model, args, avuc=objective, train_dataset=data).train()
    assert float(losses[-1].detach()) == pytest.approx(expected, rel=1e-5)
