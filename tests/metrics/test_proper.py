from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
import torchmetrics.functional.classification as peer

from avuc.metrics import accuracy, brier, mean_entropy, nll

World = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.mark.parametrize("c", [2, 7])
def test_against_loops(c: int, awkward: World) -> None:
    probs, labels = awkward(80, c)
    n = len(labels)
    right = scores = squares = entropies = 0.0
    for row, y in zip(probs.tolist(), labels.tolist(), strict=True):
        right += max(range(c), key=row.__getitem__) == y
        scores -= math.log(max(row[y], 1e-12))
        squares += sum((p - (k == y)) ** 2 for k, p in enumerate(row))
        entropies -= sum(p * math.log(p) for p in row if p > 0)
    assert accuracy(probs, labels) == right / n
    assert nll(probs, labels) == pytest.approx(scores / n, rel=1e-12)
    assert brier(probs, labels) == pytest.approx(squares / n, rel=1e-12)
    assert mean_entropy(probs, labels) == pytest.approx(entropies / n, rel=1e-12)


@pytest.mark.parametrize("c", [2, 10, 100])
def test_against_scikit_learn_scipy_and_torchmetrics(c: int, world: World) -> None:
    pytest.importorskip("sklearn", "1.7", reason="scikit-learn has the Brier score of several classes since 1.7")
    probs, labels = world(400, c, sharpen=1.4)
    classes = list(range(c))
    assert accuracy(probs, labels) == sklearn.metrics.accuracy_score(labels, probs.argmax(1))
    assert nll(probs, labels) == pytest.approx(sklearn.metrics.log_loss(labels, probs, labels=classes), rel=1e-10)
    reference = sklearn.metrics.brier_score_loss(labels, probs, labels=classes, scale_by_half=False)
    assert brier(probs, labels) == pytest.approx(reference, rel=1e-10)
    assert mean_entropy(probs, labels) == pytest.approx(scipy.stats.entropy(probs, axis=1).mean(), rel=1e-10)
    micro = peer.multiclass_accuracy(torch.from_numpy(probs), torch.from_numpy(labels), c, average="micro")
    assert accuracy(probs, labels) == pytest.approx(micro.item(), rel=1e-6)


def test_the_first_of_equal_classes_is_predicted() -> None:
    assert accuracy([[0.5, 0.5], [0.5, 0.5]], [0, 1]) == 0.5


def test_ties_do_not_depend_on_the_width() -> None:
    for c in (2, 3, 8, 17, 64, 1000):
        assert accuracy(np.full((40, c), 1 / c), np.zeros(40, int)) == 1
