"""Every method, with every objective, learns real digits and yields a posterior that predicts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import avuc.methods
from avuc.bayes import BayesianModule
from avuc.core.errors import InputError
from avuc.data.arrays import as_input
from avuc.methods import LLSVI, METHODS, SVI, SWAG, Dropout, Ensemble, LLDropout, Method, Objective, Radial, Vanilla
from avuc.methods.ensemble import EnsemblePosterior
from avuc.nets import mlp, small_cnn
from avuc.posterior import Posterior
from avuc.prediction import predict

SMALL: dict[str, Method] = {
    "vanilla": Vanilla(),
    "ensemble": Ensemble(members=2),
    "dropout": Dropout(rate=0.1),
    "ll_dropout": LLDropout(rate=0.1),
    "svi": SVI(),
    "ll_svi": LLSVI(),
    "radial": Radial(),
    "swag": SWAG(start=0.5, rank=3, bn_images=100),
}
TRAIN, EPOCHS = 600, 6


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    bytes_ = torch.from_numpy(images).mul(255 / 16).round().to(torch.uint8).view(-1, 8, 8, 1)
    classes = torch.from_numpy(labels).long()
    return bytes_[:TRAIN], classes[:TRAIN], bytes_[TRAIN : TRAIN + 300], classes[TRAIN : TRAIN + 300]


def net(seed: int = 0, kind: str = "cnn") -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    if kind == "cnn":
        return small_cnn(10, (8, 8, 1), width=8, generator=generator)
    return mlp(10, (8, 8, 1), hidden=(32,), generator=generator)


def fit(method: Method, objective: Objective, kind: str = "cnn", epochs: int = EPOCHS) -> list[nn.Module]:
    """The loop of methods/method.py at its smallest."""
    images, labels, _, _ = digits()
    x = as_input(images)
    models = []
    for member in range(method.members):
        order = torch.Generator().manual_seed(100 + member)
        model = method.build(net(member, kind), generator=torch.Generator().manual_seed(member)).train()
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        loss = objective.loss(len(x))
        for epoch in range(epochs):
            for rows in torch.randperm(len(x), generator=order).split(100):
                terms = loss(method.logits(model, x[rows]), labels[rows], method.kl(model))
                optimiser.zero_grad()
                terms.total.backward()
                optimiser.step()
            loss.epoch_end()
            method.epoch_end(model, epoch, epochs)
        models.append(model)
    return models


def accuracy(posterior: Posterior, samples: int = 8) -> float:
    _, _, images, labels = digits()
    return predict(posterior, images, labels, samples=samples).correct.double().mean().item()


OBJECTIVES = {
    "plain": Objective(kl_weight=0.01),
    "avuc": Objective("avuc", beta=1.0, variant="monotone", warmup_epochs=3, kl_weight=0.01),
    "auavuc": Objective("auavuc", beta=0.5, variant="monotone", warmup_epochs=3, kl_weight=0.01),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", METHODS)
def test_learns_and_predicts(name: str, objective: str) -> None:
    method = SMALL[name]
    models = fit(method, OBJECTIVES[objective])
    posterior = method.posterior(models, images=digits()[0])
    assert isinstance(posterior, Posterior)
    _, _, images, labels = digits()
    found = predict(posterior, images, labels, samples=8)
    assert found.correct.double().mean() > 0.6  # chance is 0.1
    spread = (found.entropy - found.expected_entropy).max()
    if name == "vanilla":
        assert found.samples == 1
        assert spread < 1e-6
    else:
        assert found.samples == (2 if name == "ensemble" else 8)
        assert spread > 1e-4


def test_every_file_is_listed_under_its_name() -> None:
    folder = Path(avuc.methods.__file__).parent
    helpers = {"__init__", "method", "objective", "batch_norm", "dropout_hooks", "dropout_layers"}
    files = {path.stem for path in folder.glob("*.py")} - helpers
    assert set(METHODS) == files == set(SMALL)
    for name, method in METHODS.items():
        assert method.name == name
        assert method.__module__ == f"avuc.methods.{name}"
        assert issubclass(method, Method)
        assert method() == method()  # frozen, with defaults throughout
        with pytest.raises(dataclasses.FrozenInstanceError):
            method().anything = 1


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_brings_everything_back(name: str) -> None:
    method = SMALL[name]
    models = fit(method, Objective(), kind="cnn", epochs=4)
    _, _, images, labels = digits()
    expected = predict(method.posterior(models, images=digits()[0]), images, labels, samples=4)
    fresh = [method.build(net(50 + member)) for member in range(method.members)]
    for model, trained in zip(fresh, models, strict=True):
        model.load_state_dict(copy.deepcopy(trained.state_dict()))
    found = predict(method.posterior(fresh, images=digits()[0]), images, labels, samples=4)
    assert torch.equal(found.probs, expected.probs)
    assert torch.equal(found.expected_entropy, expected.expected_entropy)


@pytest.mark.parametrize("name", METHODS)
def test_build_leaves_the_net_alone(name: str) -> None:
    original = net()
    before = copy.deepcopy(original.state_dict())
    model = SMALL[name].build(original)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    model.train()(torch.rand(4, 1, 8, 8))
    assert all(torch.equal(value, before[key]) for key, value in original.state_dict().items())
    assert not original.conv1._forward_pre_hooks
    assert model.training


@pytest.mark.parametrize("name", METHODS)
def test_training_noise_comes_from_the_generator(name: str) -> None:
    noisy = name not in ("vanilla", "ensemble", "swag")
    method, plain = SMALL[name], net()
    x = torch.rand(4, 1, 8, 8)

    def output(seed: int) -> Tensor:
        return method.logits(method.build(plain, generator=torch.Generator().manual_seed(seed)).train(), x)

    state = torch.get_rng_state()
    assert torch.equal(output(0), output(0))
    assert torch.equal(output(0), output(1)) != noisy
    assert torch.equal(torch.get_rng_state(), state)  # torch's own was not used
    own = method.build(plain).train()
    assert torch.equal(own(x), own(x)) != noisy


def test_kl_is_the_bayesian_modules_and_zero_elsewhere() -> None:
    for name, method in SMALL.items():
        model = method.build(net())
        if isinstance(model, BayesianModule):
            assert method.kl(model).item() == model.kl().item() != 0
        else:
            assert method.kl(model) == 0.0, name


def test_several_draws_a_step() -> None:
    method = SVI(train_draws=3)
    model = method.build(net(), generator=torch.Generator().manual_seed(0))
    logits = method.logits(model, torch.rand(4, 1, 8, 8))
    assert logits.shape == (3, 4, 10)
    assert not torch.equal(logits[0], logits[1])


def test_svi_options_reach_the_posterior() -> None:
    plain = net()
    model = SVI(prior_std=0.5, initial_std=0.02, estimator="flipout").build(plain)
    assert float(model.prior_std) == 0.5
    assert model.estimator == "flipout"
    torch.testing.assert_close(nn.functional.softplus(model.rho), torch.full_like(model.rho, 0.02))
    moped = SVI(moped=True, delta=0.25).build(plain)
    sigma = moped.layout.by_name(nn.functional.softplus(moped.rho))["conv1.weight"]
    torch.testing.assert_close(sigma, 0.25 * plain.conv1.weight.abs())
    torch.testing.assert_close(moped.layout.by_name(moped.prior_mean)["conv1.weight"], plain.conv1.weight)
    last = LLSVI().build(plain)
    assert [slot.name for slot in last.layout.slots] == ["linear.weight", "linear.bias"]
    assert Radial().build(plain).posterior == "radial"


def test_ensemble_of_stochastic_members_is_a_mixture() -> None:
    method = Ensemble(members=2, member=SVI(initial_std=1e-6))
    models = [method.build(net(seed)).eval() for seed in range(2)]
    posterior = method.posterior(models)
    assert posterior.num_draws is None
    _, _, images, labels = digits()
    x = as_input(images[:20])
    centres = torch.stack([net(seed).eval()(x) for seed in range(2)])
    seen = []
    for seed in range(40):
        logits = posterior.draw(torch.Generator().manual_seed(seed))(x)
        distances = (logits - centres).abs().amax((1, 2))
        seen.append(int(distances.argmin()))
        assert distances.min() < 1e-2
    assert 8 < sum(seen) < 32
    assert predict(posterior, images, labels, samples=6).samples == 6
    assert method.kl(models[0]) == models[0].kl()


def test_bad_methods() -> None:
    wrong: Sequence[tuple[object, str]] = (
        (lambda: Ensemble(members=0), "at least one member"),
        (lambda: Ensemble(member=Ensemble()), "found an ensemble"),
        (lambda: EnsemblePosterior([]), "found none"),
        (lambda: SVI(train_draws=0), "train_draws"),
        (lambda: Dropout(rate=1.0), "below 1, found 1.0"),
        (lambda: Dropout(rate=-0.1), "at least 0"),
        (lambda: Dropout().build(nn.ReLU()), "no linear or convolution layer"),
        (lambda: Dropout().posterior([nn.Linear(2, 2)]), "no dropout hooks"),
        (lambda: SWAG(start=1.0), "swag: start"),
        (lambda: SWAG(rank=1), "rank at least 2"),
        (lambda: SWAG().posterior([nn.Linear(2, 2)]), "expected the SWAGModel"),
        (lambda: SWAG().posterior([SWAG().build(nn.Linear(2, 2))]), "collected 0 sets of weights"),
        (lambda: SVI().posterior([nn.Linear(2, 2)]), "expected the BayesianModule"),
        (lambda: Vanilla().posterior([nn.Linear(2, 2)] * 2), "fits one model, found 2"),
    )
    for make, message in wrong:
        with pytest.raises(InputError, match=message):
            make()
