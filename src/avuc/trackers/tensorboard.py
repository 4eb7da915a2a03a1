"""Logs the figures of every epoch to TensorBoard."""

from __future__ import annotations

from pathlib import Path

from avuc.core.errors import require
from avuc.trackers.tracker import Tracker


def tensorboard(folder: str | Path, *, prefix: str = "") -> Tracker:
    """Return a tracker that writes every figure of an epoch as a scalar. Needs `pip install 'avuc[tensorboard]'`.

    Args:
        folder: where TensorBoard's event file is written; `tensorboard --logdir FOLDER` shows it.
        prefix: put before the name of each figure, for example "seed-0/".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, tensorboard(folder) as tracker:
    ...     tracker(0, {"nll": 0.5, "accuracy": 0.9})
    """
    require("tensorboard", "tensorboard", "avuc.trackers.tensorboard")
    writer = require("torch.utils.tensorboard", "tensorboard", "avuc.trackers.tensorboard").SummaryWriter(str(folder))

    def send(epoch: int, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(prefix + name, value, epoch)
        writer.flush()

    return Tracker(send, writer.close, writer)
