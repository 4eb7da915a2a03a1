"""AvU temperature scaling: the objective against the public losses, the guard, the printed loss, real networks."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax

import avuc.calibration.avu as module
from avuc.calibration import AUAvUTemperatureScaling, AvUTemperatureScaling, CalibrationWarning, TemperatureScaling
from avuc.calibration.avu_guard import _gaps
from avuc.core.errors import InputError
from avuc.losses import auavuc_loss, avuc_loss
from avuc.metrics import ece, nll, uce

VARIANTS = ["paper", "stopgrad", "monotone", "soft"]


def mean_probs(logits, temperature):
    probs = softmax(np.asarray(logits, dtype=np.float64) / temperature, axis=-1)
    return probs.mean(0) if probs.ndim == 3 else probs


def slow_objective(scaler, logits, labels, temperature):
    """The documented loss, from the public functions and plain NumPy."""
    scaled = torch.tensor(np.asarray(logits) / temperature)
    log_probs = log_softmax(scaled.numpy(), axis=-1)
    if log_probs.ndim == 3:
        log_probs = logsumexp(log_probs, axis=0) - math.log(len(log_probs))
    nll = np.minimum(-log_probs[np.arange(len(labels)), labels], -math.log(1e-12)).mean()
    if scaler.objective == "auavuc":
        avu = auavuc_loss(scaled, torch.tensor(labels), variant=scaler.variant, points=scaler.points)
        return scaler.nll_weight * nll + scaler.weight * float(avu)
    literal = scaler.objective == "paper"
    threshold = scaler.threshold
    if literal or threshold in ("refit", "fixed"):
        probs = mean_probs(logits, temperature if threshold == "refit" and not literal else 1.0)
        entropy = -(probs * np.log(probs)).sum(1)
        right = probs.argmax(1) == labels
        threshold = (entropy[right].mean() + entropy[~right].mean()) / 2
    avu = float(avuc_loss(scaled, torch.tensor(labels), threshold, variant="paper" if literal else scaler.variant))
    return avu if literal else scaler.nll_weight * nll + scaler.weight * avu


SCALERS = [
    *(AvUTemperatureScaling(variant=v, guard=False) for v in VARIANTS),
    AvUTemperatureScaling(threshold="fixed", weight=0.3, guard=False),
    AvUTemperatureScaling(threshold=0.8, nll_weight=0.5, guard=False),
    AvUTemperatureScaling(variant="soft", threshold=None, weight=3.0, guard=False),
    AvUTemperatureScaling("auavuc", guard=False),
    AUAvUTemperatureScaling(guard=False, points=11),
    AUAvUTemperatureScaling(guard=False, variant="paper"),
]


@pytest.mark.parametrize("scaler", SCALERS, ids=repr)
@pytest.mark.parametrize("draws", [0, 3])
def test_the_curve_is_the_documented_loss_and_its_minimum_is_found(scaler, draws, make_logits):
    logits, labels = make_logits(rows=250)
    if draws:
        logits = logits + np.random.default_rng(0).normal(size=(draws, *logits.shape))
    scaler.fit(logits, labels)
    temperatures, losses = scaler.curve_
    slow = [slow_objective(scaler, logits, labels, t) for t in temperatures]
    np.testing.assert_allclose(losses, slow, rtol=1e-6)
    assert scaler.loss_ == pytest.approx(slow_objective(scaler, logits, labels, scaler.temperature_), rel=1e-6)
    around = scaler.temperature_ * np.exp(np.linspace(-0.1, 0.1, 41))
    assert scaler.loss_ <= min(losses) + 1e-12
    if scaler.variant == "soft":  # the others jump as rows cross the threshold, and have many local minima
        assert scaler.loss_ <= min(slow_objective(scaler, logits, labels, t) for t in around) + 1e-9
    assert scaler.unguarded_temperature_ == pytest.approx(scaler.temperature_, rel=1e-12)
    assert not scaler.guarded_


@settings(max_examples=8)
@given(seed=st.integers(0, 1000), temperature=st.floats(0.4, 3.0))
def test_guarded_ece_and_uce_are_never_worse_on_the_fit_data(make_logits, seed, temperature):
    logits, labels = make_logits(rows=120, classes=4, temperature=temperature, seed=seed)
    for scaler in (
        AvUTemperatureScaling(),
        AUAvUTemperatureScaling(),
        AvUTemperatureScaling(variant="soft", weight=3.0),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            scaler.fit(logits, labels)
        before, after = mean_probs(logits, 1.0), mean_probs(logits, scaler.temperature_)
        for metric in (ece, uce):
            assert metric(after, labels) <= metric(before, labels) + 1e-9
        low, high = sorted((1.0, scaler.unguarded_temperature_))
        assert low - 1e-12 <= scaler.temperature_ <= high + 1e-12
        assert scaler.guarded_ == (abs(scaler.temperature_ - scaler.unguarded_temperature_) > 1e-12)


DRAWS = [
    # draws, classes, spread of the draws, strength, scale, share of wrong labels, and the rise of NLL without the guard
    (1, 2, 1.55, 2.56, 0.12, 0.47, 0.04),
    (1, 10, 0.63, 5.52, 0.57, 0.22, 0.05),
    (2, 100, 0.05, 5.89, 0.90, 0.27, 0.05),
    (4, 2, 2.64, 1.84, 0.11, 0.42, 0.002),
    (20, 10, 1.59, 4.70, 1.28, 0.26, 0.02),
]


@pytest.mark.parametrize("scaler", [AvUTemperatureScaling, AUAvUTemperatureScaling])
@pytest.mark.parametrize("case", DRAWS, ids=str)
def test_guarded_nll_is_never_worse_and_keeps_half_of_its_gain_beyond_the_likeliest(scaler, case):
    """On these logits the AvU term outweighs the likelihood: without the guard NLL is worse than at T = 1."""
    draws, classes, spread, strength, scale, wrong, rise = case
    rng = np.random.default_rng(draws * classes)
    labels = rng.integers(0, classes, 600)
    seen = np.where(rng.random(600) < wrong, rng.integers(0, classes, 600), labels)
    base = rng.normal(size=(600, classes)) + strength * np.eye(classes)[seen]
    logits = (base + spread * rng.normal(size=(draws, 600, classes))) * scale
    free, guarded = scaler(guard=False).fit(logits, labels), scaler().fit(logits, labels)
    best = TemperatureScaling().fit(logits, labels)

    def figure(temperature):
        return nll(mean_probs(logits, temperature), labels)

    assert figure(free.temperature_) > figure(1.0) + rise
    assert guarded.guarded_
    assert guarded.unguarded_temperature_ == free.temperature_
    assert figure(guarded.temperature_) <= figure(1.0) + 1e-9
    # the point of the grid with the lowest NLL is at most 0.15 in log T from the minimum
    if abs(math.log(guarded.temperature_)) > abs(math.log(best.temperature_)) + 0.16:
        assert figure(guarded.temperature_) <= (figure(1.0) + best.loss_) / 2 + 0.005


def test_gaps_are_the_metrics(make_logits):
    logits, labels = make_logits(rows=200)
    found = _gaps(module.ScaledLogits.read(logits, labels).at(1.3), 5)
    probs = mean_probs(logits, 1.3)
    np.testing.assert_allclose(found, [ece(probs, labels), uce(probs, labels)], rtol=1e-9)


def overconfident(rows=400, seed=0):
    """Half right, half wrong, all very sure: the printed loss can only say 'be surer still'."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, 6))
    logits[np.arange(rows), rng.integers(0, 6, rows)] += 6
    labels = np.where(rng.random(rows) < 0.7, logits.argmax(1), rng.integers(0, 6, rows))
    return logits, labels


def test_the_printed_loss_ends_at_the_edge_and_says_so_once():
    with pytest.warns(CalibrationWarning, match=r"objective='paper'.*no minimum inside 0.05 … 20") as caught:
        scaler = AvUTemperatureScaling(objective="paper").fit(*overconfident())
    assert len(caught) == 1
    assert scaler.at_bound_
    assert scaler.temperature_ in scaler.bounds
    assert scaler.loss_ == pytest.approx(slow_objective(scaler, *overconfident(), scaler.temperature_), rel=1e-6)


def test_the_authors_procedure_starts_at_one_and_a_half_and_warns_where_there_is_no_minimum():
    logits, labels = overconfident()
    with pytest.warns(CalibrationWarning, match="no minimum inside") as caught:
        scaler = AvUTemperatureScaling("paper", procedure="authors").fit(logits, labels)
    assert len(caught) == 1
    temperature = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([temperature], lr=0.005, max_iter=50)

    def closure():
        optimiser.zero_grad()
        scaled = torch.tensor(logits) / temperature
        loss = avuc_loss(scaled, torch.tensor(labels), scaler.threshold_, variant="paper")
        loss.backward()
        return loss

    optimiser.step(closure)
    assert scaler.temperature_ == pytest.approx(temperature.item(), rel=1e-9)
    assert 0.05 < scaler.temperature_ < 20


@pytest.mark.parametrize("objective", ["avuc", "auavuc"])
@pytest.mark.parametrize("draws", [0, 2])
def test_the_authors_procedure_for_the_other_objectives(objective, draws, make_logits):
    logits, labels = make_logits()
    if draws:
        logits = np.stack([logits] * draws)
    scaler = AvUTemperatureScaling(objective, procedure="authors").fit(logits, labels)
    assert 0.05 < scaler.temperature_ < 20
    assert scaler.loss_ == pytest.approx(slow_objective(scaler, logits, labels, scaler.temperature_), rel=1e-6)


def test_identical_draws_equal_a_single_one(make_logits):
    logits, labels = make_logits()
    one = AvUTemperatureScaling(variant="soft").fit(logits, labels)
    many = AvUTemperatureScaling(variant="soft").fit(np.stack([logits] * 3), labels)
    assert math.log(many.temperature_) == pytest.approx(math.log(one.temperature_), abs=3e-6)


def test_large_data_use_a_sample_for_grid_and_guard(make_logits, monkeypatch):
    logits, labels = make_logits(rows=3000, classes=10)
    exact = AvUTemperatureScaling(variant="soft").fit(logits, labels)
    monkeypatch.setattr(module, "GRID_ELEMENTS", 3000)
    sampled = AvUTemperatureScaling(variant="soft").fit(logits, labels)
    assert sampled.n_evaluations_ < exact.n_evaluations_ / 2
    assert math.log(sampled.unguarded_temperature_) == pytest.approx(math.log(exact.unguarded_temperature_), abs=3e-6)


def test_the_guard_holds_on_all_rows_of_large_data():
    """Every second row is easy, the others are noise. The rows that the guard looks at first are all easy."""
    generator = np.random.default_rng(0)
    rows, classes, samples = 4200, 10, 100
    labels = generator.integers(0, classes, rows)
    signal = np.where(np.arange(rows)[:, None] % 2 == 0, 2.5, 0.5) * np.eye(classes)[labels]
    noise = np.where(np.arange(rows)[:, None] % 2 == 0, 0.7, 1.5) * generator.normal(size=(rows, classes))
    logits = (signal + noise + 0.2 * generator.normal(size=(samples, rows, classes))).astype(np.float32)
    assert logits.size > 8 * module.GRID_ELEMENTS
    scaler = AvUTemperatureScaling().fit(logits, labels)
    nll = [
        -np.log(softmax(logits.astype(np.float64) / t, axis=-1).mean(0)[np.arange(rows), labels]).mean()
        for t in (1.0, scaler.temperature_, scaler.unguarded_temperature_)
    ]
    easy = slice(None, None, 2)
    easy_nll = [
        -np.log(softmax(logits[:, easy] / t, axis=-1).mean(0)[np.arange(rows // 2), labels[easy]]).mean()
        for t in (1.0, scaler.unguarded_temperature_)
    ]
    assert easy_nll[1] < easy_nll[0]  # the easy rows alone would accept it
    assert nll[2] > nll[0]
    assert nll[1] <= nll[0]
    assert scaler.guarded_


@pytest.mark.parametrize("scaler", [AvUTemperatureScaling(), AUAvUTemperatureScaling(), AvUTemperatureScaling("paper")])
@pytest.mark.parametrize("labels", [[0, 1, 0], [1, 0, 1]], ids=["all right", "all wrong"])
def test_one_group_empty(scaler, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        scaler.fit([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], labels)
    assert math.isfinite(scaler.loss_)
    assert 0.05 <= scaler.temperature_ <= 20


def test_one_sample_and_one_class():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        assert math.isfinite(AvUTemperatureScaling().fit([[2.0, 0.0]], [0]).loss_)
        assert AvUTemperatureScaling().fit([[1.0], [2.0]], [0, 0]).temperature_ > 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"objective": "nll"}, "objective must be one of"),
        ({"variant": "hard"}, "variant must be one of"),
        ({"objective": "auavuc", "variant": "soft"}, "hard threshold"),
        ({"weight": -1.0}, "must not be negative"),
        ({"nll_weight": math.nan}, "must not be negative"),
        ({"threshold": "mean"}, "'refit', 'fixed', a number or None"),
        ({"threshold": None}, "for variant 'soft'"),
        ({"guard": 1}, "guard must be True or False"),
        ({"procedure": "sgd"}, "'search' or 'authors'"),
        ({"points": 1}, "points must be a whole number"),
    ],
)
def test_bad_parameters(params, message):
    with pytest.raises(InputError, match=message):
        AvUTemperatureScaling(**params).fit([[1.0, 0.0], [0.0, 2.0]], [0, 1])


# ---- real networks

TOLERANCE = 0.02


@pytest.fixture(scope="module")
def networks():
    """Logits of seven small networks trained here on real handwritten digits: too long, too little, on noise, smoothed.

    1,797 scikit-learn digits: 300 to train on, 1,497 to calibrate (half) and to judge (the other half).
    """
    from sklearn.datasets import load_digits

    images, digits = (torch.tensor(a) for a in load_digits(return_X_y=True))
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    images, digits = images[order].float() / 8 - 1, digits[order]

    def train(rows=300, epochs=40, hidden=64, noise=0.0, smoothing=0.0, rate=0.01):
        generator = torch.Generator().manual_seed(1)
        x, y = images[:rows], digits[:rows].clone()
        wrong = torch.rand(rows, generator=generator) < noise
        y[wrong] = torch.randint(10, (int(wrong.sum()),), generator=generator)
        with torch.random.fork_rng():
            torch.manual_seed(2)
            net = torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))
        optimiser = torch.optim.Adam(net.parameters(), rate)
        for _ in range(epochs):
            for batch in torch.randperm(rows, generator=generator).split(50):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(net(x[batch]), y[batch], label_smoothing=smoothing).backward()
                optimiser.step()
        with torch.no_grad():
            return net(images[300:]).numpy(), digits[300:].numpy()

    return {
        "overtrained": train(epochs=80),
        "50 rows": train(rows=50, epochs=60),
        "undertrained": train(epochs=1),
        "label noise": train(noise=0.4, epochs=60),
        "smoothed": train(smoothing=0.3),
        "narrow": train(hidden=4, epochs=60),
        "near chance": train(rows=10, epochs=60, noise=1.0),
    }


@pytest.mark.parametrize("scaler", [AvUTemperatureScaling, AUAvUTemperatureScaling])
def test_on_real_networks_ece_and_uce_are_not_worse_and_uce_is_at_least_that_of_nll(networks, scaler):
    """On rows the fit has not seen; 748 rows measure an ECE near 0.05 to about ±0.02, which is the tolerance."""
    uces: dict[str, list[float]] = {"nll": [], "avu": []}
    for name, (logits, labels) in networks.items():
        half = len(labels) // 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            avu = scaler().fit(logits[:half], labels[:half])
            nll = TemperatureScaling().fit(logits[:half], labels[:half])
        rest, truth = logits[half:], labels[half:]
        before, after = mean_probs(rest, 1.0), mean_probs(rest, avu.temperature_)
        for metric in (ece, uce):
            assert metric(after, truth) <= metric(before, truth) + TOLERANCE, (name, metric.__name__)
        uces["avu"].append(uce(after, truth))
        uces["nll"].append(uce(mean_probs(rest, nll.temperature_), truth))
    assert np.mean(uces["avu"]) <= np.mean(uces["nll"])
