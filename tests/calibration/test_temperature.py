"""TemperatureScaling against a dense grid, SciPy, netcal and scikit-learn; its properties; its extremes."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

import avuc.calibration.temperature as module
from avuc.calibration import CalibrationWarning, TemperatureScaling, logits_from_probs
from avuc.core.errors import InputError
from avuc.metrics import nll


def slow_nll(logits, labels, temperature):
    """With the floor of avuc.metrics.nll."""
    log_probs = log_softmax(np.asarray(logits, dtype=np.float64) / temperature, axis=-1)
    if log_probs.ndim == 3:
        log_probs = logsumexp(log_probs, axis=0) - math.log(len(log_probs))
    return np.minimum(-log_probs[np.arange(len(labels)), labels], -math.log(1e-12)).mean()


def scipy_temperature(logits, labels):
    result = minimize_scalar(
        lambda x: slow_nll(logits, labels, math.exp(x)), bounds=(-2.9, 2.9), method="bounded", options={"xatol": 1e-10}
    )
    return math.exp(result.x), result.fun


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("classes", [2, 5, 30])
def test_equals_scipy_and_no_point_of_a_dense_grid_is_lower(make_logits, classes, temperature):
    logits, labels = make_logits(rows=400, classes=classes, temperature=temperature, seed=classes)
    scaler = TemperatureScaling().fit(logits, labels)
    expected, lowest = scipy_temperature(logits, labels)
    assert math.log(scaler.temperature_) == pytest.approx(math.log(expected), abs=1e-6)
    assert scaler.loss_ == pytest.approx(lowest, abs=1e-10)
    grid = np.exp(np.linspace(math.log(0.05), math.log(20), 600))
    assert min(slow_nll(logits, labels, t) for t in grid) >= scaler.loss_ - 1e-10
    assert not scaler.at_bound_


def test_draws_equal_scipy(draws_and_labels):
    scaler = TemperatureScaling().fit(*draws_and_labels)
    expected, lowest = scipy_temperature(*draws_and_labels)
    assert math.log(scaler.temperature_) == pytest.approx(math.log(expected), abs=1e-6)
    assert scaler.loss_ == pytest.approx(lowest, abs=1e-12)


def test_netcal_and_scikit_learn_reach_the_same_nll():
    pytest.importorskip("sklearn", "1.8", reason="scikit-learn has temperature scaling since 1.8")
    Netcal = pytest.importorskip("netcal.scaling").TemperatureScaling
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.datasets import load_digits
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression

    images, digits = load_digits(return_X_y=True)
    network = LogisticRegression(C=10.0, max_iter=20, tol=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stopped early on purpose
        network.fit(images[:200] / 16, digits[:200])
        logits, labels = network.decision_function(images[200:] / 16), digits[200:]
        ours = TemperatureScaling().fit(logits, labels)
        peer = Netcal()
        peer.fit(log_softmax_probs(logits), labels)
        calibrated = CalibratedClassifierCV(FrozenEstimator(network), method="temperature", ensemble=False)
        calibrated.fit(images[200:] / 16, labels)
    beta = calibrated.calibrated_classifiers_[0].calibrators[0].beta_
    for temperature in (1 / float(np.ravel(peer.temperature)[0]), 1 / float(beta)):
        assert slow_nll(logits, labels, temperature) == pytest.approx(ours.loss_, abs=1e-6)
        assert slow_nll(logits, labels, temperature) >= ours.loss_ - 1e-10


def log_softmax_probs(logits):
    return np.exp(log_softmax(logits, axis=1))


def test_large_data_start_on_a_sample_and_end_exact(make_logits, monkeypatch):
    logits, labels = make_logits(rows=4000, classes=20, temperature=1.6)
    exact = TemperatureScaling().fit(logits, labels)
    monkeypatch.setattr(module, "CURVE_ELEMENTS", 1000)
    monkeypatch.setattr(module, "START_ELEMENTS", 8000)
    sampled = TemperatureScaling().fit(logits, labels)
    assert math.log(sampled.temperature_) == pytest.approx(math.log(exact.temperature_), abs=1e-6)
    assert sampled.loss_ == pytest.approx(exact.loss_, abs=1e-10)
    # two or three passes over everything, and less than one over samples
    assert 2 < sampled.n_evaluations_ < 4
    with_draws = TemperatureScaling().fit(np.stack([logits, logits * 1.3]), labels)
    monkeypatch.setattr(module, "GRID_ELEMENTS", 1000)
    coarse = TemperatureScaling().fit(np.stack([logits, logits * 1.3]), labels)
    assert math.log(coarse.temperature_) == pytest.approx(math.log(with_draws.temperature_), abs=2e-6)


def test_a_misleading_sample_is_left_behind(monkeypatch):
    """Every sampled row wants T → 0, the others want T → ∞: the fit must follow all rows."""
    logits = np.tile([[2.0, 0.0, -1.0]], (64, 1))
    labels = np.ones(64, dtype=int)
    labels[::16] = 0
    monkeypatch.setattr(module, "CURVE_ELEMENTS", 12)
    monkeypatch.setattr(module, "GRID_ELEMENTS", 24)
    monkeypatch.setattr(module, "START_ELEMENTS", 12)
    for z in (logits, np.stack([logits, logits])):
        with pytest.warns(CalibrationWarning, match="no minimum inside"):
            assert TemperatureScaling().fit(z, labels).temperature_ == 20.0


@given(seed=st.integers(0, 50), factor=st.floats(0.3, 3.0))
def test_scaling_the_logits_scales_the_temperature(make_logits, seed, factor):
    logits, labels = make_logits(rows=60, seed=seed)
    one = TemperatureScaling(bounds=(1e-3, 1e3)).fit(logits, labels)
    other = TemperatureScaling(bounds=(1e-3, 1e3)).fit(logits * factor, labels)
    assert math.log(other.temperature_) == pytest.approx(math.log(one.temperature_ * factor), abs=2e-6)


@given(seed=st.integers(0, 50), draws=st.sampled_from([0, 2]))
def test_order_of_rows_and_classes_does_not_matter(make_logits, seed, draws):
    logits, labels = make_logits(rows=50, seed=seed)
    rng = np.random.default_rng(seed)
    rows, classes = rng.permutation(50), rng.permutation(5)
    if draws:
        logits = logits + rng.normal(size=(draws, 50, 5))
    one = TemperatureScaling().fit(logits, labels)
    other = TemperatureScaling().fit(logits[..., rows, :][..., classes], np.argsort(classes)[labels[rows]])
    assert math.log(other.temperature_) == pytest.approx(math.log(one.temperature_), abs=3e-6)


@given(seed=st.integers(0, 50))
def test_predicted_classes_stay(make_logits, seed):
    logits, labels = make_logits(rows=50, seed=seed)
    assert (TemperatureScaling().fit_transform(logits, labels).argmax(1) == logits.argmax(1)).all()


def test_identical_draws_equal_a_single_one(logits_and_labels):
    logits, labels = logits_and_labels
    one = TemperatureScaling().fit(logits, labels)
    for draws in (1, 3):
        many = TemperatureScaling().fit(np.stack([logits] * draws), labels)
        assert math.log(many.temperature_) == pytest.approx(math.log(one.temperature_), abs=2e-6)
        assert many.loss_ == pytest.approx(one.loss_, abs=1e-10)


def test_the_temperature_acts_on_each_draw(draws_and_labels):
    scaler = TemperatureScaling().fit(*draws_and_labels)
    np.testing.assert_allclose(scaler.transform(draws_and_labels[0]), draws_and_labels[0] / scaler.temperature_)


def test_curve_spans_the_range_and_is_the_loss(logits_and_labels, draws_and_labels):
    for logits, labels in (logits_and_labels, draws_and_labels):
        temperatures, losses = TemperatureScaling().fit(logits, labels).curve_
        assert (temperatures[0], temperatures[-1]) == (0.05, 20.0)
        assert 1.0 in temperatures.round(12)
        np.testing.assert_allclose(losses, [slow_nll(logits, labels, t) for t in temperatures], rtol=1e-9)


# ---- extremes


def test_all_right_ends_at_the_lower_bound_with_one_warning():
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    for z in (logits, np.stack([logits, logits])):
        with pytest.warns(CalibrationWarning, match=r"no minimum inside 0.05 … 20") as caught:
            scaler = TemperatureScaling().fit(z, [0, 1, 0])
        assert len(caught) == 1
        assert scaler.at_bound_
        assert scaler.temperature_ == 0.05


@pytest.mark.parametrize("factor", [1e-4, 1e-2, 1e2, 1e4])
def test_the_default_range_is_left_where_the_data_say_so(make_logits, factor):
    """Logits that hardly differ, as those of boosted stumps, or huge ones; the filter makes a warning an error."""
    logits, labels = make_logits(300, 4, 1)
    logits = logits.astype(np.float64)
    inside, outside = TemperatureScaling().fit(logits, labels), TemperatureScaling().fit(factor * logits, labels)
    assert outside.temperature_ == pytest.approx(factor * inside.temperature_, rel=1e-5)
    assert not outside.at_bound_
    assert outside.loss_ == pytest.approx(inside.loss_)
    assert TemperatureScaling.from_json(outside.to_json()).temperature_ == outside.temperature_
    with pytest.warns(CalibrationWarning, match="no minimum inside 0.05 … 19"):  # a range of the user's own
        own = TemperatureScaling(bounds=(0.05, 19.0)).fit(factor * logits, labels)
    assert own.temperature_ == (0.05 if factor < 1 else 19.0)


@pytest.mark.parametrize("factor", [1e3, 1e4, 3e4])
def test_the_range_is_left_if_all_mistakes_are_at_the_floor_inside_it(factor):
    """No T of 0.05 … 20 changed the loss of a mistake, so T was 0.05, for logits that need a high one."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    logits = 3 * (rng.normal(size=(300, 3)) + 2 * np.eye(3)[labels])
    inside, outside = TemperatureScaling().fit(logits, labels), TemperatureScaling().fit(factor * logits, labels)
    assert outside.temperature_ == pytest.approx(factor * inside.temperature_, rel=1e-5)
    assert outside.loss_ == pytest.approx(inside.loss_)
    np.testing.assert_allclose(outside.predict_proba(factor * logits), inside.predict_proba(logits), atol=1e-5)


@pytest.mark.parametrize("wrong", [0, 1, 9])
def test_few_wrong_rows_do_not_leave_the_range(wrong):
    """T would go to 0, or be decided by chance."""
    logits, labels = np.tile([1e-3, 0.0, 0.0], (400, 1)), np.zeros(400, int)
    labels[:wrong] = 1
    with pytest.warns(CalibrationWarning, match="still falls at T = 0.05"):
        assert TemperatureScaling().fit(logits, labels).temperature_ == 0.05
    labels[:10] = 1
    assert TemperatureScaling().fit(logits, labels).temperature_ == pytest.approx(
        1e-3 / math.log(2 * 390 / 10), rel=1e-5
    )


def test_all_wrong_ends_at_the_upper_bound():
    with pytest.warns(CalibrationWarning, match="still falls at T = 20"):
        scaler = TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0]], [1, 0])
    assert scaler.temperature_ == 20.0


def test_one_sample():
    with pytest.warns(CalibrationWarning, match="no minimum inside"):
        assert TemperatureScaling().fit([[2.0, 0.0]], [0]).temperature_ == 0.05


@pytest.mark.parametrize("logits", [np.zeros((4, 3)), np.zeros((4, 1)), np.zeros((2, 4, 3)), np.full((4, 3), -1e4)])
def test_where_no_temperature_is_better_it_is_1(logits):
    scaler = TemperatureScaling().fit(logits, [0, 0, 0, 0])
    assert scaler.temperature_ == pytest.approx(1.0, abs=1e-12)
    assert not scaler.at_bound_


def test_huge_logits(make_logits):
    rng = np.random.default_rng(0)
    logits, labels = make_logits(rows=100)
    scaler = TemperatureScaling(bounds=(1.0, 1e6)).fit(logits * 1e4, labels)
    expected = TemperatureScaling().fit(logits, labels).temperature_ * 1e4
    assert scaler.temperature_ == pytest.approx(expected, rel=1e-5)
    with pytest.warns(CalibrationWarning):
        TemperatureScaling().fit(rng.choice([-1e4, 1e4], size=(20, 3)) + rng.normal(size=(20, 3)), [0] * 20)


def test_a_thousand_classes(make_logits):
    logits, labels = make_logits(rows=500, classes=1000, temperature=1.5, scale=4.0)
    scaler = TemperatureScaling().fit(logits.astype(np.float32), labels)
    assert slow_nll(logits, labels, scaler.temperature_) == pytest.approx(
        scipy_temperature(logits, labels)[1], abs=1e-6
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_kinds_and_precisions(logits_and_labels, dtype):
    logits, labels = logits_and_labels[0].astype(dtype), logits_and_labels[1]
    array = TemperatureScaling().fit(logits, labels)
    tensor = TemperatureScaling().fit(torch.tensor(logits), torch.tensor(labels))
    assert array.temperature_ == tensor.temperature_
    assert slow_nll(logits, labels, array.temperature_) <= scipy_temperature(logits, labels)[1] + 1e-12
    out = array.transform(logits)
    assert isinstance(out, np.ndarray)
    assert out.dtype == (np.float64 if dtype == np.float64 else np.float32)
    assert torch.equal(tensor.transform(torch.tensor(logits)), torch.tensor(out))


def test_minus_infinity_is_a_class_ruled_out(make_logits):
    logits, labels = make_logits(rows=100, classes=4)
    padded = np.concatenate([logits, np.full((100, 1), -np.inf)], axis=1)
    scaler = TemperatureScaling().fit(padded, labels)
    assert scaler.temperature_ == pytest.approx(TemperatureScaling().fit(logits, labels).temperature_, rel=1e-9)
    assert np.isneginf(scaler.transform(padded)[:, -1]).all()
    padded[0, labels[0]] = -np.inf
    with pytest.warns(CalibrationWarning, match="1 of 100 rows give the true class a logit of −inf"):
        TemperatureScaling().fit(padded, labels)


def test_logits_from_probs_give_the_same_temperature(logits_and_labels):
    logits, labels = logits_and_labels
    probs = log_softmax_probs(logits)
    expected = TemperatureScaling().fit(logits, labels).temperature_
    assert TemperatureScaling().fit(logits_from_probs(probs), labels).temperature_ == pytest.approx(expected, rel=1e-8)
    tensor = logits_from_probs(torch.tensor(probs))
    assert isinstance(tensor, torch.Tensor)
    assert TemperatureScaling().fit(tensor, labels).temperature_ == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("tiny", [0.0, 1e-30])
def test_a_probability_of_0_is_the_floor_of_the_nll_in_every_type(dtype, tiny):
    probs = np.array([[1.0, tiny]], dtype=dtype)
    found = logits_from_probs(probs)
    np.testing.assert_allclose(found, [[0.0, math.log(1e-12)]], rtol=1e-6)
    assert -found[0, 1] == pytest.approx(nll(probs, [1]), rel=1e-6)


def one_hot_and_wrong(rows=1000, wrong=10, seed=0):
    """Probabilities that a lower temperature improves, but for a few rows that give the true class exactly 0."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, 10)) * 2
    ideal = log_softmax_probs(logits / 0.7)
    labels = (ideal.cumsum(1) > rng.random((rows, 1))).argmax(1)
    probs = log_softmax_probs(logits)
    probs[:wrong] = np.eye(10)[(labels[:wrong] + 1) % 10]
    return probs, labels


@pytest.mark.filterwarnings("ignore::avuc.calibration.CalibrationWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("draws", [1, 3])
def test_zeros_do_not_decide_the_temperature(dtype, draws):
    """The fit minimises the NLL that is reported: no temperature of a dense grid is better by that figure."""
    probs, labels = one_hot_and_wrong()
    logits = logits_from_probs(probs.astype(dtype))
    logits = logits if draws == 1 else np.stack([logits] * draws)
    scaler = TemperatureScaling().fit(logits, labels)

    def figure(temperature):
        each = np.exp(log_softmax(logits.astype(np.float64) / temperature, axis=-1))
        return nll(each if draws == 1 else each.mean(0), labels)

    assert scaler.temperature_ == pytest.approx(0.739, abs=0.002)  # 20 with float64 and 1.94 with float32 before
    assert figure(scaler.temperature_) < figure(1.0)
    assert figure(scaler.temperature_) == pytest.approx(scaler.loss_, rel=1e-6)
    grid = np.exp(np.linspace(math.log(0.05), math.log(20), 400))
    assert min(figure(t) for t in grid) >= figure(scaler.temperature_) - 1e-9


def test_rows_below_the_floor_are_said():
    with pytest.warns(CalibrationWarning, match="10 of 1000 rows give the true class a probability below 1e-12"):
        TemperatureScaling().fit(logits_from_probs(one_hot_and_wrong()[0]), one_hot_and_wrong()[1])


@pytest.mark.filterwarnings("ignore::avuc.calibration.CalibrationWarning")
@given(seed=st.integers(0, 10_000), sharp=st.floats(0.2, 30.0), wrong=st.integers(0, 30))
def test_the_deepest_valley_is_found_where_the_floor_makes_several(make_logits, seed, sharp, wrong):
    """Sharp logits, some rows wrong beyond the floor: the loss in T is no longer convex."""
    logits, labels = make_logits(rows=120, classes=4, seed=seed)
    logits = logits * sharp
    logits[np.arange(wrong), labels[:wrong]] -= 60 * sharp
    scaler = TemperatureScaling().fit(logits, labels)
    grid = np.exp(np.linspace(math.log(0.05), math.log(20), 300))
    assert scaler.loss_ == pytest.approx(slow_nll(logits, labels, scaler.temperature_), abs=1e-9)
    assert min(slow_nll(logits, labels, t) for t in grid) >= scaler.loss_ - 0.002


@pytest.mark.parametrize("probs", [[[0.5, 0.6]], [[-0.1, 1.1]], [[np.nan, 1.0]], [[2.0, -3.0]]])
def test_logits_from_probs_refuses_what_are_none(probs):
    with pytest.raises(InputError, match="must sum to 1"):
        logits_from_probs(np.array(probs))


@pytest.mark.gpu
def test_cuda_equals_cpu(logits_and_labels):
    logits, labels = torch.tensor(logits_and_labels[0]), torch.tensor(logits_and_labels[1])
    here, there = TemperatureScaling().fit(logits, labels), TemperatureScaling().fit(logits.cuda(), labels.cuda())
    assert there.temperature_ == pytest.approx(here.temperature_, rel=1e-6)
    assert there.transform(logits.cuda()).is_cuda
