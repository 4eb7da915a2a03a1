"""The files of trained models."""

from __future__ import annotations

import sys

from avuc.training.checkpoint import Checkpoint, latest, save
from avuc.training.run import Job


def drop_optimizer_state(job: Job) -> None:
    """Keep one checkpoint of a trained model, without the optimiser's state: that is two thirds of the file."""
    assert job.directory is not None
    found = latest(job.directory, job.identity(), lambda line: print(line, file=sys.stderr))
    if found is None or not any(name.startswith("optimizer.") for name in found.tensors):
        return
    tensors = {name: tensor for name, tensor in found.tensors.items() if not name.startswith("optimizer.")}
    kept = (found.epoch, found.history, found.identity, tensors, found.best, found.stopped, found.seconds)
    path = save(job.directory, Checkpoint(*kept))
    for other in job.directory.glob("checkpoint-*.safetensors"):
        if other != path:
            other.unlink(missing_ok=True)
