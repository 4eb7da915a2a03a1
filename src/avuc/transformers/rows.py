"""Logits and labels of sequence, token and language models as rows (M, C) with labels (M)."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.state import GradientState, PartialState
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tasks import whole_labels

KINDS = ("multiclass", "multilabel")


def logits_of(outputs: Any) -> Any:
    """Return the logits of a model's output: a `ModelOutput`, a dict, a tuple, or the logits themselves."""
    if isinstance(outputs, dict):
        if "logits" not in outputs:
            raise InputError(f"the model returned no logits, only {', '.join(outputs) or 'nothing'}")
        return outputs["logits"]
    # a tuple may have the loss before the logits; the loss has no dimensions
    parts = outputs if isinstance(outputs, tuple | list) else (outputs,)
    scores = next((part for part in parts if getattr(part, "ndim", 0) >= 2), None)
    if scores is None:
        raise InputError("the model returned no logits of shape (N, C) or (N, T, C)")
    return scores


def rows_of(
    logits: Tensor, labels: Any, *, task: str = "multiclass", shift_labels: bool = False
) -> tuple[Tensor, Tensor]:
    """Return logits (M, C) and labels (M), ignored ones included.

    Args:
        logits: (N, C) for sequences, (N, T, C) for tokens.
        labels: class numbers, (N) or (N, T); for multi-label models 0 and 1, in the shape of the logits.
        task: "multiclass" or "multilabel". With "multilabel" each decision is a row [0, z] of two classes.
        shift_labels: whether position t predicts the label of position t + 1, as in causal language models.
    """
    if task not in KINDS:
        raise InputError(f"task must be one of {', '.join(KINDS)}; found {task!r}")
    if labels is None:
        raise InputError("the batch has no labels; name their column in TrainingArguments(label_names=[...])")
    if task == "multilabel":
        if labels.shape != logits.shape or shift_labels:
            raise InputError(
                f"multi-label labels must have the shape of the logits, {tuple(logits.shape)}; found "
                f"{tuple(labels.shape)}"
            )
        flat = logits.reshape(-1)
        return torch.stack((torch.zeros_like(flat), flat), -1), whole_labels(labels).reshape(-1)
    if labels.is_floating_point() or logits.shape[-1] == 1:
        raise InputError(
            f"class numbers are needed, found labels {tuple(labels.shape)} of {labels.dtype} for {logits.shape[-1]} "
            "output(s): regression is not supported; for a multi-label model give task='multilabel'"
        )
    if logits.ndim == 2 and labels.shape == (len(logits), 1):
        labels = labels[:, 0]
    if logits.shape[:-1] != labels.shape:
        raise InputError(
            f"logits (N, C) go with labels (N), and (N, T, C) with (N, T); found logits {tuple(logits.shape)} and "
            f"labels {tuple(labels.shape)}"
        )
    if shift_labels:
        if labels.ndim != 2:
            raise InputError(f"shift_labels needs labels (N, T), found {tuple(labels.shape)}")
        logits, labels = logits[:, :-1], labels[:, 1:]
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).long()


def rows_without_repeats(rows: int) -> int:
    """Return how many of the rows of a batch, from the first on, this process must count in an evaluation.

    If the last batches of several processes have too few rows, the data loaders of `Trainer` repeat rows from the start
    of the data set. `Trainer` leaves them out of what it gathers: it keeps the first `remainder` rows of all processes.

    Args:
        rows: number of rows of the batch on this process.

    >>> rows_without_repeats(8)  # no data loader is running
    8
    """
    loader: Any = GradientState()
    if not loader.end_of_dataloader or loader.remainder <= 0:
        return rows
    before = rows * int(PartialState().process_index)
    return min(rows, max(0, int(loader.remainder) - before))
