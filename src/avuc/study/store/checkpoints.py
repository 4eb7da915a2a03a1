"""The files of trained models."""

from __future__ import annotations

import sys

from avuc.training.checkpoint import Checkpoint, latest, save
from avuc.training.run import Job


def drop_optimizer_state(job: Job) -> None:
    """Keep one checkpoint of a trained model, without the optimiser's state, which is two thirds of the file."""
    assert job.directory is not None
    checkpoint = latest(job.directory, job.identity(), lambda line: print(line, file=sys.stderr))
    if checkpoint is None or not any(name.startswith("optimizer.") for name in checkpoint.tensors):
        return
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("optimizer.")}
    kept = (
        checkpoint.epoch,
        checkpoint.history,
        checkpoint.identity,
        tensors,
        checkpoint.best,
        checkpoint.stopped,
        checkpoint.seconds,
    )
    path = save(job.directory, Checkpoint(*kept))
    for other in job.directory.glob("checkpoint-*.safetensors"):
        if other != path:
            other.unlink(missing_ok=True)
