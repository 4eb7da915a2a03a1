"""`avuc evaluate FILE --ood FILE`: a second file in another order, of another kind, with labels of other classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import avuc

from .own_figures import auroc, entropies, softmax
from .table import (
    CLASSES,
    DRAWN,
    LABELS,
    LOGITS,
    NAMES,
    OUTSIDE,
    PROBS,
    TRUTH,
    Case,
    columns,
    label,
    lines,
    npz,
    numbered,
    several,
    text,
)

SHARE = softmax(OUTSIDE)
RIGHT = {"detection.auroc": auroc(entropies(PROBS), entropies(SHARE))}
OTHERS = np.arange(len(OUTSIDE)) % 17  # labels of the other data's own classes
FIRST = npz(logits=LOGITS, labels=LABELS)
NAMED = text(lines([label(), *columns(PROBS, [f"prob_{name}" for name in NAMES])]))
DRAWS = np.stack([OUTSIDE + 0.1 * k * DRAWN[k, : len(OUTSIDE)] for k in range(4)])


def archive(**arrays: np.ndarray) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.savez(folder / "other.npz", **arrays)
        return folder / "other.npz"

    return make


def saved(folder: Path) -> Path:
    avuc.Predictions.from_logits(torch.tensor(OUTSIDE)).save(folder / "other.safetensors")
    return folder / "other.safetensors"


def case(name: str, first: object, other: object, remedy: str | None = None, **more: object) -> Case:
    suffix = more.pop("suffix", "npz")
    also = more.pop("also", RIGHT)
    truth = more.pop("truth", TRUTH)
    return Case(
        f"--ood: {name}",
        several(first, other),
        truth,
        remedy,
        words=("--ood", f"{{folder}}/other.{suffix}"),
        also=also,
        **more,
    )


CASES = [
    case("logits beside logits", FIRST, archive(logits=OUTSIDE)),
    case("probabilities beside logits", FIRST, archive(probs=SHARE)),
    case("probabilities named predictions beside logits", FIRST, archive(predictions=SHARE)),
    case("probabilities named logits", FIRST, archive(logits=SHARE), r"--kind"),
    case("per cent", FIRST, archive(predictions=100 * SHARE), r"--kind percent|divide.*100"),
    case("labels of other classes", FIRST, archive(logits=OUTSIDE, labels=OTHERS)),
    case("labels −1", FIRST, archive(logits=OUTSIDE, labels=np.full(len(OUTSIDE), -1))),
    case("what Predictions.save wrote without labels", FIRST, saved, suffix="safetensors"),
    case(
        "labels of other classes in words",
        NAMED,
        text(lines([label("plane" for _ in OUTSIDE), *columns(SHARE, [f"prob_{n}" for n in NAMES])]), "other.csv"),
        suffix="csv",
    ),
    case(
        "columns in another order",
        NAMED,
        text(lines(columns(SHARE[:, ::-1], [f"prob_{n}" for n in reversed(NAMES)])), "other.csv"),
        suffix="csv",
    ),
    case(
        "a .csv without a header",
        FIRST,
        text(lines(numbered(OUTSIDE, "x")).split("\n", 1)[1], "other.csv"),
        r"header",
        suffix="csv",
    ),
    case(
        "a row number beside plain columns",
        FIRST,
        text(lines([("id", range(len(OUTSIDE))), *columns(OUTSIDE, NAMES)]), "other.csv"),
        r"--columns|--scores-key",
        suffix="csv",
    ),
    case(
        "a fold in place of the label",
        FIRST,
        text(lines([("fold", [int(i) for i in OTHERS]), *columns(OUTSIDE, NAMES)]), "other.csv"),
        r"--columns|--scores-key|classes",
        suffix="csv",
    ),
    case(
        "four of five classes and a fold",
        FIRST,
        text(lines([("fold", [int(i) for i in OTHERS]), *columns(OUTSIDE[:, :4], NAMES[:4])]), "other.csv"),
        r"--columns|--scores-key|fold",
        suffix="csv",
        truth=None,
    ),
    case(
        "more classes",
        FIRST,
        archive(logits=np.hstack([OUTSIDE, OUTSIDE])),
        r"come from the same model",
        truth=None,
    ),
    case("transposed", FIRST, archive(logits=OUTSIDE.T), r"classes|transpos"),
    case(
        "draws beside one network",
        FIRST,
        archive(logits=DRAWS),
        also={"detection.auroc": auroc(entropies(PROBS), entropies(softmax(DRAWS).mean(0)))},
    ),
    case("a NaN", FIRST, archive(logits=np.where(OTHERS[:, None] == 3, np.nan, OUTSIDE)), r"row 3", truth=None),
]
assert CLASSES == 5
