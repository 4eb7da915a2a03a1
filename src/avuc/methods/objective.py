"""The training loss: cross-entropy or negative ELBO, alone or with a loss of the AvUC family or a confidence penalty.

total = nll + kl_weight·KL/num_train + β·avuc          (Eq. 5 of the paper; KL = 0 for a plain net)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.losses import (
    AvUCLoss,
    EUCLoss,
    SBECELoss,
    SegmentationAvULoss,
    UACLMLoss,
    auavuc_loss,
    confidence_penalty,
    elbo_loss,
)
from avuc.losses.euc import EUC_VARIANTS
from avuc.losses.inputs import checked_number, checked_whole, one_of
from avuc.losses.options import NO_OPTIONS, arguments, checked_options
from avuc.losses.quadrants import UNCERTAINTIES, VARIANTS, Uncertainty, Variant
from avuc.losses.sb_ece import SB_ECE_VARIANTS
from avuc.losses.segmentation import SEGMENTATION_VARIANTS, THRESHOLDS
from avuc.losses.ua_clm import UA_CLM_VARIANTS

Kind = Literal["plain", "avuc", "auavuc", "confidence_penalty", "sb_ece", "euc", "ua_clm", "segmentation_avu"]
# the variants of the kinds that have modules of their own
FAMILY: dict[str, tuple[str, ...]] = {
    "sb_ece": SB_ECE_VARIANTS,
    "euc": EUC_VARIANTS,
    "ua_clm": UA_CLM_VARIANTS,
    "segmentation_avu": SEGMENTATION_VARIANTS,
}
# The default variants that are not "paper". Only for AvUC there are trained networks to choose by.
DEFAULT_VARIANTS: dict[str, Variant] = {"avuc": "monotone"}


class _Default(str):
    """A variant that nobody has chosen, so that `replace(objective, kind=…)` gets the default of the new kind."""

    __slots__ = ()


class Terms(NamedTuple):
    """The parts of the loss of one batch, tensors without dimensions: total = nll + kl + β·avuc.

    Args:
        nll: mean cross-entropy.
        kl: kl_weight·KL/num_train.
        avuc: the AvUC term, without β.
        total: the loss to minimise.

    >>> Objective().loss(num_train=100)(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])).nll
    tensor(0.6931)
    """

    nll: Tensor
    kl: Tensor
    avuc: Tensor
    total: Tensor


@dataclass(frozen=True)
class Objective:
    """The training loss as plain data: total = nll + kl_weight·KL/num_train + β·avuc.

    Args:
        kind: "plain" (default), without AvUC; "avuc"; "auavuc"; "sb_ece", "euc", "ua_clm" or "segmentation_avu", the
            rest of the family (docs/concepts/family.md); or "confidence_penalty", −β·mean entropy, a control experiment
            that lowers the confidence of all predictions. "euc" needs a network that ends in
            `avuc.losses.DirichletHead`; `avuc.train.fit` adds one.
        beta: β (default 3).
        variant: "monotone" (default for "avuc"), "paper" (default for the other kinds), "stopgrad" or "soft"; see
            `avuc.avuc_quadrants`. Not every kind has all. "paper" with "avuc" is the printed loss: it can make every
            prediction uncertain, for example with SGD (docs/gotchas.md); `fit` then warns. In a recipe, "avuc" without
            a variant is the printed loss, too.
        uncertainty: "entropy" (default) or "mutual_information", which the family does not have.
        warmup_epochs: epochs without the AvUC term (default 5). The threshold is learned in them. For "euc": the epochs
            over which its λ rises from .01 to 1; the term counts from the start.
        threshold: threshold in nats; default None: it is learned. For "segmentation_avu": one threshold instead of
            eight.
        points: thresholds of AUAvUC (default 21; 0: the exact area).
        kl_weight: factor of the KL (default 1); below 1 the posterior is tempered.
        kl_gradient: whether the KL has a gradient (default True). False reports the KL but trains without it, as the
            authors' released code does.
        options: other arguments of the loss, by name (default none). "avuc": running. "sb_ece": form, bins,
            temperature. "euc": evidence, of the `DirichletHead` that `fit` adds. "segmentation_avu": thresholds,
            background, dilation, opening. See the loss's module, such as `avuc.losses.SBECELoss`. The other kinds have
            none. In a recipe "none" stands for None.

    >>> loss = Objective("avuc", beta=3.0, warmup_epochs=1).loss(num_train=100)
    >>> terms = loss(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), 50.0)
    >>> round(terms.total.item(), 4)  # log 2 + 50/100; no AvUC during the warm-up
    1.1931
    >>> Objective("avuc").variant, Objective("auavuc").variant
    ('monotone', 'paper')
    >>> Objective("sb_ece", options={"form": "label_binned", "bins": 20}).options["bins"]
    20
    """

    kind: Kind = "plain"
    beta: float = 3.0
    variant: Variant = None  # type: ignore[assignment]  # the default depends on the kind: see __post_init__
    uncertainty: Uncertainty = "entropy"
    warmup_epochs: int = 5
    threshold: float | None = None
    points: int = 21
    kl_weight: float = 1.0
    kl_gradient: bool = True
    options: Mapping[str, Any] = NO_OPTIONS

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"objective: kind must be one of {', '.join(get_args(Kind))}, found {self.kind!r}")
        if self.variant is None or isinstance(self.variant, _Default):
            object.__setattr__(self, "variant", _Default(DEFAULT_VARIANTS.get(self.kind, "paper")))
        for name in ("beta", "kl_weight"):
            checked_number(f"objective: {name}", getattr(self, name))
        if self.threshold is not None:
            checked_number("objective: threshold", self.threshold)
        checked_whole("objective: warmup_epochs", self.warmup_epochs)
        if checked_whole("objective: points (0 for the exact area)", self.points) == 1:
            raise InputError("objective: points must be at least 2, or 0 for the exact area; found 1")
        if self.kind == "auavuc" and self.variant == "soft":
            raise InputError("objective: the soft variant has no hard threshold to move, so no auavuc; use another")
        if self.kind in FAMILY:
            self._check_family()
        else:
            one_of("variant", self.variant, VARIANTS, "objective")
            one_of("uncertainty", self.uncertainty, UNCERTAINTIES, "objective")
        object.__setattr__(self, "options", checked_options(self.kind, self.options))
        if self.threshold is not None and "thresholds" in self.options:
            raise InputError(f"objective: {self.kind} takes threshold or the option thresholds, not both")

    def _check_family(self) -> None:
        if self.variant not in FAMILY[self.kind]:
            known = ", ".join(FAMILY[self.kind])
            raise InputError(f"objective: the variants of {self.kind} are {known}; found {self.variant!r}")
        if self.uncertainty != "entropy":
            raise InputError(f"objective: {self.kind} takes no other uncertainty; leave uncertainty out")
        if self.threshold is not None and self.kind != "segmentation_avu":
            raise InputError(f"objective: {self.kind} has no threshold; leave it out")

    def identity(self) -> dict[str, str]:
        """Return what is minimised, by name. Two runs with equal identities have the same loss.

        Options came after version 0.1.0. Without any they are left out, so that old checkpoints still match.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: repr(value) for name, value in values.items() if name != "options" or value}

    def waits(self, epoch: int) -> bool:
        """Return whether the AvUC term is not active yet in this epoch (the first is 0).

        >>> Objective("avuc", warmup_epochs=5).waits(3), Objective("avuc", warmup_epochs=5).waits(5)
        (True, False)
        """
        return self.kind not in ("plain", "euc") and epoch < self.warmup_epochs

    def unused_reason(self, epochs: int) -> str:
        """Return why the AvUC term is never used in a training of so many epochs; an empty text if it is used."""
        if not self.beta or not self.waits(epochs - 1):
            return ""
        return (
            f"the {self.kind} term is never used: its warm-up takes {self.warmup_epochs} epochs, and the training has "
            f"{epochs}; choose fewer warmup_epochs (objective.warmup_epochs in a recipe) or more epochs"
        )

    def loss(self, num_train: int) -> ObjectiveLoss:
        """Return the loss as a module; `num_train` is the number of training examples."""
        return ObjectiveLoss(self, num_train)


class ObjectiveLoss(nn.Module):
    """The loss of an `Objective` with its state: threshold and epoch, both in the `state_dict`.

    Call `epoch_end()` after each epoch. `warming_up` changes only between epochs, so a captured training step stays
    valid until then.

    Args:
        objective: the loss to compute.
        num_train: number of training examples.

    >>> loss = ObjectiveLoss(Objective("auavuc", warmup_epochs=0), num_train=100)
    >>> terms = loss(torch.tensor([[4.0, 0.0], [0.0, 0.2]]), torch.tensor([0, 0]))
    >>> bool(terms.total == terms.nll + 3 * terms.avuc)
    True
    """

    def __init__(self, objective: Objective, num_train: int) -> None:
        super().__init__()
        checked_whole("objective: num_train is the size of the training set and", num_train, least=1)
        self.objective: Objective = objective
        self.num_train: int = num_train
        self.variant: Variant = cast("Variant", str(objective.variant))  # torch.compile takes no subclass of str
        self.epoch: int = 0
        self.avuc: AvUCLoss | None = None
        if objective.kind == "avuc":
            self.avuc = AvUCLoss(
                beta=1.0,
                warmup_epochs=objective.warmup_epochs,
                variant=self.variant,
                threshold=objective.threshold,
                uncertainty=objective.uncertainty,
                **arguments(objective.options),
            )
        self.term: nn.Module | None = _family_term(objective)
        self._set_warming_up()

    @property
    def warming_up(self) -> bool:
        """Whether the AvUC term is not active yet."""
        return self._warming_up

    def _set_warming_up(self) -> None:
        # stored, because torch.compile would compile the loss again for every epoch if it read the epoch
        self._warming_up = self.objective.waits(self.epoch)

    def forward(self, logits: Tensor, labels: Tensor, kl: Tensor | float = 0.0) -> Terms:
        """Return the parts of the loss.

        Args:
            logits: (N, C), or (S, N, C) for S samples; dense ([S,] N, C, *spatial).
            labels: class indices, (N) or (N, *spatial).
            kl: KL divergence, summed over all weights (default 0).
        """
        objective = self.objective
        nll = elbo_loss(logits, labels, 0.0, num_train=self.num_train)
        # filled on the device: a CUDA graph cannot capture a copy from the host
        whole = kl.to(nll) if isinstance(kl, Tensor) else nll.new_full((), kl)
        scaled = whole * (objective.kl_weight / self.num_train)
        avuc = self._avuc(logits, labels)
        trained = scaled if objective.kl_gradient else scaled.detach()
        return Terms(nll, scaled, avuc, nll + trained + objective.beta * avuc)

    def _avuc(self, logits: Tensor, labels: Tensor) -> Tensor:
        objective = self.objective
        if isinstance(self.term, SegmentationAvULoss):
            self.term.check(logits, labels)  # already in the warm-up, because an error after it would come hours late
        # in the warm-up, the AvUC loss is 0 and only sums uncertainties
        learning = self.avuc is not None and self.avuc.warming_up
        if objective.kind == "plain" or (self.warming_up and not learning):
            return torch.zeros((), dtype=torch.float32, device=logits.device)
        if self.avuc is not None:
            loss: Tensor = self.avuc(logits, labels)
            return loss
        if self.term is not None:
            other: Tensor = self.term(logits, labels)
            return other
        if objective.kind == "confidence_penalty":
            return confidence_penalty(logits, labels, uncertainty=objective.uncertainty)
        return auavuc_loss(
            logits,
            labels,
            points=objective.points or None,
            variant=self.variant,
            uncertainty=objective.uncertainty,
        )

    def epoch_end(self) -> None:
        """Call after each epoch; the last warm-up epoch sets the threshold."""
        self.epoch += 1
        self._set_warming_up()
        if self.avuc is not None:
            self.avuc.epoch_end()
        if isinstance(self.term, EUCLoss):
            self.term.epoch_end()

    def statistics(self) -> list[Tensor]:
        """Return every tensor that training changes in place."""
        return [] if self.avuc is None else self.avuc.statistics()

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.epoch)

    def set_extra_state(self, state: Tensor) -> None:
        self.epoch = int(state)
        self._set_warming_up()


def _family_term(objective: Objective) -> nn.Module | None:
    """Return the module of an objective of the family; None for the other kinds."""
    variant: Any = str(objective.variant)
    options = arguments(objective.options)
    if objective.kind == "sb_ece":
        return SBECELoss(variant=variant, **options)
    if objective.kind == "ua_clm":
        return UACLMLoss(variant=variant, **options)
    if objective.kind == "euc":
        # the option `evidence` is that of the network's head, whose outputs are log α
        return EUCLoss(epochs=objective.warmup_epochs, variant=variant, evidence=None)
    if objective.kind == "segmentation_avu":
        thresholds = THRESHOLDS if objective.threshold is None else (objective.threshold,)
        return SegmentationAvULoss(variant=variant, **{"thresholds": thresholds, **options})
    return None
