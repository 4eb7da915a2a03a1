"""Logits and labels of sequence, token and language models as rows (M, C) with labels (M)."""

from __future__ import annotations

from typing import Any

from avuc.core.errors import InputError


def logits_of(outputs: Any) -> Any:
    """Return the logits of a model's output: a `ModelOutput`, a dict, a tuple, or the logits themselves."""
    if isinstance(outputs, dict):
        if "logits" not in outputs:
            raise InputError(f"the model returned no logits, only {', '.join(outputs) or 'nothing'}")
        return outputs["logits"]
    # with a loss in front of them in a tuple: the loss has no dimensions
    parts = outputs if isinstance(outputs, tuple | list) else (outputs,)
    scores = next((part for part in parts if getattr(part, "ndim", 0) >= 2), None)
    if scores is None:
        raise InputError("the model returned no logits of shape (N, C) or (N, T, C)")
    return scores


def rows_of(logits: Any, labels: Any, *, shift_labels: bool) -> tuple[Any, Any]:
    """Return logits (M, C) and labels (M), ignored ones included; tensors or arrays.

    Args:
        logits: (N, C) for sequences, (N, T, C) for tokens.
        labels: class numbers, (N) or (N, T).
        shift_labels: whether position t predicts the label of position t + 1, as in causal language models.
    """
    if labels is None:
        raise InputError("the batch has no labels; name their column in TrainingArguments(label_names=[...])")
    if "float" in str(labels.dtype) or logits.shape[-1] == 1:
        raise InputError(
            f"class numbers are needed, found labels {tuple(labels.shape)} of {labels.dtype} for {logits.shape[-1]} "
            "output(s): regression and multi-label models are not supported by avuc.transformers"
        )
    if logits.ndim == 2 and tuple(labels.shape) == (len(logits), 1):
        labels = labels[:, 0]
    if tuple(logits.shape[:-1]) != tuple(labels.shape):
        raise InputError(
            f"logits (N, C) go with labels (N), and (N, T, C) with (N, T); found logits {tuple(logits.shape)} and "
            f"labels {tuple(labels.shape)}"
        )
    if shift_labels:
        if labels.ndim != 2:
            raise InputError(f"shift_labels needs labels (N, T), found {tuple(labels.shape)}")
        logits, labels = logits[:, :-1], labels[:, 1:]
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
