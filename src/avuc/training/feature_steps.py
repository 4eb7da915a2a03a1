"""Steps of models with a frozen trunk (`TrainSettings.freeze_trunk`): the trunk runs once, not in every step.

Without augmentation the input of the last layer is the same in every epoch. It is computed once for each trunk, so that
several posteriors over the last layer of one network share it, and the steps run the last layer only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule
from avuc.bayes.layout import choose
from avuc.core.progress import Progress
from avuc.data.tensors import MemoryData, TensorData
from avuc.methods.swag import SWAGModel
from avuc.prediction.backends.features import attributes_of, trunk_digest
from avuc.prediction.backends.shared_trunk import is_plain_linear
from avuc.prediction.checks import batch_statistics
from avuc.training.model_trainer import ModelTrainer
from avuc.training.steps import GlobalNumbers, check, take

MEMORY = 2 << 30  # bytes of the features of all trunks together


class FeatureSteps:
    """`EagerSteps` on features in place of inputs; up to rounding the result is the same.

    Args:
        trainers: the models.
        features: the input of the last layer for every example, one tensor for each model; models may share it.
        labels: of the examples.
    """

    def __init__(self, trainers: Sequence[ModelTrainer], features: Sequence[Tensor], labels: Tensor) -> None:
        self.trainers: Sequence[ModelTrainer] = trainers
        self.features: list[Tensor] = list(features)
        self.labels: Tensor = labels
        self.random: GlobalNumbers = GlobalNumbers(trainers)

    def prepare(self, sizes: Sequence[int]) -> None:
        self.random = GlobalNumbers(self.trainers)

    def __call__(self, indices: Tensor) -> None:
        for trainer, features, rows in zip(self.trainers, self.features, indices, strict=True):
            with self.random.of(trainer), _last_layer_only(trainer.model):
                take(trainer, features[rows], self.labels[rows], len(rows))
            if trainer.device.type == "cpu":
                check(trainer)

    def release(self) -> None:
        self.features = []


def feature_steps(
    trainers: Sequence[ModelTrainer], data: MemoryData, known: dict[str, Tensor], *, progress: bool = False
) -> FeatureSteps | None:
    """Return steps that do not run the trunk, or None if a model or the data need it in every step.

    That is so if images are augmented, if the last layer is not a plain linear layer whose output is the network's, if
    the features of an example are random or depend on its batch, and if the features need more than 2 GiB.

    Args:
        trainers: models with the same data and settings.
        data: the training data.
        known: features of earlier calls with the same data, by trunk; new ones are put there.
        progress: show a progress bar while the trunk runs.
    """
    if not all(_supported(trainer, data) for trainer in trainers):
        return None
    features = list[Tensor]()
    for trainer in trainers:
        trunk = _trunk_of(trainer)
        if trunk not in known:
            with Progress("features of the frozen layers", len(data)) if progress else contextlib.nullcontext() as bar:
                found = _features(trainer, data, MEMORY - sum(one.nbytes for one in known.values()), bar)
            if found is None:
                known.clear()
                return None
            known[trunk] = found
        features.append(known[trunk])
    return FeatureSteps(trainers, features, data.labels)


def _supported(trainer: ModelTrainer, data: MemoryData) -> bool:
    settings, net = trainer.settings, _net(trainer.model)
    augmented = trainer.augmentation.choices > 1 or settings.augmentation != "crop"
    if not settings.freeze_trunk or trainer.ranks.size > 1 or data.labels.ndim > 1 or isinstance(net, SWAGModel):
        return False
    if augmented and not isinstance(data, TensorData):
        return False
    name, *more = _last_layers(trainer.model)
    # a network that is one layer has no trunk, and hooks may do what the last layer alone does not
    hooks = any(one._forward_hooks or one._forward_pre_hooks for one in net.modules())
    if batch_statistics(net) is not None:
        return False
    return bool(name) and not more and not hooks and is_plain_linear(net, name, dropout=False)


def _net(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, BayesianModule) else model


def _last_layers(model: nn.Module) -> set[str]:
    """The names of the layers that are trained: one, if the last layer has one name."""
    slots = model.layout.slots if isinstance(model, BayesianModule) else choose(model, "last").slots
    return {place.rpartition(".")[0] for slot in slots for place in slot.places}


def _trunk_of(trainer: ModelTrainer) -> str:
    """A digest of everything that decides about the features."""
    net, (layer,) = _net(trainer.model), _last_layers(trainer.model)
    tensors, others = attributes_of(net)
    return trunk_digest({**net.state_dict(), **tensors}, f"{layer}.", f"{net!r} {others}")


@torch.no_grad()
def _features(trainer: ModelTrainer, data: MemoryData, memory: int, bar: Progress | None) -> Tensor | None:
    """The input of the last layer for every example; None if a step cannot use it."""
    trainer.train_mode()
    first, *rest = torch.arange(len(data), device=data.device).split(trainer.settings.batch_size)
    found = _input_of_last(trainer, data, first)
    if found is None or len(data) * found[0].nbytes > memory or not _belongs_to_rows(trainer, data, first, found):
        return None
    kept = found.new_empty(len(data), found.shape[1])
    kept[first] = found
    for rows in rest:
        found = _input_of_last(trainer, data, rows)
        if found is None or found.shape[1] != kept.shape[1]:
            return None
        kept[rows] = found
        if bar is not None:
            bar.advance(len(rows))
    return kept


def _belongs_to_rows(trainer: ModelTrainer, data: MemoryData, rows: Tensor, features: Tensor) -> bool:
    """Whether the features of a row depend neither on random numbers nor on the other rows of its batch."""
    again = _input_of_last(trainer, data, rows)
    if again is None or not torch.equal(again, features):
        return False
    half = rows[: (len(rows) + 1) // 2]
    alone = _input_of_last(trainer, data, half)
    if alone is None:
        return False
    low_precision = features.dtype.itemsize == 2 or trainer.settings.precision == "bfloat16"
    difference = (alone.float() - features[: len(half)].float()).abs().max()
    return bool(difference <= (2e-2 if low_precision else 1e-4) * features.float().abs().max())


def _input_of_last(trainer: ModelTrainer, data: MemoryData, rows: Tensor) -> Tensor | None:
    """Run a batch as a step does, and return what its last layer gets; None if its output is not the network's."""
    net, (name,) = _net(trainer.model), _last_layers(trainer.model)
    inputs, outputs, results = list[Tensor](), list[object](), list[object]()

    def keep(_: nn.Module, given: tuple[Tensor, ...], output: object) -> None:
        inputs.extend(given)
        outputs.append(output)

    hooks = [
        net.get_submodule(name).register_forward_hook(keep),
        net.register_forward_hook(lambda _, __, output: results.append(output)),
    ]
    half = trainer.settings.precision == "bfloat16"
    try:
        with torch.autocast(trainer.device.type, torch.bfloat16, enabled=half):
            trainer.forward(trainer.batch(data, rows)[0])
    finally:
        for hook in hooks:
            hook.remove()
    alike = [one is other for one, other in zip(outputs, results, strict=False)]
    if not (len(inputs) == len(outputs) == len(results) > 0) or not all(alike):
        return None
    first = inputs[0]  # several samples of the last layer get the same input
    if first.ndim != 2 or len(first) != len(rows) or not all(torch.equal(first, other) for other in inputs):
        return None
    return first


@contextlib.contextmanager
def _last_layer_only(model: nn.Module) -> Iterator[None]:
    """Let the network take features, and run its last layer only."""
    net, (name,) = _net(model), _last_layers(model)
    net.forward = net.get_submodule(name).__call__  # a module would be registered as a layer
    try:
        yield
    finally:
        del net.forward
