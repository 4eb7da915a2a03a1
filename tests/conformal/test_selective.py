"""SelectiveClassifier: the guarantee over many fits, a plain loop, drift, extremes, files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from avuc import InputError, Predictions
from avuc.conformal import SelectiveClassifier
from avuc.conformal.selective import SCORES


def make(rows: int, seed: int, *, classes: int = 3, ties: bool = False, sharp: float = 3.0):
    """Probabilities of a calibrated model, and labels."""
    rng = np.random.default_rng(seed)
    probs = np.exp(sharp * rng.normal(size=(rows, classes)))
    probs = probs / probs.sum(1, keepdims=True)
    if ties:
        probs = np.maximum(np.round(probs * 4), 1e-3)
        probs = probs / probs.sum(1, keepdims=True)
    return probs, (probs.cumsum(1) > rng.random((rows, 1))).argmax(1)


def slow_fit(probs: np.ndarray, labels: np.ndarray, risk: float, level: float, score: str) -> tuple[float, int, int]:
    """Threshold, answered rows and errors by plain loops and SciPy."""
    single = probs.astype(np.float32).astype(float).tolist()  # entropies do not depend on the type of a file
    scores = [sum(x * math.log(x) for x in p if x > 0) for p in single]
    if score == "confidence":
        scores = probs.max(1).tolist()
    wrong = [int(np.argmax(p) != y) for p, y in zip(probs, labels, strict=True)]
    rows, starts, first = len(scores), 0, 0
    for number in range(20, 0, -1):  # tests begin at first, 2 first, 4 first, … rows, each with this part of 1 − level
        first = next(m for m in range(1, 10**6) if (1 - risk) ** m <= (1 - level) / number)
        if first * 2 ** (number - 1) <= rows:
            starts = number
            break
    begin = {first * 2**k for k in range(starts)}
    sizes = sorted(begin | {rows * step // 100 for step in range(1, 101) if rows * step // 100 > first}) * (starts > 0)
    best, allowed, failed_at = (math.inf, 0, 0), 0.0, None
    for size in sizes:
        threshold = -math.inf if size == rows else sorted(scores, reverse=True)[size]
        # a confidence that float32 cannot tell from the threshold is not above it, if the threshold may be of float32
        equal = [score == "confidence" and threshold == np.float32(threshold) == np.float32(each) for each in scores]
        chosen = [i for i in range(rows) if scores[i] > threshold and not equal[i]]
        if len(chosen) != failed_at and failed_at is not None:
            allowed, failed_at = 0.0, None
        allowed += (1 - level) / starts * (size in begin)
        errors = sum(wrong[i] for i in chosen)
        if chosen and stats.binom.cdf(errors, len(chosen), risk) <= allowed:
            best, failed_at = (threshold, len(chosen), errors), None
        elif chosen:
            failed_at = len(chosen)
    return best


@given(st.integers(1, 300), st.integers(0, 50), st.sampled_from([0.05, 0.2]), st.sampled_from(SCORES), st.booleans())
def test_the_fit_is_that_of_a_loop(rows: int, seed: int, risk: float, score: str, ties: bool) -> None:
    probs, labels = make(rows, seed, ties=ties)
    selective = SelectiveClassifier(risk, 0.9, score=score).fit(probs, labels)
    threshold, answered, errors = slow_fit(probs, labels, risk, 0.9, score)
    assert selective.threshold_ == pytest.approx(threshold, abs=1e-12)
    assert (selective.answered_, selective.errors_) == (answered, errors)
    assert int(selective.answers(probs).sum()) == answered


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("risk", [0.05, 0.1])
def test_the_error_rate_is_above_the_limit_in_at_most_five_percent_of_fits(
    digits: Predictions, risk: float, score: str
) -> None:
    """Rows drawn from the digits with replacement: then the digits are the population, and its error rate is known."""
    selective, rng = SelectiveClassifier(risk, 0.95, score=score), np.random.default_rng(0)
    scores, wrong = selective._scores(digits), ~digits.correct.numpy()
    failed, coverage = 0, []
    for _ in range(200):
        index = torch.from_numpy(rng.integers(0, len(digits), 1000))
        rows = Predictions(digits.probs[index], digits.labels[index], digits.expected_entropy[index])
        answered = scores > selective.fit(rows).threshold_
        failed += bool(answered.any() and wrong[answered].mean() > risk)
        coverage.append(answered.mean())
    assert failed <= 18  # the 99.5 % point of Binomial(200, 0.05)
    # 16 % of all answers would be wrong; who knew the error rates could answer 0.68 of the rows, or 0.84
    assert np.mean(coverage) > (0.56 if risk == 0.05 else 0.75)
    assert wrong.mean() > 0.15


LIMIT = 0.1001  # an error rate just above 0.1


@pytest.mark.parametrize("rows", [30, 200, 1000])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("ends", "errors"),
    [
        ([1.0], [LIMIT]),  # any answer breaks the promise
        ([0.3, 0.5, 1.0], [0.0, 0.2503, LIMIT]),  # from half of the rows on
        ([0.2, 0.4, 0.6, 0.8, 1.0], [LIMIT] * 5),
        ([0.2, 0.5, 0.6, 1.0], [0.101, 0.05, 0.38, 0.101]),  # the surest rows are bad, the next ones make up for it
    ],
)
def test_the_level_is_kept_where_it_is_hardest(ends: list[float], errors: list[float], ties: bool, rows: int) -> None:
    """Error rates at the limit, few rows, equal scores: at most a tenth of the fits may break the promise.

    The errors of the rows that are sorted by score, the surest first, have the probability `errors[k]` up to the
    share `ends[k]` of all rows; with `ties` these rows have equal scores.
    """
    rng, fits = np.random.default_rng(1), 300
    starts, masses = np.array([0.0, *ends[:-1]]), np.diff([0.0, *ends])
    failed = 0
    for _ in range(fits):
        place = rng.random(rows)
        part = np.searchsorted(ends, place)
        confidence = 1 - 0.4 * (starts[part] if ties else place)
        probs = np.stack([confidence, 1 - confidence], 1)
        selective = SelectiveClassifier(0.1, 0.9).fit(probs, (rng.random(rows) < np.array(errors)[part]).astype(int))
        if selective.answered_:
            last = min(1.0, (1 - selective.threshold_) / 0.4)  # rows before this place are answered
            answered = np.clip(last - starts, 0, masses) if not ties else masses * (starts < last - 1e-9)
            failed += answered @ errors / answered.sum() > 0.1 + 1e-9
    assert failed <= 46  # the 99.9 % point of Binomial(300, 0.1)


def test_equal_scores_are_one_test() -> None:
    """Nothing can be tested but all rows: then this test has the whole level."""
    errors = next(k for k in range(500) if stats.binom.cdf(k + 1, 500, 0.1) > 0.05)
    for wrong in (errors, errors + 1):
        selective = SelectiveClassifier(0.1).fit([[0.9, 0.1]] * 500, [1] * wrong + [0] * (500 - wrong))
        assert selective.answered_ == (500 if wrong == errors else 0)


def test_check_finds_drift(digits: Predictions) -> None:
    half = len(digits) // 2
    selective = SelectiveClassifier(0.05).fit(digits.probs[:half], digits.labels[:half])
    same = selective.check(digits.probs[half:], digits.labels[half:])
    assert not same.drift
    assert "limit is 5 %" in same.sentence
    answered = selective.answers(digits.probs[half:])
    wrong = ~digits.correct[half:][answered]
    assert same.error == pytest.approx(float(wrong.double().mean()))
    assert same.coverage == pytest.approx(float(answered.double().mean()))
    expected = stats.binomtest(same.errors, same.answered, 0.05, alternative="greater").pvalue
    assert same.p_value == pytest.approx(expected)
    moved = selective.check(digits.probs[half:], (digits.labels[half:] + 1) % 10)
    assert moved.drift
    assert "Drift" in moved.sentence
    assert json.loads(json.dumps(moved.as_json(), allow_nan=False))["drift"] is True
    assert "drift=True" in repr(moved)


def test_extremes() -> None:
    few = SelectiveClassifier().fit([[0.9, 0.1]] * 10, [0] * 10)
    assert few.threshold_ == math.inf
    assert not few.answers([[1.0, 0.0]]).any()
    none = few.check([[1.0, 0.0]], [0])
    assert (none.error, none.drift, none.coverage) == (None, False, 0)
    assert "None of 1 rows" in none.sentence
    assert SelectiveClassifier().least_rows == 149
    just = SelectiveClassifier().fit([[0.9, 0.1]] * 149, [0] * 149)
    assert just.threshold_ == -math.inf
    assert just.answers([[0.5, 0.5]]).all()
    for score in SCORES:
        wrong = SelectiveClassifier(score=score).fit([[1.0, 0.0]] * 500, [1] * 500)
        assert wrong.answered_ == 0
        half = torch.full((500, 1000), 1e-3, dtype=torch.float16)
        assert SelectiveClassifier(score=score).fit(half, torch.zeros(500, dtype=torch.long)).answered_ == 500
    rng = np.random.default_rng(0)
    binary = SelectiveClassifier(0.3).fit(rng.random(300), rng.integers(0, 2, 300))
    assert binary.answers([0.2, 0.9]).shape == (2,)
    dense = Predictions(torch.rand(2, 1, 20, 20), torch.randint(0, 2, (2, 20, 20)))
    assert dense.to_map(SelectiveClassifier(0.6).fit(dense).answers(dense)).shape == (2, 20, 20)


def test_bad_input_is_one_line(digits: Predictions) -> None:
    for name, value in (("risk", 0), ("risk", 2), ("level", 1), ("level", None), ("score", "margin")):
        with pytest.raises(InputError, match=name):
            SelectiveClassifier(**{name: value}).fit(digits)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not fitted"):
        SelectiveClassifier().answers(digits)
    with pytest.raises(InputError, match="have 2 classes"):
        SelectiveClassifier().fit(digits).answers([[0.5, 0.5]])
    with pytest.raises(InputError, match="have none"):
        SelectiveClassifier().fit([[0.5, 0.5]], [-1])


@pytest.mark.parametrize("risk", [0.05, 0.9, 1e-4])
def test_a_file_restores_the_answers(digits: Predictions, tmp_path: Path, risk: float) -> None:
    """Some rows, all rows, none."""
    selective = SelectiveClassifier(risk, score="entropy").fit(digits)
    selective.save(tmp_path / "select.json")
    restored = SelectiveClassifier.load(tmp_path / "select.json")
    assert restored.threshold_ == selective.threshold_
    assert torch.equal(restored.answers(digits), selective.answers(digits))
    good = json.loads(selective.to_json())
    for key, value in (("threshold", "x"), ("rows", -1), ("answered", len(digits) + 1), ("errors", 0.5)):
        with pytest.raises(InputError, match="fit it again"):
            SelectiveClassifier.from_json(json.dumps(good | {"learned": good["learned"] | {key: value}}))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("trees", [7, 10, 13])
def test_the_type_of_the_probabilities_decides_nothing(score: str, trees: int) -> None:
    """Votes of a forest have few values: rows at the threshold stay unanswered in float32, too."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 2000)
    votes = np.stack([rng.multinomial(trees, np.roll([0.6, 0.2, 0.2], label)) for label in labels]) / trees
    for risk in (0.02, 0.05, 0.08, 0.12):
        found = []
        for first in (np.float32, np.float64):
            selective = SelectiveClassifier(risk, score=score).fit(votes[:1000].astype(first), labels[:1000])
            found += [selective.answers(votes[1000:].astype(second)).tolist() for second in (np.float32, np.float64)]
        assert all(each == found[0] for each in found)
