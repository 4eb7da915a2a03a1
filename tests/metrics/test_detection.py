from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
import torchmetrics.functional.classification as peer
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.evaluation import evaluate
from avuc.metrics import detection, detection_intervals, spearman
from avuc.metrics.detection import DETECTION
from avuc.predictions import Predictions

# few distinct values, so that ties within and across the two samples are the rule
few = st.lists(st.integers(0, 6), min_size=1, max_size=15)


def slow(inside: list[float], outside: list[float]) -> dict[str, float]:
    pairs = [(1.0 if o > i else 0.5 if o == i else 0.0) for o in outside for i in inside]
    rates = [(0.0, 0.0)]
    for t in sorted({*inside, *outside}, reverse=True):
        rates.append((sum(o >= t for o in outside) / len(outside), sum(i >= t for i in inside) / len(inside)))
    return {
        "auroc": sum(pairs) / len(pairs),
        "detection_accuracy": max((tpr + 1 - fpr) / 2 for tpr, fpr in rates),
        "fpr95": min(fpr for tpr, fpr in rates if tpr >= 0.95),
    }


@given(few, few)
def test_against_loops_scikit_learn_and_scipy(inside: list[int], outside: list[int]) -> None:
    a, b = [x / 3 for x in inside], [x / 3 for x in outside]
    out = detection(a, b)
    assert tuple(out) == DETECTION
    for name, value in slow(a, b).items():
        assert out[name] == pytest.approx(value, abs=1e-12), name
    truth, scores = [0] * len(a) + [1] * len(b), np.array(a + b)
    assert out["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(truth, scores), abs=1e-12)
    assert out["aupr_out"] == pytest.approx(sklearn.metrics.average_precision_score(truth, scores), abs=1e-12)
    flipped = sklearn.metrics.average_precision_score(1 - np.array(truth), -scores)
    assert out["aupr_in"] == pytest.approx(flipped, abs=1e-12)
    assert out["wasserstein"] == pytest.approx(scipy.stats.wasserstein_distance(a, b), abs=1e-12)


def test_against_torchmetrics() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(300), 0.3 + rng.random(200)
    scores, truth = torch.from_numpy(np.r_[a, b] / 1.3), torch.tensor([0] * 300 + [1] * 200)
    out = detection(torch.from_numpy(a), torch.from_numpy(b))
    assert out["auroc"] == pytest.approx(peer.binary_auroc(scores, truth).item(), abs=1e-6)
    assert out["aupr_out"] == pytest.approx(peer.binary_average_precision(scores, truth).item(), abs=1e-6)


def test_extremes() -> None:
    apart = {"auroc": 1, "aupr_in": 1, "aupr_out": 1, "detection_accuracy": 1, "fpr95": 0, "wasserstein": 2}
    assert detection([0.0, 0.0], [2.0]) == pytest.approx(apart)
    same = detection([1.0, 1.0], [1.0])
    assert (same["auroc"], same["detection_accuracy"], same["fpr95"], same["wasserstein"]) == (0.5, 0.5, 1, 0)
    assert detection([2.0], [0.0])["auroc"] == 0
    assert detection([2.0], [0.0])["detection_accuracy"] == 0.5


@pytest.mark.parametrize(
    ("a", "b"), [([], [1.0]), ([1.0], []), ([math.nan], [1.0]), ([1.0], [math.inf]), ([[1.0]], [1.0])]
)
def test_refusals(a: list[float], b: list[float]) -> None:
    with pytest.raises(InputError, match="entropy"):
        detection(a, b)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_spearman_against_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = map(list, zip(*pairs, strict=True))
    ours = spearman(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert math.isnan(ours)
    else:
        assert ours == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-12)


def test_spearman_refuses_unequal_lengths() -> None:
    with pytest.raises(InputError, match="equal length"):
        spearman([1, 2, 3], [1, 2])


def test_votes_of_float32_and_float64_are_tied() -> None:
    rng = np.random.default_rng(0)
    votes = [rng.binomial(5, rng.beta(shape, shape, 600)) / 5 for shape in (0.5, 1.0)]

    def predictions(which: int, kind: type) -> Predictions:
        return Predictions(votes[which].astype(kind), votes[which] > rng.random(600))

    inside, outside = (predictions(which, np.float64).entropy for which in (0, 1))
    short = predictions(1, np.float32).entropy
    wanted = pytest.approx(detection(inside, outside), abs=1e-5)
    assert detection(inside, short) == wanted
    assert {k: v.value for k, v in detection_intervals(inside, short, replicates=20).items()} == wanted
    assert evaluate(predictions(0, np.float64), outside_entropy=short, replicates=0).detection == wanted


@pytest.mark.parametrize("rows", [20, 100_001])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_entropies_that_are_no_numbers_are_refused_for_any_number_of_rows(rows: int, bad: float) -> None:
    probs, labels = np.tile([[0.9, 0.1], [0.6, 0.4]], (rows, 1))[:rows], np.zeros(rows, np.int64)
    with pytest.raises(InputError, match=r"outside_entropy contains NaN or infinity \(position 1\)"):
        evaluate(probs, labels, outside_entropy=[0.5, bad, 0.2], replicates=0)


def test_outside_entropies_in_bfloat16() -> None:
    probs, labels = [[0.9, 0.1], [0.6, 0.4]], [0, 1]
    short = torch.tensor([0.5, 0.25], dtype=torch.bfloat16)
    wanted = evaluate(probs, labels, outside_entropy=[0.5, 0.25], replicates=0).detection
    assert evaluate(probs, labels, outside_entropy=short, replicates=0).detection == wanted
