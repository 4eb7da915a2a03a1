"""What the one fit loop asks of a method.

    models = [method.build(net(seed), generator=...) for seed in range(method.members)]
    for each model:                                          # independent of one another
        loss = objective.loss(num_train)
        for epoch in range(epochs):
            for images, labels in batches:
                terms = loss(method.logits(model, images), labels, method.kl(model))
                terms.total.backward() ...
            loss.epoch_end()
            method.epoch_end(model, epoch, epochs)
    posterior = method.posterior(models, images=training_images)

A checkpoint of a method is the `state_dict` of each model, and that of the loss while training: `build` on a net of
the same architecture and `load_state_dict` bring it back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.posterior import Posterior


class Method(ABC):
    """The answers of a method that trains one plain net; a method overrides what it does otherwise.

    Methods are frozen dataclasses of numbers and words, so that a recipe can hold them.
    """

    name: ClassVar[str]
    members: int = 1  # how many models are fitted, each on its own

    @abstractmethod
    def build(self, net: nn.Module, *, generator: torch.Generator | None = None) -> nn.Module:
        """What to train, made from a copy of `net`.

        `generator` (on the device the model is trained on) is where its training noise comes from; None is torch's
        own, which torch.compile and CUDA graphs handle best.
        """

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        """The logits of a training batch, (N, C) or (draws, N, C)."""
        logits: Tensor = model(images)
        return logits

    def kl(self, model: nn.Module) -> Tensor | float:
        """KL(posterior ‖ prior) in nats, over all weights; 0 for a method that has no prior."""
        return 0.0

    def epoch_end(self, model: nn.Module, epoch: int, epochs: int) -> None:
        """Called after epoch number `epoch` (from 0) of `epochs`."""
        return

    @abstractmethod
    def posterior(self, models: Sequence[nn.Module], *, images: Tensor | None = None) -> Posterior:
        """The posterior of the trained models. It shares their weights: copy the models to keep a moment.

        `images` are training images, uint8 (N, H, W, C), for the methods that measure activations again.
        """

    def one(self, models: Sequence[nn.Module]) -> nn.Module:
        """The only model there should be."""
        if len(models) != 1:
            raise InputError(f"{type(self).__name__} fits one model, found {len(models)}")
        return models[0]
