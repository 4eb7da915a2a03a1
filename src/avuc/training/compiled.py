"""The pieces of a step, compiled by `torch.compile`. All models share one compiled function for each piece.

A compiled graph cannot use a generator that is passed in, and every model has its own. So random numbers are drawn
eagerly, and what is computed from them is compiled. Methods that draw random numbers inside the network (dropout,
flipout) run the network eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule
from avuc.data.augmentation import Augmentation
from avuc.methods import ObjectiveLoss, Terms
from avuc.training.meters import accumulate
from avuc.training.model_trainer import ModelTrainer, draws_for_each_row
from avuc.training.outputs import logits_to_train

# how much of a step is compiled
LEVELS = ("all", "the net", "none")


def augmented(augmentation: Augmentation, images: Tensor, indices: Tensor, drawn: Tensor) -> Tensor:
    return augmentation.apply(images, indices, drawn)


def run_net(model: nn.Module, images: Tensor) -> Tensor:
    logits: Tensor = model(images)
    return logits


def run_drawn(model: BayesianModule, weights: Tensor, images: Tensor) -> Tensor:
    logits: Tensor = BayesianModule.run(model, weights, images)
    return logits


def weights_of(model: BayesianModule, noise: Tensor) -> Tensor:
    return BayesianModule.weights(model, noise)


def kl_of(model: BayesianModule) -> Tensor:
    return BayesianModule.kl(model)


def terms_of(loss: ObjectiveLoss, logits: Tensor, labels: Tensor, kl: Tensor | float) -> Terms:
    terms: Terms = loss(logits, labels, kl)
    return terms


_compiled_functions: dict[Callable[..., Any], Callable[..., Any]] = {}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled form of a function; the same one in every call."""
    if function not in _compiled_functions:
        _compiled_functions[function] = torch.compile(function, fullgraph=True, dynamic=False)
    return _compiled_functions[function]


def compiling() -> Any:
    """Return a context for first calls. Several models, batch sizes and phases of the objective compile in it."""
    return torch._dynamo.config.patch(recompile_limit=256)


def eager_pieces(trainer: ModelTrainer) -> dict[str, str]:
    """Return the pieces of a model's step that are never compiled, and why."""
    model, pieces = trainer.model, {}
    if draws_for_each_row(trainer.method):
        pieces["network"] = f"{trainer.method.name} draws random numbers inside it"
    elif isinstance(model, BayesianModule) and model.recurrent:
        pieces["network"] = "it has recurrent layers"
    if trainer.ranks.size > 1 and trainer.loss.objective.kind == "auavuc":
        pieces["objective"] = "AUAvUC gathers rows of all ranks, and their number is known only at run time"
    return pieces


def attach(trainer: ModelTrainer, level: str) -> None:
    """Make a model's step use compiled pieces.

    Args:
        trainer: the model; `trainer.step` uses the pieces from now on.
        level: one of `LEVELS`.
    """
    model, method = trainer.model, trainer.method
    trainer.forward, trainer.kl = trainer.logits, lambda: method.kl(model)
    trainer.terms, trainer.meters.accumulate = trainer.loss, accumulate
    trainer.augment = trainer.augmentation.apply
    if level == "none":
        return
    bayesian, eager = isinstance(model, BayesianModule), eager_pieces(trainer)
    if "network" not in eager:
        pieces: dict[str, Callable[..., Any]] = {"run": run_drawn}
        if level == "all":
            pieces["weights"] = weights_of
        trainer.forward = _drawn_forward(trainer, pieces) if bayesian else _net_forward(trainer)
    if level == "all":
        compiled_augment, augmentation = compiled(augmented), trainer.augmentation
        trainer.augment = lambda images, indices, drawn: compiled_augment(augmentation, images, indices, drawn)
        if bayesian:
            compiled_kl = compiled(kl_of)
            trainer.kl = lambda: compiled_kl(model)
        if "objective" not in eager:
            compiled_terms, loss = compiled(terms_of), trainer.loss
            trainer.terms = lambda logits, labels, kl: compiled_terms(loss, logits, labels, kl)
        trainer.meters.accumulate = compiled(accumulate)


def _net_forward(trainer: ModelTrainer) -> Callable[[Tensor], Tensor]:
    model, method, run = trainer.model, trainer.method, compiled(run_net)

    class Compiled(nn.Module):
        """Replaces the model when the method calls it."""

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = run(model, images)
            return logits

    replacement = Compiled()
    return lambda images: logits_to_train(method.logits(replacement, images), images)


def _drawn_forward(trainer: ModelTrainer, pieces: dict[str, Callable[..., Any]]) -> Callable[[Tensor], Tensor]:
    """Return the model's own forward pass; the methods named in `pieces` are compiled while it runs."""
    model = trainer.model
    faster = {name: _Bound(compiled(piece), model) for name, piece in pieces.items()}

    def forward(images: Tensor) -> Tensor:
        model.__dict__.update(faster)
        try:
            return trainer.logits(images)
        finally:
            for name in faster:
                del model.__dict__[name]

    return forward


class _Bound:
    """A function with its first argument, the model."""

    def __init__(self, function: Callable[..., Any], model: nn.Module) -> None:
        self.function, self.model = function, model

    def __call__(self, *args: Tensor) -> Any:
        return self.function(self.model, *args)
