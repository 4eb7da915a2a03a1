"""Try the user's own code on one batch before anything is trained, so that a mistake costs seconds."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.data.arrays import as_input
from avuc.posterior import seeded_generator
from avuc.prediction.outputs import check_outputs
from avuc.prediction.task import Task
from avuc.study.config import MethodConfig, Recipe
from avuc.study.grid import CLEAN, VALIDATION
from avuc.study.net import make_net
from avuc.study.own_code import described, find, is_path
from avuc.study.own_digest import code_prints
from avuc.study.own_shift import own_shifted
from avuc.study.sets import StudyData

FEW = 8  # examples in the batch


def try_own_code(recipe: Recipe) -> dict[str, str]:
    """Load the data, make the network, take one step of every method and apply every shift of the user's own.

    An error is one line that names the key of the recipe. Recipes without own code are not tried.

    Args:
        recipe: the study.

    Returns:
        digests of the data and of the code, by name, for `Store.check_data`.
    """
    study, net = recipe.study, recipe.net
    own_shifts = [name for name in study.shifts if is_path(name)]
    if not (recipe.data.is_own or net.is_own or own_shifts):
        return {}
    for name in own_shifts:
        find(name, "study.shifts")
    if net.is_own:
        find(net.name, "net.name")
    data = StudyData(recipe, torch.device("cpu"))
    _check_data(data)
    for name in own_shifts:
        for severity in sorted({min(study.severities), max(study.severities)}) if study.severities else ():
            own_shifted(data.test.images[:FEW], name, severity, study.shift_seed)
    _try_net(recipe, data)
    prints = data.training_prints() | data.prints(VALIDATION) | data.prints(CLEAN)
    for name in own_shifts:
        prints |= code_prints([name])
    return prints


def _check_data(data: StudyData) -> None:
    source, train, test = data.config.source, data.validation, data.test
    if train.images.shape[1:] != test.images.shape[1:]:
        raise InputError(
            f"data.source: {source}: training images are {tuple(train.images.shape[1:])}, test images "
            f"{tuple(test.images.shape[1:])}; give both one size"
        )
    if train.num_classes != test.num_classes:
        raise InputError(
            f"data.source: {source}: {train.num_classes} classes in training data, {test.num_classes} in test data"
        )


def _try_net(recipe: Recipe, data: StudyData) -> None:
    config, held = recipe.net, data.validation
    net = make_net(config, held.num_classes, data.image_shape, None, seeded_generator(0))
    batch, labels = _batch(held)
    name = f"net.name: {config.name}"
    try:
        with torch.no_grad():
            logits = copy.deepcopy(net).eval()(batch)
    except Exception as error:  # whatever the user's network raises
        raise InputError(f"{name} failed on a batch {tuple(batch.shape)}: {described(error)}") from error
    if not isinstance(logits, Tensor):
        raise InputError(f"{name} returned a {type(logits).__name__} for a batch; expected logits")
    expected = (len(labels), held.num_classes)
    if tuple(logits.shape) != expected:
        raise InputError(
            f"{name} returned {tuple(logits.shape)} for a batch of {len(labels)}; the labels have {held.num_classes} "
            f"classes, so {expected} was expected"
        )
    try:
        check_outputs(logits, Task())
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    for method in recipe.trained:
        _try_method(recipe, method, net, batch, labels)


def _try_method(recipe: Recipe, config: MethodConfig, net: nn.Module, batch: Tensor, labels: Tensor) -> None:
    method = config.method
    assert method is not None
    where = f"methods.{config.name}"
    fixed = recipe.net.is_own and isinstance(find(recipe.net.name, "net.name"), nn.Module)
    if fixed and method.members > 1:
        raise InputError(f"{where}: an ensemble needs different starts; give a function that makes the network")
    if config.skip_training:
        return
    try:
        model = method.build(copy.deepcopy(net)).train()
        with torch.random.fork_rng(devices=[]):
            loss = config.objective.loss(len(labels))
            loss(method.logits(model, batch), labels, method.kl(model)).total.backward()
    except Exception as error:  # whatever the user's network raises
        raise InputError(f"{where}: a step on one batch failed: {described(error)}") from error


def _batch(data: Dataset) -> tuple[Tensor, Tensor]:
    return as_input(data.images[:FEW]), data.labels[:FEW]
