"""The default training: the steps of the recipe, one after the other, on any net and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from avuc import metrics
from avuc.calibration import TemperatureScaling
from avuc.core.errors import InputError
from avuc.data import Dataset, Stream, list_folder
from avuc.methods import SVI, Vanilla
from avuc.nets import mlp, small_cnn
from avuc.posterior import seeded_generator
from avuc.prediction import predict
from avuc.prediction.predictor import Predictor
from avuc.study import load_recipe
from avuc.train import Calibrated, Job, TrainSettings, fit, fit_calibrated, fit_many
from avuc.training import default as calibrated
from avuc.training.default import DRAWS, default_plan

Factory = Callable[[torch.Generator], nn.Module]


class Stop(Exception):
    """Instead of a kill."""


def assert_equal(one: Calibrated, other: Calibrated) -> None:
    for ours, theirs in ((one.network_fit, other.network_fit), (one.posterior_fit, other.posterior_fit)):
        for (name, tensor), same in zip(
            ours.models[0].state_dict().items(), theirs.models[0].state_dict().values(), strict=True
        ):
            assert torch.equal(tensor, same), name
    assert one.calibrator.to_json() == other.calibrator.to_json()


# what is trained


@pytest.mark.parametrize(
    ("avuc", "second", "kind"), [(False, "MOPED-SVI", "plain"), (True, "MOPED-AvUC", "avuc")], ids=["elbo", "avuc"]
)
def test_the_steps_are_those_of_the_recipe(avuc: bool, second: str, kind: str) -> None:
    recipe, plan = load_recipe("cifar10-best"), default_plan(use_avuc_loss=avuc)
    for step, name in ((plan.network, "SGD"), (plan.posterior, second)):
        config = recipe.method(name)
        assert (step.method, step.objective) == (config.method, config.objective)
        assert step.settings == replace(config.train, checkpoint_every=1)
    assert recipe.method(second).init_from == "SGD"
    assert recipe.method(f"{second} + TS").reuse_model == second
    assert isinstance(plan.network.method, Vanilla)
    assert isinstance(plan.posterior.method, SVI)
    assert plan.posterior.method.moped
    assert plan.posterior.objective.kind == kind
    assert type(plan.calibrator) is TemperatureScaling
    assert default_plan(plan.network.settings.epochs, use_avuc_loss=avuc)[:2] == plan[:2]


def schedule(settings: TrainSettings) -> tuple[int, dict[int, float]]:
    return settings.epochs, dict(zip(settings.milestones, settings.factors, strict=True))


@pytest.mark.parametrize(
    ("epochs", "first", "second", "warm_up"),
    [
        (400, (400, {200: 0.2, 300: 0.04, 360: 0.008}), (60, {30: 0.3, 44: 0.1, 54: 0.03}), 4),
        (100, (100, {50: 0.2, 75: 0.04, 90: 0.008}), (15, {8: 0.3, 11: 0.1, 14: 0.03}), 1),
        (20, (20, {10: 0.2, 15: 0.04, 18: 0.008}), (3, {2: 0.1}), 1),
        (4, (4, {2: 0.2, 3: 0.04}), (2, {1: 0.1}), 1),
        (1, (1, {}), (2, {1: 0.1}), 1),
    ],
)
def test_other_epochs_keep_the_shares(epochs: int, first: Any, second: Any, warm_up: int) -> None:
    plan = default_plan(epochs, use_avuc_loss=True)
    assert schedule(plan.network.settings) == first
    assert schedule(plan.posterior.settings) == second
    assert plan.posterior.objective.warmup_epochs == warm_up


@pytest.mark.parametrize("epochs", [*range(1, 13), 33, 67, 150, 230])
def test_every_number_of_epochs_has_a_schedule(epochs: int) -> None:
    usual, plan = default_plan(use_avuc_loss=True), default_plan(epochs, use_avuc_loss=True)
    assert plan.network.settings.epochs == epochs
    assert 1 <= plan.posterior.objective.warmup_epochs < plan.posterior.settings.epochs  # AvUC has its turn
    for step, recipe in ((plan.network, usual.network), (plan.posterior, usual.posterior)):
        count, whole = step.settings.epochs, recipe.settings.epochs
        assert step.settings.rate(0) == recipe.settings.learning_rate
        for epoch in range(
            count
        ):  # the rate that the recipe has at that share of its epochs, or half an epoch beside it
            near = [min(whole - 1, max(0, int((epoch + shift) * whole / count))) for shift in (-0.5, 0, 0.5)]
            assert step.settings.rate(epoch) in [recipe.settings.rate(other) for other in range(near[0], near[2] + 1)]


@pytest.mark.parametrize("avuc", [False, True], ids=["elbo", "avuc"])
def test_each_step_is_a_fit_and_the_temperature_that_of_its_draws(
    avuc: bool, net: Factory, train: Dataset, held_out: Dataset
) -> None:
    found = fit_calibrated(net, train, held_out, epochs=4, use_avuc_loss=avuc, seed=3, progress=False)
    first, second, _ = default_plan(4, use_avuc_loss=avuc)
    here: dict[str, Any] = {"validation": held_out, "seed": 3, "progress": False}
    settings = replace(first.settings, precision="float32", pad=1)
    plain = fit(first.method, net, train, settings=settings, **here)
    settings = replace(second.settings, precision="float32", pad=1)
    tuned = fit(second.method, plain.models[0], train, objective=second.objective, settings=settings, **here)
    logits = Predictor(tuned.posterior, seed=3).logits(held_out.images, DRAWS)
    scaler = TemperatureScaling().fit(logits, held_out.labels)
    assert_equal(found, Calibrated(tuned.posterior, scaler, plain, tuned))
    assert found.posterior is found.posterior_fit.posterior
    assert found.posterior_fit.threshold == tuned.threshold
    assert (found.posterior_fit.threshold is not None) == (found.posterior_fit.history[-1]["avuc"] > 0) == avuc

    ours = found.predict(held_out.images, held_out.labels, samples=8, seed=5)
    theirs = predict(
        tuned.posterior, held_out.images, held_out.labels, samples=8, seed=5, calibrator=scaler, progress=False
    )
    assert torch.equal(ours.probs, theirs.probs)
    assert ours.samples == 8


def test_it_learns_and_knows_how_much(plain_net: Factory, train: Dataset, held_out: Dataset, digits: Dataset) -> None:
    found = fit_calibrated(plain_net, train, held_out, epochs=20, flip=False, progress=False)
    test = digits.subset(range(1300, 1797))
    judged = found.predict(test.images, test.labels, samples=32)
    raw = predict(found.posterior, test.images, test.labels, samples=32, progress=False)
    assert metrics.accuracy(judged.probs, judged.labels) > 0.7
    assert metrics.nll(judged.probs, judged.labels) < metrics.nll(raw.probs, raw.labels)


def test_colours_and_a_network_as_the_start() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    images = (
        torch.randint(128, (60, 32, 32, 3), generator=generator) + 127 * nn.functional.one_hot(labels)[:, None, None]
    )
    data = Dataset(images.to(torch.uint8), labels, 3, "colours")
    parts = data.subset(range(40)), data.subset(range(40, 60))

    def net(generator: torch.Generator) -> nn.Module:
        return small_cnn(3, (32, 32, 3), width=2, generator=generator)

    module = net(seeded_generator(0, 0, 0))  # where the function starts too
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    one, other = (fit_calibrated(start, *parts, epochs=1, progress=False) for start in (net, module))
    assert_equal(one, other)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("float32", True)),
        ({"flip": False}, ("float32", False)),
        ({"device": "cuda:0"}, ("bfloat16", True)),
    ],
    ids=["cpu", "no mirror", "gpu"],
)
def test_what_the_device_and_the_data_decide(
    given: dict[str, Any],
    expected: tuple[str, bool],
    plain_net: Factory,
    train: Dataset,
    held_out: Dataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(jobs: list[Job], **__: Any) -> None:
        settings = jobs[0].settings
        assert (settings.precision, settings.flip) == expected
        assert (settings.augmentation, settings.pad) == ("augmix", 1)  # of 8 pixels, as 4 of 32
        raise Stop

    monkeypatch.setattr(calibrated, "fit_many", asked)
    with pytest.raises(Stop):
        fit_calibrated(plain_net, train, held_out, **given)


# resuming


def quick(net: Factory, train: Dataset, held_out: Dataset, directory: Path | None) -> Calibrated:
    return fit_calibrated(net, train, held_out.subset(range(100)), epochs=2, directory=directory, progress=False)


def killed(*_: Any, **__: Any) -> Any:
    raise Stop


def test_a_kill_between_the_steps_changes_nothing(
    normalised_net: Factory, train: Dataset, held_out: Dataset, tmp_path: Path
) -> None:
    whole = quick(normalised_net, train, held_out, None)
    calls = iter([fit_many, killed])
    with pytest.MonkeyPatch.context() as patch:  # after the first step
        patch.setattr(calibrated, "fit_many", lambda *args, **options: next(calls)(*args, **options))
        with pytest.raises(Stop):
            quick(normalised_net, train, held_out, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    with pytest.MonkeyPatch.context() as patch:  # after the second
        patch.setattr(TemperatureScaling, "fit", killed)
        with pytest.raises(Stop):
            quick(normalised_net, train, held_out, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]
    assert_equal(whole, quick(normalised_net, train, held_out, tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calibrator.json", "first", "second"]
    assert TemperatureScaling.load(tmp_path / "calibrator.json").to_json() == whole.calibrator.to_json()
    with pytest.MonkeyPatch.context() as patch:  # finished: read back
        patch.setattr(TemperatureScaling, "fit", killed)
        assert_equal(whole, quick(normalised_net, train, held_out, tmp_path))


def test_a_calibrator_of_weights_that_are_gone_is_not_read(
    plain_net: Factory, train: Dataset, held_out: Dataset, tmp_path: Path
) -> None:
    whole = quick(plain_net, train, held_out, tmp_path)
    other = TemperatureScaling().fit(torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1, 1]))
    other.save(tmp_path / "calibrator.json")
    for path in (tmp_path / "second").iterdir():
        path.unlink()
    calls = iter([fit_many, killed])
    with pytest.MonkeyPatch.context() as patch:  # killed once more on the way
        patch.setattr(calibrated, "fit_many", lambda *args, **options: next(calls)(*args, **options))
        with pytest.raises(Stop):
            quick(plain_net, train, held_out, tmp_path)
    assert not (tmp_path / "calibrator.json").exists()
    assert_equal(whole, quick(plain_net, train, held_out, tmp_path))


def test_another_run_in_the_directory_is_refused(
    plain_net: Factory, train: Dataset, held_out: Dataset, tmp_path: Path
) -> None:
    quick(plain_net, train, held_out, tmp_path)
    with pytest.raises(InputError, match=r"first.*made by another run .*train\.epochs is 3, was 2"):
        fit_calibrated(plain_net, train, held_out, epochs=3, directory=tmp_path, progress=False)


# streams of files


@pytest.fixture
def pictures(digits: Dataset, tmp_path: Path) -> Path:
    for number in range(120):
        place = tmp_path / "pictures" / str(int(digits.labels[number]))
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.images[number, :, :, 0].numpy()).save(place / f"{number:03d}.png")
    return tmp_path / "pictures"


def test_a_stream_trains_without_augmix_and_says_so(
    pictures: Path, held_out: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    def net(generator: torch.Generator) -> nn.Module:
        return mlp(10, (8, 8, 3), hidden=(8,), generator=generator)

    colour = replace(held_out, images=held_out.images.expand(-1, -1, -1, 3))
    size = default_plan().network.settings.batch_size
    streams = [Stream(list_folder(pictures), n, train=True, size=8, workers=0) for n in (size, 30)]
    found = fit_calibrated(net, streams[0], colour, epochs=1, progress=False)
    said = capsys.readouterr().err
    assert "no AugMix" in said
    assert said.count("\n") == 1
    assert found.predict(colour.images[:3], samples=2).probs.shape == (3, 10)
    with pytest.raises(InputError, match=f"not batches of {size}"):
        fit_calibrated(net, streams[1], colour, epochs=1, progress=False)


# bad input


def test_refusals(
    plain_net: Factory, train: Dataset, held_out: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(message: str, validation: Any = held_out, **options: Any) -> None:
        with pytest.raises(InputError, match=message):
            fit_calibrated(plain_net, train, validation, directory=tmp_path / "run", progress=False, **options)
        assert not (tmp_path / "run").exists()

    refused(r"temperature is learned on held-out images; give them as validation", None)
    refused("with a label for each", replace(held_out, labels=held_out.labels - 1))
    refused("expected at least one", held_out.subset([]))
    refused("of 12 classes for training images of 10", replace(held_out, num_classes=12))
    refused("epochs must be at least 1, or None for the recipe's 200; found 0", epochs=0)
    refused("seed must not be negative", seed=-1)
    monkeypatch.setattr(calibrated, "Ranks", lambda: SimpleNamespace(size=2))
    refused("one process, found 2 ranks; start it without torchrun")


# names of version 0.1.0


def test_old_names_still_work(
    plain_net: Factory, train: Dataset, held_out: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[Any] = [object() for _ in range(4)]
    result = Calibrated(*parts)
    with pytest.warns(DeprecationWarning, match=r"Calibrated\.first is now network_fit"):
        assert result.first is result.network_fit
    with pytest.warns(DeprecationWarning, match=r"Calibrated\.second is now posterior_fit"):
        assert result.second is result.posterior_fit
    with pytest.warns(DeprecationWarning, match=r"default_plan\(avuc=\) is now use_avuc_loss"):
        plan = default_plan(avuc=True)
    assert plan[:2] == default_plan(use_avuc_loss=True)[:2]
    with pytest.warns(DeprecationWarning, match=r"Plan\.first is now network"):
        assert plan.first is plan.network
    with pytest.warns(DeprecationWarning, match=r"Plan\.second is now posterior"):
        assert plan.second is plan.posterior

    asked = []

    def noted(epochs: int | None, *, use_avuc_loss: bool) -> None:
        asked.append(use_avuc_loss)
        raise Stop

    monkeypatch.setattr(calibrated, "default_plan", noted)
    for avuc in (True, False):
        with (
            pytest.warns(DeprecationWarning, match=r"fit_calibrated\(avuc=\) is now use_avuc_loss"),
            pytest.raises(Stop),
        ):
            fit_calibrated(plain_net, train, held_out, avuc=avuc)
    assert asked == [True, False]
