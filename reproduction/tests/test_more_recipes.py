"""Recipes around the factorial, the baselines, noisy labels, and the ensemble that is made of trained seeds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import ensemble_of_seeds
import factorial_more
import noisy_labels
import past
import pytest
import torch

from avuc.core.errors import InputError
from avuc.data import Dataset, split_dataset
from avuc.study import load_recipe
from avuc.study.grid import ModelKey
from avuc.study.recipe.load import parse_recipe
from avuc.study.worker import StudyWorker

FOLDER = Path(__file__).parents[1] / "recipes"
SIXTEEN = load_recipe("cifar10-paper").study.shifts


@pytest.mark.parametrize("name", factorial_more.recipes())
def test_recipes_are_what_the_script_writes(name):
    assert (FOLDER / f"{name}.toml").read_text(encoding="utf-8") == factorial_more.recipes()[name]


def in_share(settings, share):
    """Training settings with fewer epochs, and the steps of the learning rate at the same share of them."""
    steps = tuple(round(step * share) for step in settings.milestones)
    return replace(settings, epochs=round(settings.epochs * share), milestones=steps)


@pytest.mark.parametrize("name", factorial_more.recipes())
def test_methods_are_those_of_the_factorial(name):
    base, recipe = load_recipe(FOLDER / "factorial.toml"), load_recipe(FOLDER / f"{name}.toml")
    share = factorial_more.SECOND_SHARE if name == "factorial-resnet56" else 1
    for method in recipe.methods:
        expected = base.method(method.name)
        assert method == replace(expected, train=in_share(expected.train, share))
    assert recipe.train == in_share(base.train, share)
    assert (recipe.data != base.data) + (recipe.net != base.net) == 1
    assert (recipe.study.samples, recipe.study.severities) == (base.study.samples, base.study.severities)


def test_the_second_network_takes_any_corners():
    corners = [factorial_more.parse_corner(text) for text in ("SGD, none", "AugMix, MOPED")]
    recipe = parse_recipe(factorial_more.recipes(corners)["factorial-resnet56"])
    trained = [method.name for method in recipe.trained]
    assert trained == [
        "AugMix, none, none",  # MOPED starts there
        "SGD, none, none",
        "SGD, none, AvUC",
        "AugMix, MOPED, none",
        "AugMix, MOPED, AvUC",
    ]
    with pytest.raises(Exception, match="no corner 'Adam, some'"):
        factorial_more.parse_corner("Adam, some")
    with pytest.raises(ValueError, match="is not in the recipe"):
        factorial_more.replaced("a", "b", "c")


def test_past_recipes_are_what_the_script_writes():
    assert (FOLDER / "past-choice.toml").read_text(encoding="utf-8") == past.choice_recipe()
    assert (FOLDER / "past.toml").read_text(encoding="utf-8") == past.final_recipe()


def test_choices_are_made_without_test_images_and_outside_the_sixteen_shifts():
    choice, final = load_recipe(FOLDER / "past-choice.toml"), load_recipe(FOLDER / "past.toml")
    assert choice.data.evaluate_on_validation
    assert not final.data.evaluate_on_validation
    assert not set(choice.study.shifts) & set(SIXTEEN)
    assert not set(choice.study.seeds) & set(final.study.seeds)
    assert (choice.net, choice.train) == (final.net, final.train)
    assert all(final.method(method.name) == method for method in choice.methods)
    assert set(past.candidates()) <= {method.name for method in choice.methods}
    settings = {final.method(name).train for name in ("SGD", "Dropout", "Ensemble")}  # opponents train like our network
    assert len(settings) == 1
    assert next(iter(settings)).augmentation == "augmix"
    assert final.method("Ensemble").method.members == len(final.study.seeds)


def test_the_rule_takes_the_lowest_nll_among_candidates_that_are_calibrated_on_clean_images():
    names = past.candidates()
    ece, nll = dict.fromkeys(names, 0.014), {name: 1.0 - 0.01 * place for place, name in enumerate(names)}
    ece[names[-1]] = 0.0151  # the lowest NLL, but not calibrated
    figures = {("ece", "clean"): ece, ("nll", "5"): nll}
    assert past.chosen(lambda name, metric, images: figures[metric, images][name]) == names[-2]
    nll[names[3]] = float("nan")
    with pytest.raises(SystemExit, match=f"not finished: {re.escape(names[3])};"):
        past.chosen(lambda name, metric, images: figures[metric, images][name])
    nll[names[3]] = 1.0
    ece.update(dict.fromkeys(names, 0.02))  # none is calibrated
    ece[names[4]] = 0.016
    assert past.chosen(lambda name, metric, images: figures[metric, images][name]) == names[4]


def test_baselines_have_the_published_settings():
    recipe = load_recipe(FOLDER / "baselines.toml")
    rates = {method.name: method.train.learning_rate for method in recipe.trained}
    published = {"Vanilla": 7.17e-4, "Ensemble": 7.17e-4, "Dropout": 2.5e-4, "LL-Dropout": 3.13e-4}
    assert rates == {**published, "LL-SVI": 1.15285e-3}
    assert {method.train.weight_decay for method in recipe.trained} == {2e-4}  # the gradient of 1e-4·Σw²
    assert recipe.data.validation == 10_000
    assert recipe.method("Ensemble").method.members == len(recipe.seeds(recipe.method("Vanilla"))) == 10


# noisy labels


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.2, 200), (1.0, 1000)])
def test_exactly_that_share_of_labels_is_wrong(share, count):
    labels = torch.arange(1000) % 10
    noisy = noisy_labels.with_noise(labels, 10, share)
    assert int((noisy != labels).sum()) == count
    assert (int(noisy.min()), int(noisy.max())) == (0, 9)
    assert torch.equal(noisy, noisy_labels.with_noise(labels, 10, share))
    if count == 1000:  # every other class about equally often
        steps = ((noisy - labels) % 10).bincount(minlength=10)
        assert steps[0] == 0
        assert 70 < steps[1:].min() <= steps[1:].max() < 160


def test_only_training_labels_are_noisy_and_the_images_are_those_of_the_recipe(monkeypatch):
    images = torch.arange(600, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(600, 1, 1, 1)
    data = Dataset(images, torch.arange(600) % 10, 10, "made up")
    asked = []

    def made_up(name, root, **options):
        asked.append((name, root, options))
        return data

    monkeypatch.setattr(noisy_labels, "load_dataset", made_up)
    kept, held_out = split_dataset(data, 500, seed=0).apply(data)
    found = {split: noisy_labels.load(split, "there", 0.2, held_out=500) for split in ("train", "val", "test")}
    assert torch.equal(found["train"].images, kept.images)
    assert int((found["train"].labels != kept.labels).sum()) == round(0.2 * len(kept))
    assert torch.equal(found["val"].images, held_out.images)
    assert torch.equal(found["val"].labels, held_out.labels)
    assert torch.equal(found["test"].labels, data.labels)
    noisy_labels.load("test", "", verify=False)
    parts = [("cifar10", "there", {"split": split}) for split in ("train", "train", "test")]
    assert asked == [*parts, ("cifar10", None, {"split": "test", "verify": False})]


# the ensemble of trained seeds

RECIPE = """
[study]
shifts = ["fog"]
severities = [5]
samples = 2
[data]
source = "mnist5k"
validation = 3900
test_images = 40
[net]
name = "mlp"
hidden = [8]
[train]
epochs = 2
batch_size = 50
pad = 0
flip = false
[[methods]]
name = "Vanilla"
method = "vanilla"
seeds = [3, 1]
[[methods]]
name = "Ensemble"
method = { kind = "ensemble", members = 2 }
"""


def test_the_ensemble_is_the_trained_seeds(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, encoding="utf-8")
    out, names = tmp_path / "out", ("Vanilla", "Ensemble")
    with pytest.raises(InputError, match="seed 3 is not trained to its end"):
        ensemble_of_seeds.assemble(str(path), out, *names)
    recipe = load_recipe(path)
    worker = StudyWorker(recipe, out, "cpu", progress=False)
    singles = [ModelKey("Vanilla", seed) for seed in (3, 1)]
    worker.train(singles)
    ensemble_of_seeds.assemble(str(path), out, *names)
    other = StudyWorker(recipe, out, "cpu", progress=False)
    made = ModelKey("Ensemble", 0)
    trained = other.train([made])[0]
    assert [(record["epoch"], record["member"]) for record in trained.history] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    images = torch.rand(5, 1, 28, 28)
    draws = [worker.posterior(key).draw(torch.Generator()) for key in singles]
    for member, draw in enumerate(draws):
        assert torch.equal(other.posterior(made).member(member)(images), draw(images))
    with pytest.raises(InputError, match="expected an ensemble of 2 models"):
        ensemble_of_seeds.assemble(str(path), out, *names, ["methods.Ensemble.method.members=3"])
    with pytest.raises(InputError, match="different settings"):
        ensemble_of_seeds.assemble(str(path), out, *names, ["methods.Ensemble.train.learning_rate=0.5"])
