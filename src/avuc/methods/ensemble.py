"""Deep ensemble (Lakshminarayanan, Pritzel & Blundell 2017, arXiv:1612.01474): networks with different initial weights.

The posterior has one sample per member, and `predict` uses each once: p̄ = 1/M Σ p_m. If a member is itself a posterior
with many samples, such as SWAG, samples come from a random member: a mixture (MultiSWAG, Wilson & Izmailov 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.core.numbers import check_settings
from avuc.methods.method import Method
from avuc.methods.vanilla import Vanilla
from avuc.posterior import Draw, Posterior


@dataclass(frozen=True)
class Ensemble(Method):
    """Several independently trained models: p̄ = 1/M Σ p_m.

    Args:
        members: number M of models (default 10, as in the benchmark of Ovadia et al. 2019 on CIFAR-10).
        member: the method of each model (default `Vanilla()`); not an ensemble itself.

    >>> method = Ensemble(members=3)
    >>> method.posterior([method.build(nn.Linear(2, 3)) for _ in range(3)]).num_draws
    3
    """

    name = "ensemble"
    members: int = 10
    member: Method = field(default_factory=Vanilla)

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if self.members < 1:
            raise InputError(f"an ensemble has at least one member, found {self.members}")
        if self.member.members != 1:
            raise InputError("an ensemble's member is a method that fits one model, found an ensemble")

    def build(self, net: nn.Module, *, generator: torch.Generator | None = None) -> nn.Module:
        return self.member.build(net, generator=generator)

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        return self.member.logits(model, images)

    def kl(self, model: nn.Module) -> Tensor | float:
        return self.member.kl(model)

    def check_epochs(self, epochs: int) -> None:
        self.member.check_epochs(epochs)

    def epoch_end(self, model: nn.Module, epoch: int, epochs: int) -> None:
        self.member.epoch_end(model, epoch, epochs)

    def posterior(self, models: Sequence[nn.Module], *, images: Tensor | None = None) -> Posterior:
        return EnsemblePosterior([self.member.posterior([model], images=images) for model in models])


class EnsemblePosterior(nn.Module):
    """The mixture of several posteriors with equal weights. `draw` uses a random member, `member(index)` a given one.

    Args:
        posteriors: the members; also networks wrapped in `DeterministicPosterior`.

    >>> from avuc.methods.vanilla import DeterministicPosterior
    >>> EnsemblePosterior([DeterministicPosterior(nn.Linear(2, 3)) for _ in range(4)]).num_draws
    4
    """

    def __init__(self, posteriors: Sequence[Posterior]) -> None:
        super().__init__()
        if not posteriors:
            raise InputError("an ensemble needs at least one member, found none")
        self.posteriors: list[Posterior] = list(posteriors)
        # registered, so that `.to(device)` and `parameters()` include them
        self.nets: nn.ModuleList = nn.ModuleList(
            [posterior for posterior in posteriors if isinstance(posterior, nn.Module)]
        )

    @property
    def num_draws(self) -> int | None:
        """The number of members if each has one sample, otherwise None: no limit."""
        return len(self.posteriors) if all(posterior.num_draws == 1 for posterior in self.posteriors) else None

    def draw(self, generator: torch.Generator) -> Draw:
        chosen = int(torch.randint(len(self.posteriors), (), generator=generator, device=generator.device))
        return self.posteriors[chosen].draw(generator)

    def member(self, index: int) -> Draw:
        # a member with one sample does not use the generator
        return self.posteriors[index].draw(torch.Generator())
