"""Calibrated.save and load: the same predictions, and files that are not trusted."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from avuc.bayes import Normal, to_bayesian
from avuc.calibration import TemperatureScaling, VectorScaling
from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.methods.dropout import Dropout, DropoutPosterior
from avuc.methods.svi import SVI
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets import small_cnn
from avuc.train import Calibrated


def network() -> nn.Module:
    return small_cnn(3, (8, 8, 1), width=4)


@pytest.fixture
def images():
    return torch.randint(256, (5, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def scaler():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 100)
    return TemperatureScaling().fit(4 * (rng.normal(size=(100, 3)) + np.eye(3)[labels]), labels)


POSTERIORS = {
    "moped": lambda net: SVI(moped=True, delta=0.1).build(net),
    "svi": lambda net: SVI(prior_std=0.3, estimator="flipout").build(net),
    "radial": lambda net: to_bayesian(net, posterior="radial"),
    "last": lambda net: to_bayesian(net, layers="last", initial_std=0.3),
    "wide prior": lambda net: to_bayesian(
        net, prior=Normal(0.5, {name: torch.full_like(value, 2.0) for name, value in net.named_parameters()})
    ),
    "network": DeterministicPosterior,
}


@pytest.mark.parametrize("kind", POSTERIORS)
def test_a_loaded_model_predicts_the_same(kind, images, scaler, tmp_path):
    torch.manual_seed(0)
    net = network()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.uniform_(-0.3, 0.3)
    posterior = POSTERIORS[kind](net)
    model = Calibrated(posterior, scaler)
    model.save(tmp_path / "model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    other = network()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    again = Calibrated.load(tmp_path / "model.safetensors", other)
    assert type(again.posterior) is type(posterior)
    assert again.network_fit is None
    assert again.calibrator.to_json() == scaler.to_json()
    one, two = (each.predict(images, samples=4, seed=2) for each in (model, again))
    assert torch.equal(one.probs, two.probs)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    for name, value in posterior.state_dict().items():
        assert torch.equal(value, again.posterior.state_dict()[name]), name
    if kind != "network":
        assert again.posterior.kl() == posterior.kl()
        assert (again.posterior.posterior, again.posterior.estimator) == (posterior.posterior, posterior.estimator)


def test_the_file_is_a_plain_safetensors_file(scaler, tmp_path):
    Calibrated(to_bayesian(network()), scaler).save(tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "avuc-calibrated"
    assert json.loads(metadata["calibrator"])["learned"]["temperature"] == scaler.temperature_


def test_other_posteriors_are_refused(scaler, tmp_path):
    dropout = DropoutPosterior(Dropout(rate=0.3).build(network()))
    with pytest.raises(InputError, match="found DropoutPosterior"):
        Calibrated(dropout, scaler).save(tmp_path / "model.safetensors")


@pytest.fixture
def saved(scaler, tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "model.safetensors"
    Calibrated(SVI(moped=True).build(network()), scaler).save(path)
    return path


def spoil(path, change):
    tensors, metadata = read_tensors(path)
    tensors = {name: value.clone() for name, value in tensors.items()}
    change(tensors, metadata)
    write_tensors(path, tensors, metadata)


def text(value):
    return torch.frombuffer(bytearray(value), dtype=torch.uint8)


def first_mean(tensors):
    return next(name for name in sorted(tensors) if name.startswith("mu."))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: m.clear() or m.update(a="b"), "not a file of Calibrated.save"),
        (lambda t, m: m.update(version="2"), "expected version 1"),
        (lambda t, m: m.update(more="x"), "expected version 1 with the keys"),
        (lambda t, m: m.update(takes_bytes="maybe"), "takes_bytes must be True or False"),
        (lambda t, m: m.update(posterior="pickle"), "posterior must be bayesian or network"),
        (lambda t, m: m.update(calibrator="{"), "not valid JSON"),
        (lambda t, m: m.update(calibrator=VectorScaling().to_json()), "before it was fitted"),
        (lambda t, m: t.pop(first_mean(t)), "another architecture|no tensor|missing"),
        (lambda t, m: t.update(extra=torch.zeros(1)), r"unknown \['extra'\]"),
        (lambda t, m: t.update({first_mean(t): t[first_mean(t)].double()}), "float64"),
        (lambda t, m: t.update({first_mean(t): torch.zeros(2)}), "expected"),
        (lambda t, m: t[first_mean(t)].view(-1)[0].fill_(torch.nan), "NaN or infinity"),
        (lambda t, m: t.update(prior_std=torch.zeros(3)), "prior_std: expected a number"),
        (lambda t, m: t.update(prior_std=torch.tensor(-1.0)), "above 0"),
        (lambda t, m: t.pop("settings"), "settings of the posterior are damaged"),
        (lambda t, m: t.update(settings=text(b"{")), "settings of the posterior are damaged"),
        (lambda t, m: t.update(settings=text(b"[" * 900)), "settings of the posterior are damaged"),
        (lambda t, m: t.update(settings=text(b" " * 5000)), "no short list of bytes"),
        (
            lambda t, m: t.update(settings=text(b'{"posterior": "x", "estimator": "weight"}')),
            "unknown posterior or estimator",
        ),
        (lambda t, m: t.update(settings=text(b'{"posterior": ["x"], "estimator": 1}')), "are damaged"),
    ],
)
def test_spoiled_files(change, message, saved):
    spoil(saved, change)
    with pytest.raises(InputError, match=rf"model\.safetensors: .*({message})"):
        Calibrated.load(saved, network())


@pytest.mark.parametrize("net", [small_cnn(4, (8, 8, 1), width=4), small_cnn(3, (8, 8, 1), width=8), nn.Linear(2, 3)])
def test_another_architecture(net, saved):
    with pytest.raises(InputError, match=r"model\.safetensors: "):
        Calibrated.load(saved, net)


def test_damaged_bytes(saved):
    whole = saved.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1], whole + b"x", b"\xff" * len(whole)):
        saved.write_bytes(damaged)
        with pytest.raises(InputError, match=r"model\.safetensors"):
            Calibrated.load(saved, network())
