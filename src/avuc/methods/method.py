"""The interface between a method and the training loop.

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

A checkpoint of a method is the `state_dict` of each model, and of the loss during training. To restore it, call `build`
on a net of the same architecture and then `load_state_dict`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.posterior import Posterior


class Method(ABC):
    """Base class of all methods. Its defaults are those of a plain network; a method overrides what differs.

    Methods are frozen dataclasses of numbers and strings, so that a recipe can contain them.

    >>> from avuc.methods import SVI
    >>> method = SVI(initial_std=0.1)
    >>> model = method.build(nn.Linear(4, 3))
    >>> method.logits(model, torch.zeros(8, 4)).shape, bool(method.kl(model) > 0)
    (torch.Size([8, 3]), True)
    """

    name: ClassVar[str]
    members: int = 1  # number of models that are trained independently

    @abstractmethod
    def build(self, net: nn.Module, *, generator: torch.Generator | None = None) -> nn.Module:
        """Return the model to train, made from a copy of `net`.

        Args:
            net: a network from images (N, C, H, W) to logits (N, classes).
            generator: source of the training noise, on the device of training. Default None: torch's own generator,
                which torch.compile and CUDA graphs support best.
        """

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return the logits of a training batch: (N, C), or (S, N, C) for S samples.

        Args:
            model: what `build` returned.
            images: the batch; a mapping has the network's keyword arguments, as in `avuc.predict`.
        """
        logits: Tensor = call(model, images)
        return logits

    def kl(self, model: nn.Module) -> Tensor | float:
        """Return KL(posterior ‖ prior) in nats, summed over all weights; 0 for a method without a prior."""
        return 0.0

    def check_epochs(self, epochs: int) -> None:
        """Raise `InputError` before the training if `epochs` are too few for a posterior."""
        return

    def epoch_end(self, model: nn.Module, epoch: int, epochs: int) -> None:
        """Called at the end of epoch `epoch` (0, 1, …) of `epochs`."""
        return

    @abstractmethod
    def posterior(self, models: Sequence[nn.Module], *, images: Tensor | None = None) -> Posterior:
        """Return the posterior of the trained models. It shares their weights: copy the models first to train on.

        Args:
            models: the trained models, `members` of them.
            images: training images, uint8 (N, H, W, C), for methods that measure batch-norm statistics again.
        """

    def one(self, models: Sequence[nn.Module]) -> nn.Module:
        """Return the only model; `InputError` if there are several."""
        if len(models) != 1:
            raise InputError(f"{type(self).__name__} fits one model, found {len(models)}")
        return models[0]


def call(model: nn.Module, inputs: Any, **options: Any) -> Any:
    """Return the output of a model for a tensor, or for a mapping of keyword arguments."""
    return model(**inputs, **options) if isinstance(inputs, Mapping) else model(inputs, **options)
