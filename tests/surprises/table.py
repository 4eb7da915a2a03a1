"""What a case is, the data behind the cases, and how files are written."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .own_figures import figures, softmax

ROWS, CLASSES, DRAWS = 400, 5, 6
NAMES = ("cat", "dog", "bird", "fish", "horse")  # in column order, which is not alphabetical
ALL = ("accuracy", "nll", "brier", "ece", "uce", "mean_entropy", "mean_confidence")


@dataclass(frozen=True, eq=False)
class Truth:
    """The data a file stands for: what its figures must be, however it was written."""

    probs: np.ndarray
    labels: np.ndarray
    samples: int = 1

    @cached_property
    def figures(self) -> dict[str, float]:
        return figures(self.probs, self.labels)


@dataclass(frozen=True, eq=False)
class Case:
    """One file as users have it, and what `avuc evaluate` must make of it.

    make     writes the file or files into a folder and returns the one to evaluate
    truth    the data behind it; None where no figure can be right, so that only a refusal will do
    remedy   a pattern that the one line of a refusal must contain; None where a refusal would be a defect
    follow   flags to try after a refusal: where the line names one (of --kind, its value too), adding these words must
             give the right figures; so must an example in the line
    words    words of the command line; {folder} is the folder
    within   tolerance of the figures: relative, and absolute below 1
    only     the figures that are compared
    says     a pattern that the output must contain beside the figures
    room     the part of the package that answers
    """

    name: str
    make: Callable[[Path], Path]
    truth: Truth | None
    remedy: str | None = None
    follow: tuple[tuple[str, ...], ...] = ()
    words: tuple[str, ...] = ()
    within: float = 2e-4
    only: tuple[str, ...] = ALL
    says: str | None = None
    room: str = "scores"
    also: dict[str, Any] = field(default_factory=dict)  # further entries of the document, for example detection


@dataclass(frozen=True, eq=False)
class CalibrateCase:
    """make writes the files and returns the words after `avuc calibrate`; check lists what is wrong with the results;
    remedy is the pattern of a refusal, None where an answer is due."""

    name: str
    make: Callable[[Path], list[str]]
    check: Callable[[Path, dict[str, Any]], list[str]]
    remedy: str | None = None
    room: str = "calibration"


@dataclass(frozen=True, eq=False)
class PythonCase:
    """call returns a number or figures, or raises InputError with the pattern `refused`; None: an answer is due.
    right is None where only a refusal will do."""

    name: str
    call: Callable[[], Any]
    right: Any = None
    refused: str | None = None
    within: float = 1e-4
    room: str = "metrics"


def data(rows: int = ROWS, classes: int = CLASSES, *, seed: int = 0, margin: float = 2.3) -> tuple[np.ndarray, ...]:
    """Logits of a model that is right in about 85 % of the rows, and labels of unequal frequency."""
    rng = np.random.default_rng(seed)
    weights = np.linspace(2, 1, classes)
    labels = rng.choice(classes, rows, p=weights / weights.sum())
    logits = rng.normal(size=(rows, classes))
    logits[np.arange(rows), labels] += margin
    return np.round(1.5 * logits, 4), labels  # few digits: every format holds them


LOGITS, LABELS = data()
PROBS = softmax(LOGITS)
TRUTH = Truth(PROBS, LABELS)
LOGITS2, LABELS2 = data(classes=2, seed=1, margin=1.8)
PROBS2 = softmax(LOGITS2)
TRUTH2 = Truth(PROBS2, LABELS2)
LOGITS12, LABELS12 = data(classes=12, seed=2, margin=3.2)
PROBS12 = softmax(LOGITS12)
TRUTH12 = Truth(PROBS12, LABELS12)
_noise = np.random.default_rng(3).normal(size=(DRAWS, ROWS, CLASSES))
DRAWN = np.round(LOGITS + 0.8 * _noise, 4)  # (S, N, C) logits of draws
DRAWN_PROBS = softmax(DRAWN)
DRAWN_TRUTH = Truth(DRAWN_PROBS.mean(0), LABELS, DRAWS)
OUTSIDE = np.round(np.random.default_rng(4).normal(size=(300, CLASSES)), 4)
SPLIT = np.random.default_rng(5).permutation(ROWS)
ONE_HOT = np.eye(CLASSES, dtype=np.int64)[LABELS]


def subset(keep: np.ndarray) -> Truth:
    return Truth(PROBS[keep], LABELS[keep])


def names_of(labels: Iterable[int]) -> list[str]:
    return [NAMES[int(k)] for k in labels]


# ---- writing


def npz(**arrays: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.savez(folder / "scores.npz", **arrays)
        return folder / "scores.npz"

    return make


def npy(**arrays: Any) -> Callable[[Path], Path]:
    """One file per name; the first is evaluated."""

    def make(folder: Path) -> Path:
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", np.asarray(values))
        return folder / f"{next(iter(arrays))}.npy"

    return make


def text(content: str | bytes, name: str = "scores.csv") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    return make


def lines(
    columns: Sequence[tuple[str, Sequence[Any]]], *, comma: str = ",", digits: str = ".9g", end: str = "\n", **how: Any
) -> str:
    """A table as text, one (header, values) pair per column; floats with `digits`."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=comma, lineterminator=end, **how)
    writer.writerow([name for name, _ in columns])
    for row in zip(*(values for _, values in columns), strict=True):
        writer.writerow([format(v, digits) if isinstance(v, float) else v for v in row])
    return out.getvalue()


def columns(values: np.ndarray, headers: Iterable[str]) -> list[tuple[str, list[float]]]:
    """One column per class."""
    return [(name, [float(v) for v in values[:, k]]) for k, name in enumerate(headers)]


def numbered(values: np.ndarray, prefix: str, first: int = 0) -> list[tuple[str, list[float]]]:
    return columns(values, [f"{prefix}{k + first}" for k in range(values.shape[1])])


def label(values: Iterable[Any] = LABELS, name: str = "label") -> tuple[str, list[Any]]:
    return name, [v if isinstance(v, str) else int(v) for v in values]


def several(*makers: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """The files of all; the first is evaluated."""

    def make(folder: Path) -> Path:
        first, *_ = [maker(folder) for maker in makers]
        return first

    return make
