"""The one loop: equal to a loop written by hand, and every method with every objective learns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc import metrics
from avuc.core.errors import InputError
from avuc.data import Dataset, as_input, augment
from avuc.losses import avuc_loss
from avuc.methods import METHODS, SVI, SWAG, Ensemble, Method, Objective, Vanilla
from avuc.nets import mlp
from avuc.posterior import seeded_generator
from avuc.prediction import predict
from avuc.train import Fitted, Job, TrainSettings, fit, fit_many
from avuc.uncertainty import entropy

QUICK = TrainSettings(epochs=3, batch_size=64, learning_rate=3e-3, pad=1, flip=False)
Factory = Callable[[torch.Generator], nn.Module]


def weights(fitted: Fitted) -> list[Tensor]:
    return [tensor for model in fitted.models for tensor in model.state_dict().values()]


def assert_equal(one: Fitted, other: Fitted) -> None:
    for ours, theirs in zip(weights(one), weights(other), strict=True):
        assert torch.equal(ours, theirs)


def by_hand(net: nn.Module, data: Dataset, settings: TrainSettings, seed: int) -> tuple[nn.Module, list[float]]:
    """What `fit` promises for Vanilla, without any of its machinery."""

    def new_optimizer() -> torch.optim.Optimizer:
        if settings.optimizer == "adam":
            return torch.optim.Adam(net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
        return torch.optim.SGD(net.parameters(), lr=settings.learning_rate, momentum=settings.momentum)

    optimizer = new_optimizer()
    means = []
    for epoch in range(settings.epochs):
        if settings.reset_optimizer:
            optimizer = new_optimizer()
        order = torch.randperm(len(data), generator=seeded_generator(seed, 0, 1, epoch))
        crops = seeded_generator(seed, 0, 2, epoch)
        for group in optimizer.param_groups:
            group["lr"] = settings.rate(epoch)
        total = 0.0
        for start in range(0, len(data), settings.batch_size):
            rows = order[start : start + settings.batch_size]
            images = as_input(augment(data.images, rows, crops, pad=settings.pad, flip=settings.flip))
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), data.labels[rows])
            loss.backward()
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(net.parameters(), settings.clip_norm)
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        means.append(total / len(data))
    return net, means


@pytest.mark.parametrize(
    "settings",
    [
        QUICK,
        replace(QUICK, optimizer="sgd", learning_rate=0.05, milestones=(1, 2), factors=(0.1, 0.05), flip=True),
        replace(QUICK, weight_decay=1e-2, clip_norm=0.5, batch_size=100),  # 500 images: no partial batch
        replace(QUICK, reset_optimizer=True),
        replace(QUICK, reset_optimizer=True, optimizer="sgd", learning_rate=0.05),
    ],
    ids=["adam", "sgd with milestones", "decay and clipping", "new adam each epoch", "new sgd each epoch"],
)
def test_vanilla_is_the_loop_written_by_hand(settings: TrainSettings, net: Factory, train: Dataset) -> None:
    fitted = fit(Vanilla(), net, train, settings=settings, seed=5, progress=False)
    start = net(seeded_generator(5, 0, 0))
    expected, means = by_hand(start, train, settings, 5)
    for (name, ours), theirs in zip(fitted.models[0].state_dict().items(), expected.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert [record["nll"] for record in fitted.history] == pytest.approx(means, rel=1e-12)


@pytest.mark.parametrize("method", [SWAG(), Ensemble(2, SWAG())])
def test_swag_with_too_few_epochs_is_refused_before_training(
    method: Method, plain_net: Factory, train: Dataset, tmp_path: Path
) -> None:
    epochs: list[int] = []
    with pytest.raises(InputError, match=r"start=0.75, 3 epochs collect fewer.*at least 8 epochs, or use a smaller"):
        fit(
            method,
            plain_net,
            train,
            settings=QUICK,
            directory=tmp_path / "run",
            progress=False,
            on_epoch=lambda epoch, figures: epochs.append(epoch),
        )
    assert not epochs
    assert not (tmp_path / "run").exists()


METHODS_TO_TRAIN: dict[str, Method] = {
    **{name: METHODS[name]() for name in ("vanilla", "dropout", "ll_dropout", "svi", "ll_svi", "radial")},
    "ensemble": Ensemble(members=2),
    "swag": SWAG(start=0.5),
    "svi, two draws": SVI(train_draws=2),
    "svi, flipout": SVI(estimator="flipout"),
}


def test_every_method_is_trained_here() -> None:
    assert {name.split(",")[0] for name in METHODS_TO_TRAIN} == set(METHODS)


@pytest.mark.parametrize("kind", ["plain", "avuc", "auavuc"])
@pytest.mark.parametrize("method", METHODS_TO_TRAIN.values(), ids=METHODS_TO_TRAIN.keys())
def test_every_method_learns(method: Method, kind: str, train: Dataset, held_out: Dataset, plain_net: Factory) -> None:
    objective = Objective(kind, beta=1.0, warmup_epochs=2, kl_weight=0.01)  # type: ignore[arg-type]
    settings = replace(QUICK, epochs=5, learning_rate=1e-2, pad=0)
    fitted = fit(method, plain_net, train, objective=objective, settings=settings, seed=1, progress=False)
    first, last = fitted.history[0], fitted.history[-1]
    assert last["nll"] < 0.5 * first["nll"]
    predictions = predict(fitted.posterior, held_out.images, held_out.labels, samples=8, progress=False)
    assert metrics.accuracy(predictions.probs, predictions.labels) > 0.75
    assert (fitted.threshold is not None) == (kind == "avuc")
    assert len(fitted.history) == 5 * method.members
    assert (last["avuc"] != 0) == (kind != "plain")
    assert first["avuc"] == 0


def test_the_terms_are_the_loss_calibrated_elbo(train: Dataset, plain_net: Factory) -> None:
    """One SVI-AvUC step against the formula, draw by draw and row by row."""
    settings = replace(QUICK, epochs=1, batch_size=500, pad=0)
    objective = Objective("avuc", beta=3.0, warmup_epochs=0, threshold=1.5, kl_weight=0.1, variant="monotone")
    fitted = fit(SVI(), plain_net, train, objective=objective, settings=settings, seed=3, progress=False)
    model = SVI().build(plain_net(seeded_generator(3, 0, 0)))
    noise = model.noise(torch.Generator().manual_seed(seeded_generator(3, 0, 3, 0).initial_seed()))
    with torch.no_grad():
        order = torch.randperm(500, generator=seeded_generator(3, 0, 1, 0))
        logits = model.run(model.weights(noise), as_input(train.images[order])).double()
        labels = train.labels[order]
    record = fitted.history[0]
    nll = sum(-float(logits[i].log_softmax(0)[labels[i]]) for i in range(500)) / 500
    kl = 0.1 * float(model.kl().detach()) / 500
    avuc = float(avuc_loss(logits, labels, 1.5, variant="monotone"))
    assert record["nll"] == pytest.approx(nll, rel=1e-5)
    assert record["kl"] == pytest.approx(kl, rel=1e-5)
    assert record["avuc"] == pytest.approx(avuc, rel=1e-4)
    assert record["total"] == pytest.approx(nll + kl + 3 * avuc, rel=1e-5)
    probs = logits.softmax(-1)
    right = probs.argmax(-1) == labels
    assert record["accuracy"] == pytest.approx(float(right.double().mean()))
    assert record["avu"] == pytest.approx(float((right == (entropy(probs) <= 1.5)).double().mean()))


def test_threshold_comes_from_the_training_predictions_of_the_warm_up(train: Dataset, plain_net: Factory) -> None:
    """Midpoint of the mean uncertainties of right and wrong predictions over the warm-up epochs."""
    objective = Objective("avuc", warmup_epochs=1)
    fitted = fit(Vanilla(), plain_net, train, objective=objective, settings=QUICK, seed=0, progress=False)
    first = fitted.history[0]
    midpoint = (first["uncertainty_right"] + first["uncertainty_wrong"]) / 2
    assert fitted.threshold == pytest.approx(midpoint, rel=1e-6)
    assert [record["threshold"] for record in fitted.history] == [fitted.threshold] * 3
    assert first["avuc"] == 0
    assert fitted.history[1]["avuc"] > 0


def test_the_last_partial_batch_is_used(train: Dataset, plain_net: Factory) -> None:
    """One image left over changes the weights."""
    some = train.subset(range(129))
    settings = replace(QUICK, epochs=1)
    fitted = fit(Vanilla(), plain_net, some, settings=settings, seed=2, progress=False)
    net = plain_net(seeded_generator(2, 0, 0))
    whole, _ = by_hand(copy.deepcopy(net), some, settings, 2)
    assert torch.equal(next(fitted.models[0].parameters()), next(whole.parameters()))
    without = TrainSettings(**{**settings.__dict__, "batch_size": 64})
    kept = train.subset(torch.randperm(129, generator=seeded_generator(2, 0, 1, 0))[:128])
    cut, _ = by_hand(copy.deepcopy(net), kept, without, 2)
    assert not torch.equal(next(whole.parameters()), next(cut.parameters()))


def test_kl_annealing(train: Dataset, plain_net: Factory) -> None:
    settings = replace(QUICK, epochs=4, kl_anneal_epochs=2, learning_rate=1e-9)
    fitted = fit(SVI(), plain_net, train, settings=settings, progress=False)
    kl = [record["kl"] for record in fitted.history]
    assert kl[0] == 0
    assert [kl[1] / kl[3], kl[2] / kl[3]] == pytest.approx([0.5, 1.0], rel=1e-4)


def test_moving_average(train: Dataset, normalised_net: Factory) -> None:
    """EMA is a recurrence over the weights after each step; the run itself is not touched by it."""
    settings = replace(QUICK, epochs=1, ema_decay=0.9, batch_size=250)
    averaged = fit(Vanilla(), normalised_net, train, settings=settings, progress=False)
    state = {k: v for k, v in normalised_net(seeded_generator(0, 0, 0)).state_dict().items() if v.is_floating_point()}
    full = TrainSettings(**{**settings.__dict__, "ema_decay": 0.0})
    order = torch.randperm(500, generator=seeded_generator(0, 0, 1, 0))
    net = normalised_net(seeded_generator(0, 0, 0))
    optimizer, crops = torch.optim.Adam(net.parameters(), lr=full.learning_rate), seeded_generator(0, 0, 2, 0)
    for rows in order.split(250):
        images = as_input(augment(train.images, rows, crops, pad=1, flip=False))
        optimizer.zero_grad()
        F.cross_entropy(net(images), train.labels[rows]).backward()
        optimizer.step()
        state = {name: value + 0.1 * (net.state_dict()[name] - value) for name, value in state.items()}
    for name, value in state.items():
        torch.testing.assert_close(averaged.models[0].state_dict()[name], value)


def test_early_stop_looks_at_validation_only_and_returns_to_the_best(
    train: Dataset, held_out: Dataset, plain_net: Factory
) -> None:
    settings = replace(QUICK, epochs=40, learning_rate=0.03, patience=2, pad=0)
    fitted = fit(Vanilla(), plain_net, train, validation=held_out, settings=settings, progress=False)
    nll = [record["validation_nll"] for record in fitted.history]
    best = min(range(len(nll)), key=nll.__getitem__)
    assert fitted.epochs == len(nll) == best + 3 < 40
    predictions = predict(fitted.posterior, held_out.images, held_out.labels, progress=False)
    assert metrics.nll(predictions.probs, predictions.labels) == pytest.approx(nll[best], rel=1e-6)
    without = fit(Vanilla(), plain_net, train, settings=replace(settings, patience=0, epochs=3), progress=False)
    with_data = replace(settings, patience=0, epochs=3)
    watched = fit(Vanilla(), plain_net, train, validation=held_out, settings=with_data, progress=False)
    assert_equal(without, watched)  # looking changes nothing


def test_the_epoch_with_the_best_validation_accuracy_is_kept(
    train: Dataset, held_out: Dataset, plain_net: Factory
) -> None:
    settings = replace(QUICK, epochs=12, learning_rate=0.1, keep="best_accuracy", pad=0)
    fitted = fit(Vanilla(), plain_net, train, validation=held_out, settings=settings, progress=False)
    accuracy = [record["validation_accuracy"] for record in fitted.history]
    best = max(range(len(accuracy)), key=accuracy.__getitem__)
    assert fitted.epochs == len(accuracy) == 12
    assert best < 11  # or the test would not see a difference
    predictions = predict(fitted.posterior, held_out.images, held_out.labels, progress=False)
    assert metrics.accuracy(predictions.probs, predictions.labels) == accuracy[best]
    stopped_there = replace(settings, epochs=best + 1, keep="last")
    assert_equal(fitted, fit(Vanilla(), plain_net, train, settings=stopped_there, progress=False))
    with pytest.raises(InputError, match="keep chooses an epoch by its validation accuracy"):
        fit(Vanilla(), plain_net, train, settings=settings, progress=False)


def test_everything_random_follows_from_the_seed(train: Dataset, plain_net: Factory) -> None:
    runs = [fit(SVI(), plain_net, train, settings=QUICK, seed=seed, progress=False) for seed in (4, 4, 5)]
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = fit(SVI(), plain_net, train, settings=QUICK, seed=4, progress=False)
    assert torch.equal(torch.get_rng_state(), before)  # the caller's generator is left alone
    assert_equal(runs[0], runs[1])
    assert_equal(runs[0], again)
    assert not torch.equal(weights(runs[0])[0], weights(runs[2])[0])


def test_side_by_side_is_the_same_as_alone(train: Dataset, plain_net: Factory) -> None:
    avuc = Objective("avuc", warmup_epochs=1)
    cases = [(SVI(), avuc), (METHODS["dropout"](), Objective()), (Ensemble(members=2), avuc)]
    jobs = [Job(method, plain_net, train, objective, QUICK, seed=7) for method, objective in cases]
    for job, together in zip(jobs, fit_many(jobs, progress=False), strict=True):
        alone = fit(job.method, plain_net, train, objective=job.objective, settings=QUICK, seed=7, progress=False)
        assert_equal(alone, together)


def test_a_network_given_as_such_is_where_training_starts_and_stays_as_it_was(
    train: Dataset, plain_net: Factory
) -> None:
    net = plain_net(torch.Generator().manual_seed(0))
    before = copy.deepcopy(net.state_dict())
    fitted = fit(SVI(moped=True), net, train, settings=replace(QUICK, learning_rate=1e-12, epochs=1), progress=False)
    mean = fitted.models[0].mean_module()  # type: ignore[operator]
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
        torch.testing.assert_close(mean.state_dict()[name], value)


class Kinked(nn.Module):
    """Finite everywhere, with a gradient that is not: d√|w|/dw at 0."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.kink = net, nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images) + self.kink.abs().sqrt()


@pytest.mark.parametrize("term", ["logits", "gradient", "kl"])
def test_nan_stops_with_step_and_term(term: str, train: Dataset, plain_net: Factory) -> None:
    method, net, rate = Vanilla(), plain_net, QUICK.learning_rate
    if term == "logits":
        rate, step = 1e30, 1
    elif term == "gradient":
        net, step = lambda g: Kinked(plain_net(g)), 0
    else:
        method, step = SVI(prior_std=1e-25), 0  # σ²/(2s²) overflows
    with pytest.raises(
        InputError, match=rf"epoch 0, step {step}: the {term} became NaN or infinite; there is no check"
    ):
        fit(method, net, train, settings=replace(QUICK, learning_rate=rate), progress=False)


def test_nan_under_avuc_names_the_step_too(train: Dataset, plain_net: Factory, tmp_path: Path) -> None:
    settings = replace(QUICK, epochs=2, milestones=(1,), factors=(1e30,), checkpoint_seconds=0.0)
    objective = Objective("avuc", threshold=1.0, warmup_epochs=0)
    with pytest.raises(InputError, match=r"epoch 1, step 1: .*last good checkpoint is .*checkpoint-000001"):
        fit(Vanilla(), plain_net, train, objective=objective, settings=settings, directory=tmp_path, progress=False)


def test_schedule_of_the_paper() -> None:
    settings = TrainSettings()
    rates = {epoch: settings.rate(epoch) / 1.189e-3 for epoch in (0, 79, 80, 119, 120, 160, 179, 180, 199)}
    expected = {0: 1, 79: 1, 80: 0.1, 119: 0.1, 120: 0.01, 160: 0.001, 179: 0.001, 180: 0.0005, 199: 0.0005}
    assert rates == pytest.approx(expected)
    assert (settings.epochs, settings.batch_size, settings.optimizer, settings.ema_decay) == (200, 107, "adam", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"optimizer": "adamw"}, "one of adam, sgd"),
        ({"milestones": (3, 2), "factors": (1.0, 1.0)}, "rising epochs"),
        ({"milestones": (3,)}, "one factor for each"),
        ({"learning_rate": math.nan}, "must be positive"),
        ({"clip_norm": -1.0}, "must not be negative"),
        ({"ema_decay": 1.0}, "ema_decay"),
    ],
)
def test_settings_refuse(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainSettings(**change)  # type: ignore[arg-type]


def test_fit_refuses(train: Dataset, plain_net: Factory) -> None:
    net = plain_net(torch.Generator())
    with pytest.raises(InputError, match="different starts"):
        fit(Ensemble(members=2), net, train, settings=QUICK)
    with pytest.raises(InputError, match="give validation data"):
        fit(Vanilla(), net, train, settings=replace(QUICK, patience=1))
    with pytest.raises(InputError, match="seed must not be negative"):
        fit(Vanilla(), net, train, settings=QUICK, seed=-1)
    unlabelled = Dataset(train.images[:2], torch.tensor([0, -1]), 10)
    with pytest.raises(InputError, match="a label for each"):
        fit(Vanilla(), net, unlabelled, settings=QUICK)
    epochs: list[int] = []
    for held_out in (unlabelled, train.subset([])):
        with pytest.raises(InputError, match="validation needs examples, and a label for each"):
            fit(
                Vanilla(),
                net,
                train,
                settings=QUICK,
                validation=held_out,
                progress=False,
                on_epoch=lambda epoch, figures: epochs.append(epoch),
            )
    assert not epochs


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_weight_decay_leaves_the_widths_of_a_posterior_alone(optimizer: str) -> None:
    """ρ would go to 0, that is σ to 0.69, whatever the data say."""
    images = torch.randint(256, (12, 6, 6, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = Dataset(images, torch.arange(12) % 3, 3)
    settings = TrainSettings(epochs=1, batch_size=12, optimizer=optimizer, learning_rate=0.1, pad=0, flip=False)  # type: ignore[arg-type]
    found = {
        decay: fit(
            SVI(initial_std=0.02),
            lambda generator: mlp(3, (6, 6, 1), generator=generator),
            data,
            settings=replace(settings, weight_decay=decay),
            progress=False,
        ).models[0]
        for decay in (0.0, 0.5)
    }
    assert torch.equal(found[0.0].rho, found[0.5].rho)
    assert not torch.allclose(found[0.0].mu, found[0.5].mu)
