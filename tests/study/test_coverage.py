"""Conformal sets in a study: what is stored is what a loop over rows counts, and nothing where nothing can be said."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from avuc.conformal import ConformalClassifier
from avuc.conformal.inputs import class_rows
from avuc.predictions import Predictions
from avuc.study.evaluation.coverage import MOST_CLASSES, conformal_curve
from avuc.study.grid import CLEAN, VALIDATION, TestSet

FOG = TestSet("fog", 3)


def some(rows: int, classes: int = 5, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator)
    labels = torch.multinomial((logits / 1.5).softmax(1), 1, generator=generator)[:, 0]
    return Predictions.from_logits(logits, labels)


def slow_scores(method: str, row: np.ndarray, uniform: float) -> list[float]:
    """The score of every class by its formula, with the defaults of RAPS."""
    order = sorted(range(len(row)), key=lambda k: (-row[k], k))
    scores, total = [0.0] * len(row), 0.0
    for place, k in enumerate(order, start=1):
        total += row[k]
        penalty = 0.01 * max(0, place - 5) if method == "raps" else 0.0
        scores[k] = 1 - row[k] if method == "threshold" else total - uniform * row[k] + penalty
    return scores


@pytest.mark.parametrize("method", ["threshold", "aps", "raps"])
def test_counts_are_those_of_a_loop(method: str) -> None:
    fitted_on, new = some(200), some(150, seed=1)
    kept = conformal_curve(fitted_on, VALIDATION, None, ("a", "b", "c", "d", "e"))["conformal"]
    assert kept["classes"] == ["a", "b", "c", "d", "e"]
    found = conformal_curve(new, FOG, kept["fits"])["conformal"]
    # U is 0 of the threshold; the classifier's own numbers, one stream for the fit and one for new rows
    numbers = ConformalClassifier(method)
    draws = [
        numbers._uniform(class_rows(fitted_on), (0, 0), fitted_on.labels.numpy()),
        numbers._uniform(class_rows(new), (0, 1)),
    ]
    labels = fitted_on.labels.tolist()
    probs = fitted_on.probs.double().numpy()
    scores = sorted(slow_scores(method, row, u)[y] for row, u, y in zip(probs, draws[0], labels, strict=True))
    limit = scores[math.ceil(0.9 * 201) - 1]
    covered, sizes, rows = [0] * 5, [0] * 5, [0] * 5
    for row, u, y in zip(new.probs.double().numpy(), draws[1], new.labels.tolist(), strict=True):
        chosen = [k for k, score in enumerate(slow_scores(method, row, u)) if score <= limit + 1e-12]
        covered[y] += y in chosen
        sizes[y] += len(chosen)
        rows[y] += 1
    one = found["methods"][method]
    assert (found["wanted"], found["rows"], found["class_rows"]) == (0.9, 150, rows)
    assert (one["class_covered"], one["class_size"]) == (covered, sizes)
    assert (one["covered"], one["size"]) == (sum(covered), sum(sizes))
    check = ConformalClassifier.from_json(kept["fits"][method]).check(new)
    assert (one["low"] / 150, one["high"] / 150, one["covered"] / 150) == (check.low, check.high, check.coverage)


def test_nothing_is_stored_where_nothing_can_be_said() -> None:
    fits = conformal_curve(some(50), VALIDATION, None)["conformal"]["fits"]
    outside = Predictions(some(9).probs, torch.full((9,), -1))
    assert conformal_curve(outside, TestSet("ood:photographs"), fits) == {}
    assert conformal_curve(some(9), FOG, None) == {}  # validated by an older version


def test_pixels_have_no_interval() -> None:
    fits = conformal_curve(some(50), VALIDATION, None)["conformal"]["fits"]
    dense = Predictions.from_logits(torch.randn(2, 5, 3, 3), torch.zeros(2, 3, 3, dtype=torch.int64))
    found = conformal_curve(dense, CLEAN, fits)["conformal"]
    assert found["rows"] == 18
    assert all(one["low"] is one["high"] is None for one in found["methods"].values())


def test_many_classes_keep_the_store_small() -> None:
    classes = MOST_CLASSES + 1
    fits = conformal_curve(some(300, classes), VALIDATION, None)["conformal"]["fits"]
    clean, fog = (conformal_curve(some(200, classes, 1), each, fits)["conformal"] for each in (CLEAN, FOG))
    assert len(clean["class_rows"]) == len(clean["methods"]["aps"]["class_covered"]) == classes
    assert "class_rows" not in fog
    assert set(fog["methods"]["aps"]) == {"covered", "size", "low", "high"}
    assert sum(clean["methods"]["aps"]["class_covered"]) == fog["methods"]["aps"]["covered"]
