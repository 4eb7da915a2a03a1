"""The log of a run: one line of JSON per model and epoch, and optionally TensorBoard."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from avuc.core.atomic import write_text
from avuc.core.errors import require

FILE = "log.jsonl"


class Log:
    """`log.jsonl` in a directory. It starts with the history of the checkpoint, so that no epoch appears twice."""

    def __init__(self, directory: Path, history: Sequence[dict[str, Any]], *, tensorboard: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path: Path = directory / FILE
        write_text(self.path, "".join(_line(record) for record in history))
        self.board: Any = None
        if tensorboard:
            module = require("torch.utils.tensorboard", "tensorboard", "the TensorBoard log")
            self.board = module.SummaryWriter(str(directory / "tensorboard"), purge_step=_next_epoch(history))

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Append the records of an epoch in one write, so that a reader sees whole lines."""
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, "".join(_line(record) for record in records).encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        if self.board is not None:
            for record in records:
                for name, value in record.items():
                    if isinstance(value, float):
                        self.board.add_scalar(f"{name}/{record['member']}", value, record["epoch"])
            self.board.flush()

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def summary(records: Sequence[dict[str, Any]]) -> str:
    """Return an epoch in a few words, averaged over models.

    >>> summary([{"nll": 0.5, "kl": 0.0, "avuc": 0.0, "avu": None, "accuracy": 0.9, "images_per_second": 4000.0}])
    'nll 0.500 acc 0.900 4,000 images/s'
    """
    parts = []
    labels = {"nll": "nll", "kl": "kl", "avuc": "avuc", "avu": "avu", "accuracy": "acc", "validation_nll": "val"}
    for name, short in labels.items():
        values = [record[name] for record in records if record.get(name) is not None]
        # a term that the method does not have is 0 in all records
        if values and (any(values) or name not in ("kl", "avuc")):
            parts.append(f"{short} {sum(values) / len(values):.3f}")
    speed = sum(record["images_per_second"] for record in records)
    return " ".join([*parts, f"{speed:,.0f} images/s"])


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _next_epoch(history: Sequence[dict[str, Any]]) -> int:
    return 1 + max((record["epoch"] for record in history), default=-1)


def to_stderr(line: str) -> None:
    """Print a line for the user at once."""
    print(line, file=sys.stderr, flush=True)


def silent(line: str) -> None:
    """Print nothing: on all ranks but the first."""
