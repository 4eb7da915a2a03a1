"""The first batch, on which a network that returns probabilities is refused before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.private_copy import deep_copy
from avuc.data.arrays import as_input
from avuc.data.stream import Stream
from avuc.data.tensors import MemoryData
from avuc.prediction.outputs import check_outputs
from avuc.prediction.task import Task
from avuc.training.model_trainer import ModelTrainer
from avuc.training.outputs import logits_to_train
from avuc.training.run import Run


def one_of_each_net(runs: Iterable[Run]) -> list[ModelTrainer]:
    """Return one model for each network, or function that makes networks, that these runs start from."""
    return list({id(run.job.net): run.trainers[0] for run in runs}.values())


def check_first_batch(trainers: Iterable[ModelTrainer], data: MemoryData | Stream) -> None:
    """Raise before the first epoch if the outputs of a model are probabilities.

    Args:
        trainers: models with the same data and settings.
        data: the training data; a `Stream` is checked when its first batch has been read.
    """
    if isinstance(data, Stream):
        return
    for trainer in trainers:
        trainer.train_mode()
        rows = torch.arange(min(trainer.settings.batch_size, len(data)), device=data.device)
        check_logits(trainer, *trainer.batch(data, rows))


def check_first_images(trainers: Iterable[ModelTrainer], images: Tensor, labels: Tensor) -> None:
    """Raise if the outputs of a model for the first batch of a stream are probabilities."""
    for trainer in trainers:
        share = trainer.ranks.share(len(labels))
        check_logits(trainer, as_input(images[share]), labels[share])


def check_logits(trainer: ModelTrainer, inputs: Any, labels: Tensor) -> None:
    """Raise `InputError` if a model, in training mode, returns probabilities in place of logits.

    The check is that of `predict`. It runs a copy, and torch's random numbers stay as they were.

    Args:
        trainer: the model, which is not changed.
        inputs, labels: the first batch.
    """
    devices = [trainer.device] if trainer.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            logits = logits_to_train(trainer.method.logits(deep_copy(trainer.model), inputs), inputs)
        except InputError:
            raise
        except ValueError:  # batch normalisation of one row: this rank's share of a batch that is large enough
            return
    several = logits.ndim > labels.ndim + 1  # samples
    check_outputs(logits[0] if several else logits, Task(), taker="fit")
