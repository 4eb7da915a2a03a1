"""The pieces of a step as torch.compile makes them; one compiled function of each kind serves all models.

Random numbers stay outside: a compiled graph cannot read a generator that was passed in, and every model has its own.
So noise is drawn eagerly, and what is done with it is compiled. Methods that draw inside the net (dropout, flipout)
run it as it is.
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
from avuc.training.model_trainer import Member, draws_for_each_row

__all__ = ["LEVELS", "attach", "compiled", "compiling"]

# how much is compiled
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


_made: dict[Callable[..., Any], Callable[..., Any]] = {}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    if function not in _made:
        _made[function] = torch.compile(function, fullgraph=True, dynamic=False)
    return _made[function]


def compiling() -> Any:
    """Around the first calls: several models, two batch sizes and two phases of the objective are all expected."""
    return torch._dynamo.config.patch(recompile_limit=256)


def attach(member: Member, level: str) -> None:
    """Make a model's step use the compiled pieces of a level."""
    model, method = member.model, member.method
    member.forward, member.kl = member.logits, lambda: method.kl(model)
    member.terms, member.meters.accumulate = member.loss, accumulate
    member.augment = member.augmentation.apply
    if level == "none":
        return
    bayesian = isinstance(model, BayesianModule)
    if not draws_for_each_row(method) and not (bayesian and model.recurrent):
        pieces: dict[str, Callable[..., Any]] = {"run": run_drawn}
        if level == "all":
            pieces["weights"] = weights_of
        member.forward = _drawn_forward(member, pieces) if bayesian else _net_forward(member)
    if level == "all":
        compiled_augment, augmentation = compiled(augmented), member.augmentation
        member.augment = lambda images, indices, drawn: compiled_augment(augmentation, images, indices, drawn)
        if bayesian:
            compiled_kl = compiled(kl_of)
            member.kl = lambda: compiled_kl(model)
        compiled_terms, loss = compiled(terms_of), member.loss
        member.terms = lambda logits, labels, kl: compiled_terms(loss, logits, labels, kl)
        member.meters.accumulate = compiled(accumulate)


def _net_forward(member: Member) -> Callable[[Tensor], Tensor]:
    model, method, run = member.model, member.method, compiled(run_net)

    class Compiled(nn.Module):
        """What the method calls in place of the model."""

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = run(model, images)
            return logits

    stand_in = Compiled()
    return lambda images: method.logits(stand_in, images)


def _drawn_forward(member: Member, pieces: dict[str, Callable[..., Any]]) -> Callable[[Tensor], Tensor]:
    """The model's own forward, with the named steps of it compiled while it runs."""
    model = member.model
    faster = {name: _Bound(compiled(piece), model) for name, piece in pieces.items()}

    def forward(images: Tensor) -> Tensor:
        model.__dict__.update(faster)
        try:
            return member.logits(images)
        finally:
            for name in faster:
                del model.__dict__[name]

    return forward


class _Bound:
    def __init__(self, function: Callable[..., Any], model: nn.Module) -> None:
        self.function, self.model = function, model

    def __call__(self, *args: Tensor) -> Any:
        return self.function(self.model, *args)
