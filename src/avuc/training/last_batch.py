"""A last batch of one row, on which batch normalisation cannot be trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from avuc.core.errors import InputError
from avuc.core.private_copy import deep_copy
from avuc.data.stream import Stream
from avuc.data.tensors import MemoryData
from avuc.methods.method import Method
from avuc.training.model_trainer import ModelTrainer


def check_last_batch(trainers: Sequence[ModelTrainer], data: MemoryData | Stream) -> None:
    """Raise before the first epoch, not at its end, if a model cannot be trained on a last batch of one row.

    Args:
        trainers: models with the same data and settings.
        data: the training data. A `Stream` of files is not checked: its images have many values for each channel.
    """
    if isinstance(data, Stream):
        return
    for trainer in trainers:
        size = trainer.settings.batch_size
        if len(data) % size != 1 % size or trainer.ranks.size > 1:
            continue
        trainer.train_mode()
        inputs = trainer.batch(data, torch.zeros(1, dtype=torch.int64, device=data.device))[0]
        check_one_row(trainer.method, trainer.model, inputs, len(data), size, "train")


def check_one_row(method: Method, model: nn.Module, inputs: Any, rows: int, size: int, where: str) -> None:
    """Raise if a model, in training mode, cannot be trained on a batch of one row.

    Args:
        method: how the model computes logits.
        model: the model; it is not changed.
        inputs: the batch.
        rows, size: numbers of training rows and of rows in a batch, for the message.
        where: start of the message.
    """
    if not any(isinstance(layer, _BatchNorm) and layer.training for layer in model.modules()):
        return
    try:
        with torch.no_grad():
            method.logits(deep_copy(model), inputs)
    except InputError:
        raise
    except ValueError as error:  # of torch: one value for each channel
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{where}: {rows} rows in batches of {size} leave a last batch of one row, on which batch normalisation "
            f"cannot be trained ({reason}); choose another batch_size, or leave one row out"
        ) from error
