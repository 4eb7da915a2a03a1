"""Is a calibrator better than leaving the scores alone? The cross-validated answer, against plain loops."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from avuc.calibration import (
    AvUTemperatureScaling,
    CautiousTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
    check_calibrator,
    logits_from_probs,
)
from avuc.calibration.cross_validation import check_predictions
from avuc.calibration.metric_change import student_quantile
from avuc.core.errors import InputError
from avuc.metrics import ece
from avuc.predictions import Predictions

pytestmark = pytest.mark.filterwarnings("ignore::avuc.calibration.CalibrationWarning")


def slow_rows(logits, labels, folds, seed):
    """(NLL, Brier) of each row without a calibrator, and with one that was fitted on the other parts."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    sizes = [len(labels) // folds + (part < len(labels) % folds) for part in range(folds)]
    rows = {}
    for part in range(folds):
        held = order[sum(sizes[:part]) : sum(sizes[: part + 1])]
        rest = [i for i in range(len(labels)) if i not in held]
        temperature = TemperatureScaling().fit(logits[rest], labels[rest]).temperature_
        for i in held:
            pair = []
            for t in (1.0, temperature):
                e = [math.exp((z - max(logits[i])) / t) for z in logits[i]]
                p = [v / sum(e) for v in e]
                squares = sum((q - (k == labels[i])) ** 2 for k, q in enumerate(p))
                pair.append((-math.log(max(p[labels[i]], 1e-12)), squares))
            rows[i] = pair
    return np.array([rows[i] for i in range(len(labels))])  # (N, before/after, NLL/Brier)


def test_figures_equal_plain_loops(make_logits):
    logits, labels = make_logits(rows=83, classes=4)
    check = check_calibrator(TemperatureScaling(), logits, labels, folds=4, seed=3)
    rows = slow_rows(logits, labels, 4, 3)
    for k, name in enumerate(("nll", "brier")):
        before, after = rows[:, 0, k], rows[:, 1, k]
        change = (after - before).mean()
        error = (after - before).std(ddof=1) / math.sqrt(83)
        reach = student.ppf(0.975, 82) * error
        expected = (before.mean(), after.mean(), change, change - reach, change + reach)
        assert check.figures[name] == pytest.approx(expected, rel=1e-5)
    assert (check.rows, check.given, check.folds) == (83, 83, 4)
    json.dumps(check.as_json(), allow_nan=False)


@pytest.mark.parametrize("freedom", [0, 1, 2, 3, 5, 10, 100])
def test_students_quantile(freedom):
    wanted = student.ppf(0.975, freedom) if freedom else math.inf
    assert student_quantile(freedom) == pytest.approx(wanted, rel=0.06 if freedom < 5 else 0.02)


def calibrated(rows, seed, classes=5):
    """Logits whose softmax is the truth: any calibrator can only add noise."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 2
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return logits, (probs.cumsum(1) > rng.random((rows, 1))).argmax(1)


@pytest.mark.parametrize(
    "scaler", [TemperatureScaling(), CautiousTemperatureScaling(), AvUTemperatureScaling()], ids=repr
)
def test_noise_is_no_reason_to_refuse(scaler):
    """Where nothing can be gained the figures move by chance: at most the rare false alarm of a 95 % interval."""
    refused = [check_calibrator(scaler, *calibrated(400, seed)).worse for seed in range(20)]
    assert sum(refused) <= 1


@pytest.mark.parametrize("scaler", [TemperatureScaling(), VectorScaling(), CautiousTemperatureScaling()], ids=repr)
def test_a_useful_calibrator_is_kept(scaler):
    logits, labels = calibrated(600, 0)
    for factor in (0.3, 3.0):
        for z in (factor * logits, np.stack([factor * logits] * 2), torch.tensor(factor * logits)):
            check = check_calibrator(scaler, z, labels)
            assert not check.worse
            assert check.figures["nll"].high < 0
            assert check.warnings == []


class Wrong(TemperatureScaling):
    """Always this temperature, whatever the data say."""

    def __init__(self, objective="nll", *, bounds=(0.05, 20.0), tolerance=1e-6, temperature=3.0):
        super().__init__(objective, bounds=bounds, tolerance=tolerance)
        self.temperature = temperature

    def _fit(self, logits, labels):
        self.temperature_, self.num_classes_ = self.temperature, np.shape(logits)[-1]


@pytest.mark.parametrize("draws", [0, 3])
@pytest.mark.parametrize("temperature", [0.3, 3.0])
def test_a_harmful_calibrator_is_refused(temperature, draws):
    logits, labels = calibrated(500, 1)
    logits = np.stack([logits] * draws) if draws else logits
    check = check_calibrator(Wrong(temperature=temperature), logits, labels)
    assert check.worse
    assert [reason.split(" rises")[0] for reason in check.reasons] == ["NLL", "the Brier score", "ECE"]
    assert check.warnings[0].startswith("this temperature calibrator is worse than leaving the scores alone: NLL rises")
    assert check.as_json()["worse"]


def test_the_printed_avuts_loss_on_draws_is_refused():
    """Monte Carlo logits of a network that is unsure: the printed loss goes to T = 0.05."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 600)
    seen = np.where(rng.random(600) < 0.4, rng.integers(0, 10, 600), labels)
    logits = 0.6 * (rng.normal(size=(8, 600, 10)) + 3 * np.eye(10)[seen])
    check = check_calibrator(AvUTemperatureScaling("paper"), logits, labels)
    assert check.worse
    assert check.figures["nll"].low > 0.1
    assert not check_calibrator(AvUTemperatureScaling(), logits, labels).worse


def confident(share_right, stated, rows=20_000, seed=0, tail=0.0):
    """Two classes, every row at the same confidence; `tail` of the rows give the true class nearly 0."""
    rng = np.random.default_rng(seed)
    right = rng.permutation(rows) < share_right * rows
    top = np.full(rows, stated)
    broken = rng.permutation(rows)[: int(tail * rows)]
    right[broken], top[broken] = False, 1 - 1e-9
    return torch.tensor(np.stack([np.where(right, top, 1 - top), np.where(right, 1 - top, top)], 1))


LABELS = torch.zeros(20_000, dtype=torch.long)


def judged(before, after, scaler=None):
    pair = [Predictions(probs, LABELS) for probs in (before, after)]
    return check_predictions(scaler or TemperatureScaling(), *pair, folds=5)


def test_a_better_nll_pays_for_a_worse_ece():
    """Rows that were disastrously wrong are softened, at the price of a gap in all the others: a warning."""
    before, after = confident(0.8, 0.8, tail=0.05), confident(0.8, 0.74, tail=0.05)
    broken = before.max(1).values > 0.99
    after[broken] = torch.tensor([0.3, 0.7], dtype=torch.float64)
    before[broken] = torch.tensor([1e-12, 1.0], dtype=torch.float64)
    assert ece(after, LABELS) > ece(before, LABELS) + 0.005
    check = judged(before, after)
    assert check.figures["nll"].high < 0
    assert not check.worse
    assert [text.split(" rises")[0] for text in check.tradeoffs] == ["ECE"]
    assert check.warnings == list(check.tradeoffs)


def test_a_worse_ece_alone_is_refused():
    """ECE far worse, NLL and Brier score within chance."""
    before = confident(0.72, 0.75)
    after = before.clone()
    after[::2] = torch.where(before[::2] > 0.5, 0.85, 0.15).double()
    after[1::2] = torch.where(before[1::2] > 0.5, 0.62, 0.38).double()
    check = judged(before, after)
    assert not check.figures["nll"].high < 0
    assert "ECE" in " ".join(check.reasons)


def test_what_a_cautious_temperature_gives_away_is_not_held_against_it():
    before, after = confident(0.8, 0.80), confident(0.8, 0.79)
    gap = ece(after, LABELS) - ece(before, LABELS)
    assert 0.005 < gap < 0.015
    assert judged(before, after).worse
    assert not judged(before, after, CautiousTemperatureScaling(caution=0.01)).worse


def test_a_small_rise_within_the_margin_is_a_warning_at_most():
    before, after = confident(0.8, 0.80), confident(0.8, 0.796)
    check = judged(before, after)
    assert check.figures["nll"].change < 0.01 * check.figures["nll"].before
    assert not check.worse


def test_many_logits_are_checked_on_a_sample(make_logits):
    logits, labels = make_logits(rows=900, classes=4)
    check = check_calibrator(TemperatureScaling(), logits, labels, elements=1200)
    assert (check.rows, check.given) == (300, 900)
    assert check.as_json()["rows"] == 300
    draws = check_calibrator(TemperatureScaling(), np.stack([logits] * 3), labels, elements=1200)
    assert draws.rows == 100


def test_few_rows():
    with pytest.raises(InputError, match="folds must be a whole number, at least 2; found 1"):
        check_calibrator(TemperatureScaling(), [[2.0, 0.0]], [0], folds=1)
    one = check_calibrator(TemperatureScaling(), [[2.0, 0.0]], [0])
    assert one.worse
    assert "only one row" in one.warnings[0]
    json.dumps(one.as_json()["reasons"])
    for rows in (2, 3):
        check = check_calibrator(TemperatureScaling(), [[2.0, 0.0]] * rows, [0] * rows)
        assert check.folds == rows


def test_the_calibrator_is_left_alone(make_logits):
    logits, labels = make_logits(rows=100)
    scaler = TemperatureScaling(bounds=(0.9, 1.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check = check_calibrator(scaler, logits, labels)
    assert not hasattr(scaler, "temperature_")
    fitted = TemperatureScaling(bounds=(0.9, 1.1)).fit(logits, labels)
    before = fitted.to_json()
    assert check_calibrator(fitted, logits, labels) == check
    assert fitted.to_json() == before


def test_a_forest_that_is_often_sure_and_wrong():
    """Twenty trees trained on 50 digits: `predict_proba` gives many true classes exactly 0."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    images, digits = images[order], digits[order]
    forest = RandomForestClassifier(20, random_state=0).fit(images[:50], digits[:50])
    logits, labels = logits_from_probs(forest.predict_proba(images[897:])), digits[897:]
    check = check_calibrator(TemperatureScaling(), logits, labels)
    assert check.worse
    assert check.figures["brier"].low > 0.1
    assert not check_calibrator(VectorScaling(), logits, labels).worse


@pytest.mark.parametrize("scale", [1, 100])
def test_draws_of_probabilities_and_percentages_are_refused(scale):
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(3, 40, 4))
    probs = np.exp(draws) / np.exp(draws).sum(-1, keepdims=True)
    with pytest.raises(InputError, match=r"look like (probabilities|percentages)"):
        check_calibrator(TemperatureScaling(), scale * probs, rng.integers(0, 4, 40))


def test_weights_of_the_rows(make_logits):
    """Equal weights change nothing; rows of weight 0 do not count; ECE is not judged."""
    logits, labels = make_logits(rows=200, temperature=3.0)
    plain = check_calibrator(TemperatureScaling(), logits, labels)
    weighted = check_calibrator(TemperatureScaling(), logits, labels, sample_weight=np.full(200, 0.7))
    assert set(weighted.figures) == {"nll", "brier"}
    for name, figure in weighted.figures.items():
        assert figure == pytest.approx(plain.figures[name])
    half = np.arange(200) < 100
    some = check_calibrator(TemperatureScaling(), logits, labels, sample_weight=half)
    fewer = check_calibrator(TemperatureScaling(), logits[:100], labels[:100])
    assert some.figures["nll"] == pytest.approx(fewer.figures["nll"])
    assert (some.rows, some.given) == (100, 200)
    weight = np.random.default_rng(0).random(200)
    uneven = check_calibrator(TemperatureScaling(), logits, labels, sample_weight=weight).figures["nll"]
    nll = -torch.log_softmax(torch.as_tensor(logits), 1).numpy()[np.arange(200), labels]
    assert uneven.before == pytest.approx(np.average(nll, weights=weight))
    # more rows would not count for more: the interval is wider than with equal weights
    assert uneven.high - uneven.low > 0.9 * (plain.figures["nll"].high - plain.figures["nll"].low)
