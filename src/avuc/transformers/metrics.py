"""`compute_metrics` for `Trainer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from avuc.core.arrays import as_tensor
from avuc.core.errors import InputError
from avuc.metrics import METRICS, evaluate
from avuc.predictions import Predictions
from avuc.transformers.rows import logits_of, rows_of


def compute_metrics(
    eval_pred: Any,
    *,
    names: Iterable[str] | None = None,
    bins: int = 15,
    ignore_index: int = -100,
    shift_labels: bool = False,
    task: str = "multiclass",
) -> dict[str, float]:
    """Return calibration and uncertainty metrics of an evaluation: `Trainer(compute_metrics=compute_metrics)`.

    The values are those of `avuc.metrics`; `Trainer` logs them as "eval_ece" and so on. For token classification every
    token that has a label is one prediction.

    Args:
        eval_pred: what `Trainer` passes: logits (N, C) or (N, T, C), and labels (N) or (N, T).
        names: metrics of `avuc.metrics.METRICS`; None (default): all.
        bins: number of bins of the calibration errors.
        ignore_index: label of the tokens to leave out (default −100).
        shift_labels: whether position t predicts the label of position t + 1, as in causal language models (default
            False).
        task: "multiclass" (default); or "multilabel" for labels (N, L) of 0 and 1: each decision is one prediction.

    >>> from transformers import EvalPrediction
    >>> logits = np.array([[[2.0, 0.0], [0.0, 1.0], [5.0, 0.0]]])
    >>> compute_metrics(EvalPrediction(logits, np.array([[0, 0, -100]])))["accuracy"]
    0.5
    """
    outputs, labels = (eval_pred.predictions, eval_pred.label_ids) if hasattr(eval_pred, "label_ids") else eval_pred
    if isinstance(labels, tuple | list) and labels and isinstance(labels[0], np.ndarray):
        raise InputError(f"one set of labels is needed, found {len(labels)}; give TrainingArguments(label_names=[...])")
    logits, label_tensor = as_tensor(logits_of(outputs), "logits"), as_tensor(labels, "labels")
    rows, classes = rows_of(logits, label_tensor, task=task, shift_labels=shift_labels)
    kept = classes != ignore_index
    if not kept.any():
        raise InputError(f"no label is left to evaluate: all {len(classes)} are {ignore_index}")
    wanted = list(METRICS if names is None else names)
    unknown = [name for name in wanted if name not in METRICS]
    if unknown:
        raise InputError(f"unknown metric {unknown[0]!r}; known: {', '.join(METRICS)}")
    values = evaluate(Predictions.from_logits(rows[kept], classes[kept]), bins=bins)
    return {name: values[name] for name in wanted}
