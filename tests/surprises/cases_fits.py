"""Calibrators and losses in Python, given what scripts have at hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch

import avuc

from .own_figures import avuc as own_avuc
from .own_figures import best_temperature, entropies, figures, softmax
from .table import (
    CLASSES,
    DRAWN,
    LABELS,
    LOGITS,
    ONE_HOT,
    PROBS,
    ROWS,
    PythonCase,
    names_of,
)

T_PROBS, T_LOGITS, T_LABELS = torch.tensor(PROBS), torch.tensor(LOGITS), torch.tensor(LABELS)
BEST = best_temperature(LOGITS, LABELS)
MASKED = np.where(ONE_HOT[:, [1, 2, 3, 4, 0]] == 1, -np.inf, LOGITS)
SOME = np.arange(ROWS) % 10 == 3
THRESHOLD = 0.7
# one logit z is two classes with logits [0, z]
ONE_LOGIT = own_avuc(softmax(np.stack((np.zeros(ROWS), LOGITS[:, 0]), axis=1)), (LABELS == 0).astype(int), THRESHOLD)
LOSS = own_avuc(PROBS, LABELS, THRESHOLD)
RANGE = r"0 ?… ?4|0…|0 … "


def fitted(
    name: str,
    logits: Any,
    labels: Any = LABELS,
    right: float | None = BEST,
    refused: str | None = None,
    tol: float = 1e-3,
) -> PythonCase:
    return PythonCase(
        f"TemperatureScaling: {name}",
        lambda: avuc.TemperatureScaling().fit(logits, labels).temperature_,
        right,
        refused,
        tol,
        "calibration",
    )


def applied(name: str, logits: Any, right: Any = None, refused: str | None = None) -> PythonCase:
    def call() -> float:
        out = avuc.TemperatureScaling().fit(LOGITS, LABELS).transform(logits)
        return float(figures(softmax(np.asarray(out)), LABELS)["nll"])

    return PythonCase(f"transform: {name}", call, right, refused, 1e-3, "calibration")


def loss(
    name: str,
    logits: Any,
    labels: Any,
    right: float | None = LOSS,
    refused: str | None = None,
    tol: float = 1e-4,
    **more: Any,
) -> PythonCase:
    return PythonCase(
        f"avuc_loss: {name}",
        lambda: float(avuc.avuc_loss(logits, labels, THRESHOLD, variant="paper", **more)),
        right,
        refused,
        tol,
        "losses",
    )


def module(labels: torch.Tensor, **more: Any) -> float:
    """AvUCLoss after one epoch of warm-up on the same batch."""
    criterion = avuc.AvUCLoss(beta=1.0, warmup_epochs=1, variant="paper", **more)
    criterion(T_LOGITS, labels)
    criterion.epoch_end()
    return float(criterion(T_LOGITS, labels))


def own_module(keep: np.ndarray) -> float:
    u, right = np.array(entropies(PROBS[keep])), PROBS[keep].argmax(1) == LABELS[keep]
    return own_avuc(PROBS[keep], LABELS[keep], float((u[right].mean() + u[~right].mean()) / 2))


CASES = [
    # ---- calibrators
    fitted("arrays", LOGITS),
    fitted("lists", LOGITS.tolist(), LABELS.tolist()),
    fitted("tensors", T_LOGITS, T_LABELS),
    fitted("a data frame and a series", pd.DataFrame(LOGITS), pd.Series(LABELS)),
    fitted("float16", LOGITS.astype(np.float16), tol=5e-3),
    fitted("log-probabilities", np.log(PROBS)),
    fitted("whole logits", np.round(LOGITS).astype(int), right=best_temperature(np.round(LOGITS), LABELS)),
    fitted("near −1e7, float64", LOGITS - 1e7),
    fitted(
        "−inf for impossible classes", MASKED, right=best_temperature(np.where(np.isinf(MASKED), -1e9, MASKED), LABELS)
    ),
    fitted("labels as floats", LOGITS, LABELS.astype(float)),
    fitted("labels (N, 1)", LOGITS, LABELS[:, None], refused=r"one class number"),
    fitted("one-hot labels", LOGITS, ONE_HOT, refused=r"argmax"),
    fitted("labels from 1", LOGITS, LABELS + 1, None, RANGE),
    fitted("labels −1", LOGITS, np.where(SOME, -1, LABELS), None, RANGE),
    fitted("labels as names", LOGITS, names_of(LABELS), None, r"number"),
    fitted("labels with NaN", LOGITS, np.where(SOME, np.nan, LABELS), None, r"NaN"),
    fitted("probabilities", PROBS, refused=r"logits_from_probs"),
    fitted("probabilities rounded to 2 digits", np.round(PROBS, 2), refused=r"logits_from_probs|probabilit", tol=2e-2),
    fitted("per cent", 100 * PROBS, right=BEST, refused=r"per ?cent|100|probabilit"),
    fitted("transposed", LOGITS.T, LABELS, None, r"rows"),
    fitted("(N, S, C)", DRAWN.transpose(1, 0, 2), LABELS, None, r"rows"),
    fitted("NaN", np.where(SOME[:, None], np.nan, LOGITS), LABELS, None, r"NaN"),
    fitted("(N,) margins", LOGITS[:, 0], LABELS, None, r"one column for each class"),
    fitted("Python objects", LOGITS.astype(object), LABELS, BEST, r"number"),
    fitted("numbers as text", LOGITS.astype(str), LABELS, BEST, r"number"),
    fitted(
        "masked rows",
        np.ma.masked_array(LOGITS, np.repeat(SOME[:, None], CLASSES, 1)),
        LABELS,
        best_temperature(LOGITS[~SOME], LABELS[~SOME]),
        r"mask",
    ),
    applied("arrays", LOGITS, figures(softmax(LOGITS / BEST), LABELS)["nll"]),
    applied("lists", LOGITS.tolist(), figures(softmax(LOGITS / BEST), LABELS)["nll"]),
    applied("log-probabilities", np.log(PROBS), figures(softmax(LOGITS / BEST), LABELS)["nll"]),
    applied("probabilities", PROBS, None, r"logits_from_probs"),
    applied("other classes", LOGITS[:, :4], None, r"fitted on 5 classes"),
    PythonCase(
        "logits_from_probs: per cent",
        lambda: float(avuc.calibration.logits_from_probs(100 * PROBS).sum()),
        None,
        r"sum to 1",
        room="calibration",
    ),
    PythonCase(
        "logits_from_probs: logits",
        lambda: float(avuc.calibration.logits_from_probs(LOGITS).sum()),
        None,
        r"sum to 1",
        room="calibration",
    ),
    # ---- losses
    loss("tensors", T_LOGITS, T_LABELS),
    loss("half precision", T_LOGITS.half(), T_LABELS, tol=5e-3),
    loss("labels as int32", T_LOGITS, T_LABELS.int()),
    loss("labels as uint8", T_LOGITS, T_LABELS.to(torch.uint8)),
    loss("labels as floats", T_LOGITS, T_LABELS.float(), refused=r"integers"),
    loss("labels (N, 1)", T_LOGITS, T_LABELS[:, None], refused=r"labels"),
    loss("one-hot labels", T_LOGITS, torch.tensor(ONE_HOT), refused=r"labels"),
    loss("labels from 1", T_LOGITS, T_LABELS + 1, None, r"0 … 4|0…4|range|class"),
    loss(
        "labels −1, not ignored",
        T_LOGITS,
        torch.where(torch.tensor(SOME), -1, T_LABELS),
        None,
        r"ignore_index|range|class",
    ),
    loss(
        "labels −1, ignored",
        T_LOGITS,
        torch.where(torch.tensor(SOME), -1, T_LABELS),
        own_avuc(PROBS[~SOME], LABELS[~SOME], THRESHOLD),
        ignore_index=-1,
    ),
    loss(
        "labels −100, ignored",
        T_LOGITS,
        torch.where(torch.tensor(SOME), -100, T_LABELS),
        own_avuc(PROBS[~SOME], LABELS[~SOME], THRESHOLD),
    ),
    loss("arrays", LOGITS, LABELS, refused=r"tensor"),
    loss("NaN", torch.where(torch.tensor(SOME)[:, None], math.nan, T_LOGITS), T_LABELS, None, r"NaN"),
    loss("transposed", T_LOGITS.T, T_LABELS, None, r"\(N, C\)"),
    loss("(N, 1) of a sigmoid", T_LOGITS[:, :1], (T_LABELS == 0).long(), ONE_LOGIT),
    loss("(N,) of a sigmoid", T_LOGITS[:, 0], T_LABELS == 0, ONE_LOGIT),
    PythonCase(
        "AvUCLoss: one epoch of warm-up", lambda: module(T_LABELS), own_module(np.ones(ROWS, bool)), room="losses"
    ),
    PythonCase(
        "AvUCLoss: labels −1, ignored",
        lambda: module(torch.where(torch.tensor(SOME), -1, T_LABELS), ignore_index=-1),
        own_module(~SOME),
        room="losses",
    ),
    PythonCase(
        "AvUCLoss: labels −1, not ignored",
        lambda: module(torch.where(torch.tensor(SOME), -1, T_LABELS)),
        None,
        r"ignore_index|range|class",
        room="losses",
    ),
    PythonCase("AvUCLoss: labels from 1", lambda: module(T_LABELS + 1), None, r"0 … 4|0…4|range|class", room="losses"),
    PythonCase("AvUCLoss: one-hot labels", lambda: module(torch.tensor(ONE_HOT)), None, r"labels", room="losses"),
]
