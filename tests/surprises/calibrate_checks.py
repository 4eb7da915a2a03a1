"""What a fitted calibrator and a transformed file must be."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .own_figures import best_temperature, figures, softmax
from .table import (
    CLASSES,
    LABELS,
    LOGITS,
    NAMES,
    data,
)

Check = Callable[[Path, dict[str, Any]], list[str]]
HOT = np.round(2.5 * LOGITS, 4)  # too sure of itself
TEST, TEST_LABELS = data(300, CLASSES, seed=31)
BEST = best_temperature(HOT, LABELS)
VOTES = np.array([np.random.default_rng(i).multinomial(20, softmax(z)) for i, z in enumerate(HOT / 2)]) / 20
SEEN = LABELS != 3
SHUFFLED = [3, 0, 4, 2, 1]


def temperature(right: float = BEST, within: float = 2e-3) -> Check:
    def check(_: Path, document: dict[str, Any]) -> list[str]:
        found = document["temperature"]
        return [] if math.isclose(found, right, rel_tol=within) else [f"T = {found:.5g} instead of {right:.5g}"]

    return check


def before(probs: np.ndarray, labels: np.ndarray) -> Check:
    def check(_: Path, document: dict[str, Any]) -> list[str]:
        return [
            f"before: {name} {document['before'][name]:.5g} instead of {value:.5g}"
            for name, value in figures(probs, labels).items()
            if name in document["before"] and not math.isclose(document["before"][name], value, abs_tol=5e-4)
        ]

    return check


def no_worse(folder: Path, document: dict[str, Any]) -> list[str]:
    """A calibrator does not make held-out probabilities worse, or the document warns that it does."""
    if any("worse" in warning for warning in document["warnings"]):
        return []
    found = []
    for name, slack in (("nll", 1e-3), ("brier", 2e-3)):
        if not document["after"][name] <= document["before"][name] + slack:
            found.append(f"{name} {document['before'][name]:.4g} becomes {document['after'][name]:.4g}")
    if document["after"]["accuracy"] < document["before"]["accuracy"] - 0.02:
        found.append("accuracy falls")
    return found


def finite(_: Path, document: dict[str, Any]) -> list[str]:
    needed = ("accuracy", "nll", "brier", "ece", "mean_entropy")
    return [f"after: {name} is null" for name in needed if document["after"][name] is None]


def warned(pattern: str) -> Check:
    def check(_: Path, document: dict[str, Any]) -> list[str]:
        said = " ".join(document["warnings"])
        return [] if any(word in said for word in pattern.split("|")) else [f"no warning about {pattern}: {said!r}"]

    return check


def transformed(right: np.ndarray, key: str = "logits", within: float = 2e-3) -> Check:
    """The transformed archive holds these probabilities (after a softmax where it holds logits)."""

    def check(folder: Path, _: dict[str, Any]) -> list[str]:
        scores = np.load(folder / "out.npz")[key].astype(np.float64)
        probs = softmax(scores) if key == "logits" else scores
        worst = float(np.abs(probs - right).max()) if probs.shape == right.shape else math.inf
        return [] if worst < within else [f"the transformed probabilities are off by {worst:.3g}"]

    return check


def transformed_table(right: dict[str, np.ndarray], kept: dict[str, list[str]] | None = None) -> Check:
    def check(folder: Path, _: dict[str, Any]) -> list[str]:
        with (folder / "out.csv").open(encoding="utf-8-sig", newline="") as lines_:
            rows = list(csv.DictReader(lines_))
        found = []
        for name, values in right.items():
            got = np.array([float(row[name]) for row in rows])
            if not np.allclose(got, values, atol=2e-3):
                found.append(f"column {name} is off by {np.abs(got - values).max():.3g}")
        for name, texts in (kept or {}).items():
            if [row[name] for row in rows] != texts:
                found.append(f"column {name} was changed")
        return found

    return check


def every(*checks: Check) -> Check:
    return lambda folder, document: [problem for check in checks for problem in check(folder, document)]


def by_name(folder: Path, document: dict[str, Any]) -> list[str]:
    """Vector scaling of the test table: class k of the fit acts on the column of the same name."""
    learned = json.loads((folder / "cal.json").read_text(encoding="utf-8"))["learned"]
    scale, shift = np.array(learned["scale"]), np.array(learned["bias"])
    right = np.log(softmax(TEST)) * scale + shift
    with (folder / "out.csv").open(encoding="utf-8", newline="") as lines_:
        rows = list(csv.DictReader(lines_))
    got = np.array([[float(row[f"logits_{name}"]) for name in NAMES] for row in rows])
    worst = float(np.abs(softmax(got) - softmax(right)).max())
    return [] if worst < 2e-3 else [f"the transformed probabilities are off by {worst:.3g}: classes were mixed up"]


def accuracy_stays(folder: Path, document: dict[str, Any]) -> list[str]:
    scores = np.load(folder / "out.npz")["logits"]
    accuracy, first = (float((z.argmax(1) == TEST_LABELS).mean()) for z in (scores, TEST))
    if not np.isfinite(scores).all():
        return ["scores that are not finite"]
    if accuracy < first - 0.02 and not document["warnings"]:
        return [f"test accuracy falls from {first:.3f} to {accuracy:.3f} without a warning"]
    return []
