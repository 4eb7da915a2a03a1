"""Axes in another order, axes of length 1, memory orders and element types of arrays."""

from __future__ import annotations

import numpy as np

from .own_figures import softmax
from .table import (
    CLASSES,
    DRAWN,
    DRAWN_PROBS,
    DRAWN_TRUTH,
    DRAWS,
    LABELS,
    LOGITS,
    PROBS,
    TRUTH,
    Case,
    Truth,
    data,
    npy,
    npz,
)

TRANSPOSE = r"transpos|\.T\b|swap|axes"
AXES = r"transpos|reshape|squeeze|\(N, C\)|\(S, N, C\)"
SQUARE, SQUARE_LABELS = data(20, 20, seed=21, margin=4.5)
FEW = np.random.default_rng(22).normal(size=(20, 20, CLASSES)) * 0.5 + LOGITS[:20]  # S = N
CUBE = np.random.default_rng(23).normal(size=(CLASSES, 400, CLASSES)) * 0.5 + LOGITS  # S = C

DENSE = LOGITS.reshape(4, 10, 10, CLASSES).transpose(0, 3, 1, 2)


def case(name: str, scores: np.ndarray, truth: Truth | None, remedy: str | None = None, **more: object) -> Case:
    key = str(more.pop("key", "logits"))
    labels = more.pop("labels", LABELS)
    return Case(name, npz(**{key: scores, "labels": labels}), truth, remedy, **more)


CASES = [
    case("transposed logits (C, N)", LOGITS.T, TRUTH, TRANSPOSE),
    case("transposed probabilities (C, N)", PROBS.T, TRUTH, TRANSPOSE, key="probs"),
    case("transposed probabilities (C, N), named predictions", PROBS.T, TRUTH, TRANSPOSE, key="predictions"),
    case(
        "transposed probabilities, as many rows as classes",
        softmax(SQUARE).T,
        Truth(softmax(SQUARE), SQUARE_LABELS),
        TRANSPOSE,
        key="probs",
        labels=SQUARE_LABELS,
    ),
    case(
        "transposed probabilities, as many rows as classes, named scores",
        softmax(SQUARE).T,
        Truth(softmax(SQUARE), SQUARE_LABELS),
        r"--kind|transpos",
        key="scores",
        labels=SQUARE_LABELS,
    ),
    case("as many rows as classes", SQUARE, Truth(softmax(SQUARE), SQUARE_LABELS), labels=SQUARE_LABELS),
    case("(N, 1, C)", LOGITS[:, None], TRUTH, AXES),
    case("(1, N, C)", LOGITS[None], TRUTH),
    case("(N, C, 1)", LOGITS[..., None], TRUTH, AXES),
    case("(N, C, 1, 1)", LOGITS[..., None, None], TRUTH, AXES),
    case("(S, N, C, 1, 1)", DRAWN[..., None, None], DRAWN_TRUTH, AXES),
    case("draws in the middle (N, S, C)", DRAWN.transpose(1, 0, 2), DRAWN_TRUTH, r"1, 0, 2|\(S, N, C\)"),
    case("draws last (N, C, S)", DRAWN.transpose(1, 2, 0), DRAWN_TRUTH, r"2, 0, 1|\(S, N, C\)"),
    case(
        "draws last (N, C, S), probabilities",
        DRAWN_PROBS.transpose(1, 2, 0),
        DRAWN_TRUTH,
        r"2, 0, 1|\(S, N, C\)",
        key="probs",
    ),
    case(
        "draws last (N, C, S), S = C",
        CUBE.transpose(1, 2, 0),
        Truth(softmax(CUBE).mean(0), LABELS, CLASSES),
        r"2, 0, 1|\(S, N, C\)",
    ),
    case("as many draws as classes", CUBE, Truth(softmax(CUBE).mean(0), LABELS, CLASSES)),
    case("as many draws as rows", FEW, Truth(softmax(FEW).mean(0), LABELS[:20], 20), r"S, N, C", labels=LABELS[:20]),
    case("classes before rows (S, C, N)", DRAWN.transpose(0, 2, 1), DRAWN_TRUTH, AXES),
    case("one draw axis of length 1 (1, N, C), probabilities", PROBS[None], TRUTH, key="probs"),
    case("dense predictions (N, C, H, W)", DENSE, TRUTH, labels=LABELS.reshape(4, 10, 10)),
    case(
        "dense predictions (N, H, W, C)",
        DENSE.transpose(0, 2, 3, 1),
        TRUTH,
        r"--class-dim 3",
        follow=(("--class-dim", "3"), ("--class-dim", "-1")),
        labels=LABELS.reshape(4, 10, 10),
    ),
    case(
        "tokens (N, T, C), as many classes as tokens",
        LOGITS.reshape(80, 5, 5),
        TRUTH,
        r"--class-dim 1 or --class-dim 2",
        follow=(("--class-dim", "2"),),
        labels=LABELS.reshape(80, 5),
    ),
    case(
        "dense predictions with the label 255 for borders",
        np.concatenate([DENSE, DENSE[:1]]),
        TRUTH,
        r"--ignore-index 255",
        follow=(("--ignore-index", "255"),),
        labels=np.concatenate([LABELS, np.full(100, 255)]).reshape(5, 10, 10),
    ),
    case(
        "dense draws (S, N, C, L)",
        DRAWN.reshape(6, 40, 10, 5).transpose(0, 1, 3, 2),
        DRAWN_TRUTH,
        labels=LABELS.reshape(40, 10),
    ),
    case("flattened scores", LOGITS.ravel(), TRUTH, r"column per class|reshape"),
    # ---- memory
    case("Fortran order", np.asfortranarray(LOGITS), TRUTH),
    case("Fortran order of draws", np.asfortranarray(DRAWN), DRAWN_TRUTH),
    case("big-endian", LOGITS.astype(">f8"), TRUTH),
    case("big-endian labels", LOGITS, TRUTH, labels=LABELS.astype(">i4")),
    case("extended precision", LOGITS.astype(np.longdouble), TRUTH),
    case("complex numbers", LOGITS.astype(complex), None, r"float32"),
    case("Python objects", LOGITS.astype(object), None, r"plain numbers"),
    Case(
        "records with a field for each class",
        npy(logits=np.array([tuple(row) for row in LOGITS], [(f"c{k}", "f8") for k in range(CLASSES)]), labels=LABELS),
        TRUTH,
        r"plain|unstructured|float32",
    ),
    case("numbers as text", LOGITS.astype(str), TRUTH, r"float32"),
]
assert DRAWS != CLASSES
