"""Take one step of a method on a few examples, before anything is trained."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.core.private_copy import deep_copy
from avuc.data.tensors import each
from avuc.study.net import RETURN
from avuc.study.own.code import described, find
from avuc.study.recipe.config import MethodConfig, Recipe
from avuc.training.last_batch import check_one_row
from avuc.training.model_trainer import with_head


def take_step(
    recipe: Recipe,
    config: MethodConfig,
    net: nn.Module,
    batch: Any,
    labels: Tensor,
    rows: int,
    device: torch.device,
) -> None:
    """Take one step of a method; raise `InputError` if that fails.

    Args:
        recipe: the study.
        config: the method.
        net: the network, which is not changed.
        batch, labels: a few examples.
        rows: the number of training examples.
        device: where the step is taken.
    """
    method = config.method
    assert method is not None
    where = f"methods.{config.name}"
    fixed = recipe.net.is_own and isinstance(find(recipe.net.name, "net.name"), nn.Module)
    if fixed and method.members > 1:
        raise InputError(f"{where}: an ensemble needs different starts; give a function that makes the network")
    if config.skip_training:
        return
    if config.objective.kind == "euc" and not isinstance(batch, Tensor):
        raise InputError(f"{where}: the objective euc needs a network that takes one tensor, not a mapping")
    devices = [device] if device.type == "cuda" else []
    batch, labels = each(batch, lambda part: part.to(device)), labels.to(device)
    try:
        model = method.build(with_head(deep_copy(net).to(device), config.objective)).train()
        with torch.random.fork_rng(devices=devices):
            loss = config.objective.loss(math.prod(labels.shape)).to(device)
            logits = method.logits(model, batch)
            if not isinstance(logits, Tensor):
                raise TypeError(f"the network returned a {type(logits).__name__} in training mode; {RETURN}")
            if not logits.requires_grad:
                raise TypeError(f"the logits have no gradient; {_no_gradient(model)}")
            loss(logits, labels, method.kl(model)).total.backward()
    except Exception as error:  # whatever the user's network raises
        raise InputError(f"{where}: a step on one batch failed: {described(error)}") from error
    size = config.train.batch_size
    if not recipe.data.stream and rows % size == 1 % size:
        with torch.random.fork_rng(devices=devices):
            check_one_row(method, model, each(batch, lambda part: part[:1]), rows, size, where)


def _no_gradient(model: nn.Module) -> str:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return "no weight of the network requires one: set requires_grad_(True), or skip_training = true"
    return "remove torch.no_grad and detach from its forward, or set skip_training = true"
