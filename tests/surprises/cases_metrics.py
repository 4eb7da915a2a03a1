"""Metrics and Predictions in Python, given what scripts have at hand: lists, arrays, tensors, frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch

import avuc
from avuc import metrics

from .own_figures import auroc, entropies, softmax
from .table import (
    CLASSES,
    DRAWN,
    DRAWN_TRUTH,
    LABELS,
    LABELS2,
    LOGITS,
    NAMES,
    ONE_HOT,
    OUTSIDE,
    PROBS,
    PROBS2,
    ROWS,
    TRUTH,
    TRUTH2,
    PythonCase,
    Truth,
    names_of,
)

T_PROBS, T_LOGITS, T_LABELS = torch.tensor(PROBS), torch.tensor(LOGITS), torch.tensor(LABELS)
MASKED = np.where(ONE_HOT[:, [1, 2, 3, 4, 0]] == 1, -np.inf, LOGITS)
READ_ONLY = PROBS.copy()
READ_ONLY.setflags(write=False)
WIDE = np.zeros((ROWS, 2 * CLASSES))
WIDE[:, ::2] = PROBS
SOME = np.arange(ROWS) % 10 == 3
RANGE = r"0 ?… ?4|0…|0 … "


def all_of(probs: Any, labels: Any = LABELS) -> dict[str, float]:
    """Five metrics of one input, each called on its own."""
    names = ("accuracy", "nll", "brier", "ece", "mean_entropy")
    return {name: getattr(metrics, name)(probs, labels) for name in names}


def metric(
    name: str,
    probs: Any,
    labels: Any = LABELS,
    right: Truth | None = TRUTH,
    refused: str | None = None,
    tol: float = 1e-4,
) -> PythonCase:
    return PythonCase(f"metrics: {name}", lambda: all_of(probs, labels), right and right.figures, refused, tol)


def predictions(
    name: str, build: Callable[[], Any], refused: str | None = None, right: Truth | None = TRUTH, tol: float = 1e-4
) -> PythonCase:
    return PythonCase(
        f"Predictions: {name}", lambda: metrics.evaluate(build()), right and right.figures, refused, tol, "predictions"
    )


def P(probs: Any, labels: Any) -> Any:
    return avuc.Predictions(probs, labels)


CASES = [
    # ---- metrics
    metric("lists", PROBS.tolist(), LABELS.tolist()),
    metric("tuples", tuple(map(tuple, PROBS.tolist())), tuple(LABELS.tolist())),
    metric(
        "a data frame and a series", pd.DataFrame(PROBS, columns=NAMES), pd.Series(LABELS, index=range(7, 7 + ROWS))
    ),
    metric("float16", PROBS.astype(np.float16), tol=2e-3),
    metric("bfloat16 tensor", T_PROBS.bfloat16(), T_LABELS, tol=6e-3),
    metric("a tensor with a gradient", T_PROBS.clone().requires_grad_(), T_LABELS),
    metric("not contiguous", WIDE[:, ::2]),
    metric("Fortran order", np.asfortranarray(PROBS)),
    metric("big-endian", PROBS.astype(">f4"), LABELS.astype(">i2")),
    metric("read-only", READ_ONLY),
    metric("labels as int8", PROBS, LABELS.astype(np.int8)),
    metric("labels as floats", PROBS, LABELS.astype(float)),
    metric("labels (N, 1)", PROBS, LABELS[:, None], TRUTH, r"^(?!.*argmax)"),  # argmax(1) would make all of them 0
    metric("one-hot labels", PROBS, ONE_HOT, TRUTH, r"argmax"),
    metric("soft labels", PROBS, 0.9 * ONE_HOT + 0.02, TRUTH, r"argmax"),
    metric("labels True and False", PROBS2, LABELS2 == 1, TRUTH2, r"class numbers"),
    metric("labels as names", PROBS, np.array(names_of(LABELS)), None, r"class numbers"),
    metric("labels from 1", PROBS, LABELS + 1, None, RANGE),
    metric("labels −1", PROBS, np.where(SOME, -1, LABELS), None, RANGE),
    metric("labels with NaN", PROBS, np.where(SOME, np.nan, LABELS), None, r"NaN"),
    metric("labels of another length", PROBS, LABELS[:-1], None, r"shape"),
    metric("logits", LOGITS, LABELS, None, r"softmax"),
    metric("log-probabilities", np.log(PROBS), LABELS, TRUTH, r"softmax|exp"),
    metric("per cent", 100 * PROBS, LABELS, TRUTH, r"sum to 1"),
    metric(
        "rounded to 2 digits",
        np.round(PROBS, 2),
        LABELS,
        Truth(np.round(PROBS, 2) / np.round(PROBS, 2).sum(1, keepdims=True), LABELS),
        r"divide|normali|round",
    ),
    metric("rounded to 3 digits", np.round(PROBS, 3), tol=2e-3),
    metric("transposed", PROBS.T, LABELS, None, r"shape"),
    metric("(S, N, C)", softmax(DRAWN), LABELS, DRAWN_TRUTH, r"average the samples"),
    metric("(N,) of the positive class", PROBS2[:, 1], LABELS2, TRUTH2),
    metric("(N, 1) of the positive class", PROBS2[:, 1:], LABELS2, TRUTH2),
    metric("one probability, real-valued targets", PROBS2[:, 1], PROBS2[:, 0], None, r"regression"),
    metric("NaN in a row", np.where(SOME[:, None], np.nan, PROBS), LABELS, None, r"NaN \(row 3\)"),
    metric(
        "masked rows",
        np.ma.masked_array(PROBS, np.repeat(SOME[:, None], CLASSES, 1)),
        LABELS,
        Truth(PROBS[~SOME], LABELS[~SOME]),
        r"mask",
    ),
    metric("Python objects", PROBS.astype(object), LABELS, TRUTH, r"real numbers"),
    metric(
        "hard predictions, bool",
        np.eye(5, dtype=bool)[PROBS.argmax(1)],
        LABELS,
        Truth(np.eye(5)[PROBS.argmax(1)], LABELS),
    ),
    metric("0 rows", PROBS[:0], LABELS[:0], None, r"no samples"),
    PythonCase(
        "metrics.detection: lists",
        lambda: metrics.detection(entropies(PROBS), entropies(softmax(OUTSIDE)))["auroc"],
        auroc(entropies(PROBS), entropies(softmax(OUTSIDE))),
    ),
    PythonCase(
        "metrics.detection: probabilities instead of entropies",
        lambda: metrics.detection(PROBS, softmax(OUTSIDE))["auroc"],
        None,
        r"entrop|shape",
    ),
    PythonCase(
        "metrics.detection: NaN", lambda: metrics.detection([0.1, math.nan], [0.5])["auroc"], None, r"NaN|finite"
    ),
    PythonCase(
        "metrics.detection: nothing outside",
        lambda: metrics.detection([0.1, 0.2], [])["auroc"],
        None,
        r"empty|no |least",
    ),
    # ---- Predictions
    predictions("from_logits of tensors", lambda: avuc.Predictions.from_logits(T_LOGITS, T_LABELS)),
    predictions("from_logits of arrays", lambda: avuc.Predictions.from_logits(LOGITS, LABELS), r"tensor"),
    predictions(
        "from_logits of lists", lambda: avuc.Predictions.from_logits(LOGITS.tolist(), LABELS.tolist()), r"tensor"
    ),
    predictions(
        "from_logits of half precision", lambda: avuc.Predictions.from_logits(T_LOGITS.half(), T_LABELS), tol=3e-3
    ),
    predictions(
        "from_logits with −inf",
        lambda: avuc.Predictions.from_logits(torch.tensor(MASKED), T_LABELS),
        right=Truth(softmax(MASKED), LABELS),
    ),
    predictions(
        "from_logits with NaN",
        lambda: avuc.Predictions.from_logits(torch.where(T_LABELS[:, None] == 1, math.nan, T_LOGITS), T_LABELS),
        r"NaN",
        None,
    ),
    predictions(
        "from_logits of whole numbers",
        lambda: avuc.Predictions.from_logits(T_LOGITS.round().long(), T_LABELS),
        r"floating",
        Truth(softmax(np.round(LOGITS)), LABELS),
    ),
    predictions("from_logits of probabilities", lambda: avuc.Predictions.from_logits(T_PROBS, T_LABELS), r"probabilit"),
    predictions("from_logits near −1e7, float64", lambda: avuc.Predictions.from_logits(T_LOGITS - 1e7, T_LABELS)),
    predictions("from_logits transposed", lambda: avuc.Predictions.from_logits(T_LOGITS.T, T_LABELS), r"shape", None),
    predictions(
        "from_samples (S, N, C)",
        lambda: avuc.Predictions.from_samples(torch.tensor(DRAWN), T_LABELS),
        right=DRAWN_TRUTH,
    ),
    predictions(
        "from_samples (N, S, C)",
        lambda: avuc.Predictions.from_samples(torch.tensor(DRAWN).transpose(0, 1), T_LABELS),
        r"shape",
        None,
    ),
    predictions("from_samples (N, C)", lambda: avuc.Predictions.from_samples(T_LOGITS, T_LABELS), r"\(S, N, C\)"),
    predictions("arrays", lambda: P(PROBS, LABELS), r"tensor"),
    predictions("labels as a list", lambda: P(T_PROBS, LABELS.tolist()), r"tensor"),
    predictions("labels as floats", lambda: P(T_PROBS, T_LABELS.float()), r"class numbers"),
    predictions("labels (N, 1)", lambda: P(T_PROBS, T_LABELS[:, None]), r"shape"),
    predictions("one-hot labels", lambda: P(T_PROBS, torch.tensor(ONE_HOT)), r"shape"),
    predictions("labels as uint8", lambda: P(T_PROBS, T_LABELS.to(torch.uint8))),
    predictions(
        "labels True and False", lambda: P(torch.tensor(PROBS2), torch.tensor(LABELS2 == 1)), r"class numbers", TRUTH2
    ),
    predictions("labels from 1", lambda: P(T_PROBS, T_LABELS + 1), r"0…4", None),
    predictions("labels −1", lambda: P(T_PROBS, torch.where(torch.tensor(SOME), -1, T_LABELS)), RANGE, None),
    predictions("logits as probabilities", lambda: P(T_LOGITS, T_LABELS), r"softmax|from_logits", None),
    predictions("per cent", lambda: P(100 * T_PROBS, T_LABELS), r"sum"),
    predictions("a tensor with a gradient", lambda: P(T_PROBS.clone().requires_grad_(), T_LABELS)),
    PythonCase(
        "Predictions: logits as probabilities, entropy alone",
        lambda: float(P(T_LOGITS, T_LABELS).entropy.mean()),
        None,
        r"softmax|from_logits|sum",
        room="predictions",
    ),
    PythonCase(
        "Predictions: NaN, accuracy alone",
        lambda: float(P(T_PROBS * math.nan, T_LABELS).correct.float().mean()),
        None,
        r"NaN|finite",
        room="predictions",
    ),
]
