"""A model that is right less often than random guesses: its scores and labels probably do not match."""

from __future__ import annotations

import numpy as np
import pytest

from avuc.cli import main
from avuc.evaluation import evaluate
from avuc.report.metric_text import verdict

DOUBT = "random guesses would be"


def model(classes: int, rows: int = 300):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, rows)
    return 2 * rng.normal(size=(rows, classes)) + 4 * np.eye(classes)[labels], labels


def says(scores, labels, replicates: int) -> bool:
    probs = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return any(DOUBT in line for line in verdict(evaluate(probs, labels, replicates=replicates)))


@pytest.mark.parametrize("replicates", [0, 50])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_distances_and_other_orders_are_doubted(classes, replicates):
    scores, labels = model(classes)
    assert says(-scores, labels, replicates)
    assert says(np.roll(scores, 1, axis=1), labels, replicates)
    assert not says(scores, labels, replicates)


def test_guesses_are_not_doubted():
    doubted = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        doubted += says(rng.normal(size=(60, 3)), rng.integers(0, 3, 60), 0)
    assert doubted == 0


@pytest.mark.parametrize("replicates", [0, 50])
def test_a_sure_model_that_is_right_as_often_as_guesses_is_doubted(replicates):
    """Classes in the order of the alphabet beside scores in another order: 28 % were right, of four classes."""
    scores, labels = model(4, 600)
    assert says(3 * scores[:, [1, 0, 3, 2]] + 3 * np.random.default_rng(1).normal(size=(600, 4)), labels, replicates)
    other = np.array([3, 1, 0, 2])[labels]  # one class of four has its own scores
    assert says(3 * scores, other, replicates)
    assert not says(scores / 10, other, replicates)  # not sure of anything
    assert not says(3 * scores[:50], other[:50], replicates)


def test_the_command_says_so(tmp_path, capsys):
    scores, labels = model(3)
    np.savez(tmp_path / "a.npz", logits=-scores, labels=labels)
    assert main(["evaluate", str(tmp_path / "a.npz"), "--replicates", "0"]) == 0
    assert "scores and labels have the same order of classes" in " ".join(capsys.readouterr().out.split())
    assert (
        main(["calibrate", str(tmp_path / "a.npz"), "--method", "temperature", "--out", str(tmp_path / "c.json")]) == 0
    )
    assert "scores and labels have the same order of classes" in " ".join(capsys.readouterr().out.split())
