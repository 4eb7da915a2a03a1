"""The input of the last layer of a model with a frozen trunk, computed once for all training data."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule
from avuc.bayes.layout import choose
from avuc.core.fingerprint import structure
from avuc.core.progress import Progress
from avuc.data.tensors import MemoryData, TensorData
from avuc.methods import LLSVI, SVI, Radial, Vanilla
from avuc.prediction.backends.features import are_readable, attributes_of, same_values, trunk_digest
from avuc.prediction.backends.shared_trunk import is_plain_linear
from avuc.prediction.checks import batch_statistics
from avuc.training.model_trainer import ModelTrainer
from avuc.training.precision import network_precision

# a method of the user's own may do more in a step than run the network
METHODS = (Vanilla, SVI, LLSVI, Radial)
# on a GPU a faster trunk is part of a captured step, which then takes less time than the start of a few kernels
FASTEST_TRUNK = 5e-3
# largest mean difference of features that are computed in another batch, as a share of their mean size
ROUNDING, ROUNDING_BFLOAT16 = 1e-4, 5e-3


def network(model: nn.Module) -> nn.Module:
    """Return the network inside a posterior, or the model itself."""
    return model.module if isinstance(model, BayesianModule) else model


def trained_layers(model: nn.Module) -> set[str]:
    """Return the names of the layers that `freeze_trunk` trains; several if a weight is tied."""
    slots = model.layout.slots if isinstance(model, BayesianModule) else choose(model, "last").slots
    return {name.rpartition(".")[0] for slot in slots for name in slot.places}


def unsupported_reason(trainer: ModelTrainer, data: MemoryData) -> str | None:
    """Return why the trunk must run in every step; None if its features can be used instead.

    Args:
        trainer: a model with a frozen trunk.
        data: the training data.
    """
    net, layers = network(trainer.model), trained_layers(trainer.model)
    method = getattr(trainer.method, "member", trainer.method)
    if trainer.ranks.size > 1:
        return "several ranks share a batch"
    if data.labels.ndim > 1:
        return "each pixel or token has a label"
    if not isinstance(data, TensorData) and (trainer.augmentation.choices > 1 or trainer.augmentation.policy != "crop"):
        return "images are augmented"
    if type(method) not in METHODS:
        return f"{type(method).__name__} may use the images"
    if len(layers) != 1 or "" in layers or not all(is_plain_linear(net, name, dropout=False) for name in layers):
        return "the last layer is not a plain linear layer"
    if type(net).__call__ is not nn.Module.__call__ or "forward" in vars(net):
        return "the network changes how it is called"
    if any(module._forward_hooks or module._forward_pre_hooks for module in net.modules()):
        return "the network has hooks"
    if not are_readable((*net.parameters(), *net.buffers())):
        return "a weight is sparse or quantised"
    if batch_statistics(net) is not None:
        return "a layer uses the statistics of each batch"
    if {id(weight) for weight in trainer.parameters} != _weights_of_last(trainer.model, *layers):
        return "more than the last layer is trained"
    return None


def _weights_of_last(model: nn.Module, layer: str) -> set[int]:
    if isinstance(model, BayesianModule):
        return {id(model.mu), id(model.rho)}
    return {id(weight) for weight in model.get_submodule(layer).parameters()}


def trunk_key(trainer: ModelTrainer) -> Hashable:
    """Return a value that is equal for two models only if they compute the same features of the same data."""
    net, layers = network(trainer.model), trained_layers(trainer.model)
    facts = structure(net)
    tensors, others = attributes_of(net)
    values = {**dict(net.named_parameters()), **dict(net.named_buffers()), **tensors}
    kinds = [fact for fact in facts if isinstance(fact, type)]
    public = (value for layer in net.modules() for name, value in vars(layer).items() if not name.startswith("_"))
    # tensors and arrays inside lists, and those of private attributes, are not in the digest
    all_read = sum(issubclass(kind, Tensor) for kind in kinds) == len({id(value) for value in values.values()})
    all_read &= sum(issubclass(kind, np.ndarray) for kind in kinds) == sum(isinstance(v, np.ndarray) for v in public)
    if not all_read or len(layers) != 1 or not are_readable(values.values()):
        return id(trainer)
    return facts, trunk_digest(values, f"{next(iter(layers))}.", others)


@torch.no_grad()
def compute_features(trainer: ModelTrainer, data: MemoryData, *, progress: bool = False) -> Tensor | None:
    """Return the input of the last layer for every example; None if a step cannot use it.

    The passes run on a copy of the model. They check whether the features of an example are random, change from pass
    to pass, or depend on the weights of the last layer or on the other examples of the batch.

    Args:
        trainer: a model for which `unsupported_reason` is None.
        data: the training data.
        progress: show a progress bar.
    """
    trainer.train_mode()
    model = copy.deepcopy(trainer.model, {id(trainer.noise): trainer.noise})
    everything = torch.arange(len(data), device=data.device)
    first, *rest = everything.split(trainer.settings.batch_size)
    before = _state(model)
    features = _input_of_last(trainer, model, data, first)
    if features is None or not _same(before, _state(model)):
        return None
    if not _is_worth_it(trainer, model, data, first) or not _is_function_of_rows(trainer, model, data, first, features):
        return None
    for name, weight in model.named_parameters():
        weight.copy_(before[0][name])
    all_features = features.new_empty(len(data), features.shape[1])
    with Progress("features of the frozen layers", len(data)) if progress else contextlib.nullcontext() as bar:
        for rows in (first, *rest):
            features = _input_of_last(trainer, model, data, rows)
            if features is None or features.shape[1] != all_features.shape[1]:
                return None
            all_features[rows] = features
            if bar is not None:
                bar.advance(len(rows))
    return all_features if _same(before, _state(model)) else None


def _is_worth_it(trainer: ModelTrainer, model: nn.Module, data: MemoryData, rows: Tensor) -> bool:
    if data.device.type != "cuda":
        return True
    torch.cuda.synchronize(data.device)
    start = time.perf_counter()
    _input_of_last(trainer, model, data, rows)
    torch.cuda.synchronize(data.device)
    return time.perf_counter() - start > FASTEST_TRUNK


def _is_function_of_rows(
    trainer: ModelTrainer, model: nn.Module, data: MemoryData, rows: Tensor, features: Tensor
) -> bool:
    """Whether the features of an example depend on nothing but the example and the trunk. Changes the last layer."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.add_(1.0)
    again = _input_of_last(trainer, model, data, rows)
    if again is None or not torch.equal(again, features):
        return False
    some = len(rows) // 2
    if not some:
        return True
    # the same examples at other positions of a batch of the same size, together with other examples
    others = torch.arange(len(data), device=data.device)[some - len(rows) :]
    moved = _input_of_last(trainer, model, data, torch.cat([others, rows[:some].flip(0)]))
    if moved is None:
        return False
    kept, moved = features[:some].double(), moved[len(others) :].flip(0).double()
    rounded = torch.equal(features, features.bfloat16().to(features.dtype))  # True also if a layer uses autocast itself
    return bool((moved - kept).abs().mean() <= (ROUNDING_BFLOAT16 if rounded else ROUNDING) * kept.abs().mean())


def _input_of_last(trainer: ModelTrainer, model: nn.Module, data: MemoryData, rows: Tensor) -> Tensor | None:
    """Run a batch as a step does, and return the last layer's input; None if its output is not the network's."""
    net, (name,) = network(model), trained_layers(model)
    inputs, outputs, results = list[Tensor](), list[tuple[Tensor, Tensor]](), list[object]()

    def keep(_: nn.Module, received: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.extend(received)
        outputs.append((output, output.clone()))

    hooks = [
        net.get_submodule(name).register_forward_hook(keep),
        net.register_forward_hook(lambda _, __, output: results.append(output)),
    ]
    try:
        with network_precision(trainer.device, trainer.settings.precision):
            trainer.method.logits(model, trainer.batch(data, rows)[0])
    finally:
        for hook in hooks:
            hook.remove()
    if not len(inputs) == len(outputs) == len(results) > 0:
        return None
    for (output, original), result in zip(outputs, results, strict=True):
        if output is not result or not same_values(output, original):  # the second condition finds changes in place
            return None
    features = inputs[0]  # several samples of the last layer get the same input
    if features.ndim != 2 or len(features) != len(rows) or not all(torch.equal(features, other) for other in inputs):
        return None
    return features


def _state(model: nn.Module) -> tuple[dict[str, Tensor], str]:
    """Return a copy of everything that a forward pass could change."""
    values = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach().clone() for name, value in values}, attributes_of(model)[1]


def _same(before: tuple[dict[str, Tensor], str], after: tuple[dict[str, Tensor], str]) -> bool:
    same = all(torch.equal(value, after[0][name]) for name, value in before[0].items())
    return same and before[1] == after[1]
