"""Steps of models with a frozen trunk (`TrainSettings.freeze_trunk`): the trunk runs once, not in every step.

Without augmentation the input of the last layer is the same in every epoch. It is computed once for each trunk, so that
several posteriors over the last layer of one network share it, and the steps run the last layer only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence

from torch import Tensor, nn

from avuc.data.tensors import MemoryData
from avuc.training.model_trainer import ModelTrainer
from avuc.training.steps import GlobalNumbers, check, take
from avuc.training.trunk_features import compute_features, network, trained_layers, trunk_key, unsupported_reason

MEMORY = 2 << 30  # largest size in bytes of the features of all trunks together


class FeatureSteps:
    """`EagerSteps` on features instead of inputs; the result is the same up to rounding.

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
            with self.random.of(trainer), last_layer_only(trainer.model):
                take(trainer, features[rows], self.labels[rows])
            if trainer.device.type == "cpu":
                check(trainer)

    def release(self) -> None:
        self.features = []


def feature_steps(
    trainers: Sequence[ModelTrainer],
    data: MemoryData,
    known: dict[Hashable, Tensor | None],
    *,
    progress: bool = False,
) -> tuple[list[FeatureSteps], list[ModelTrainer]]:
    """Return the steps of models that can train on features, and the other models.

    Args:
        trainers: models with the same data and settings.
        data: the training data.
        known: the features of earlier calls with the same data, None where they cannot be used; new ones are added.
        progress: show a progress bar while a trunk runs.
    """
    possible = [trainer for trainer in trainers if unsupported_reason(trainer, data) is None]
    keys = {id(trainer): trunk_key(trainer) for trainer in possible}
    sizes = {keys[id(trainer)]: _bytes(trainer, data) for trainer in possible}
    if sum(sizes.values()) > MEMORY:
        return [], list(trainers)
    for trainer in possible:
        if keys[id(trainer)] not in known:
            known[keys[id(trainer)]] = compute_features(trainer, data, progress=progress)
    features_by_trainer = {id(trainer): known[keys[id(trainer)]] for trainer in possible}
    fast = [trainer for trainer in possible if features_by_trainer[id(trainer)] is not None]
    rest = [trainer for trainer in trainers if features_by_trainer.get(id(trainer)) is None]
    features = [tensor for tensor in (features_by_trainer[id(trainer)] for trainer in fast) if tensor is not None]
    return ([FeatureSteps(fast, features, data.labels)] if fast else []), rest


def _bytes(trainer: ModelTrainer, data: MemoryData) -> int:
    (layer,) = (network(trainer.model).get_submodule(name) for name in trained_layers(trainer.model))
    assert isinstance(layer, nn.Linear)
    return len(data) * layer.in_features * next(trainer.model.parameters()).element_size()


@contextlib.contextmanager
def last_layer_only(model: nn.Module) -> Iterator[None]:
    """Let the network take features, and run its last layer only."""
    net, (name,) = network(model), trained_layers(model)
    vars(net)["forward"] = net.get_submodule(name).__call__
    try:
        yield
    finally:
        del vars(net)["forward"]
