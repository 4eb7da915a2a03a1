"""The AvUC family: losses that ask a classifier to be certain where it is right and uncertain where it is wrong.

Krishnan & Tickoo, "Improving model calibration with accuracy versus uncertainty optimization" (NeurIPS 2020), Eq. 3–5
and appendix F, over the soft cells of `avuc.cells`:

    L_AvUC = log(1 + (AU + IC) / (AC + IU))
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avuc.cells import (
    UNCERTAINTIES,
    VARIANTS,
    Rows,
    Uncertainty,
    Variant,
    at_least_float32,
    cells_of,
    check_shapes,
    mass,
    one_of,
    refuse_nan,
    required,
    rows_from_logits,
)
from avuc.errors import InputError
from avuc.fused import fused_avuc, or_empty
from avuc.ranks import Group, gather_rows, reduce_extremum, sum_over_ranks

__all__ = ["AvUCLoss", "area_loss", "auavuc_loss", "avuc_loss", "elbo_loss"]


def avuc_loss(
    logits: Tensor,
    labels: Tensor,
    threshold: float | Tensor | None,
    *,
    variant: Variant = "paper",
    uncertainty: Uncertainty = "entropy",
    ignore_index: int = -100,
    weights: Tensor | None = None,
    group: Group = None,
) -> Tensor:
    """log(1 + (AU + IC)/(AC + IU)) of logits (N, C), Monte Carlo (S, N, C) or dense ([S,] N, C, *spatial).

    Labels are (N) or (N, *spatial). With draws, p is the mean of their softmaxes and `uncertainty` may be the mutual
    information. Under torch.distributed the cells are summed over `group` (False: this process alone), so that N ranks
    under DistributedDataParallel train as one rank on the whole batch. Nothing to judge (no row, or all ignored) is 0.

    >>> logits = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> avuc_loss(logits, torch.tensor([0, 1]), threshold=0.3).item()  # both right and certain
    0.0
    """
    one_of("variant", variant, VARIANTS)
    if variant == "soft" or check_shapes(logits, labels) or torch.compiler.is_compiling():
        rows = rows_from_logits(logits, labels, uncertainty, ignore_index, weights)
        ac, au, ic, iu = sum_over_ranks(torch.stack(cells_of(rows, threshold, variant)), group)
        loss = torch.log1p((au + ic) / or_empty(ac + iu))
    else:
        if uncertainty != "entropy":
            one_of("uncertainty", uncertainty, UNCERTAINTIES)
            raise InputError(f"avuc: mutual information needs draws, logits (S, N, C); found {tuple(logits.shape)}")
        loss = fused_avuc(logits, labels, required(threshold, variant), variant, ignore_index, weights, group)
    refuse_nan(loss, "logits")
    return loss


def auavuc_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    points: int | None = 21,
    variant: Variant = "paper",
    uncertainty: Uncertainty = "entropy",
    ignore_index: int = -100,
    weights: Tensor | None = None,
    group: Group = None,
) -> Tensor:
    """−log of the area under soft AvU over thresholds u_min + t(u_max − u_min), t ∈ [0, 1] (the paper's appendix F).

    `points` thresholds by the trapezoid rule (21 as in the paper), or `None` for the exact area from one sort. Shapes
    and the other arguments are those of `avuc_loss`; the soft variant has no hard threshold to move.

    >>> logits = torch.tensor([[4.0, 0.0], [0.0, 0.2]])
    >>> auavuc_loss(logits, torch.tensor([0, 0]), points=None).item()  # right and certain, wrong and uncertain
    -0.0
    """
    if variant == "soft":
        raise InputError("auavuc_loss: the soft variant has no hard threshold to move; use paper, stopgrad or monotone")
    if points is not None and points < 2:
        raise InputError(f"auavuc_loss: points must be at least 2, or None for the exact area; found {points}")
    rows = rows_from_logits(logits, labels, uncertainty, ignore_index, weights)
    one_of("variant", variant, VARIANTS)
    loss = area_loss(rows, points, variant, group)
    refuse_nan(loss, "logits")
    return loss


def area_loss(rows: Rows, points: int | None, variant: Variant, group: Group) -> Tensor:
    """`auavuc_loss` of rows whose uncertainty is known already."""
    scaled, no = torch.tanh(rows.uncertainty), torch.zeros_like(rows.correct)
    certain = mass(rows.confidence, scaled, rows.correct, no, variant) * rows.weight
    uncertain = mass(rows.confidence, scaled, rows.correct, ~no, variant) * rows.weight
    right, wrong = rows.correct, ~rows.correct
    # what each row adds to (good, bad) where it is certain, and where it is uncertain
    table = torch.stack((certain * right, certain * wrong, uncertain * wrong, uncertain * right), dim=1)
    u, used = rows.uncertainty, rows.weight > 0
    if points is None:
        joined = gather_rows(torch.cat((table, u.unsqueeze(1), used.to(u.dtype).unsqueeze(1)), dim=1), group)
        table, u, used = joined[:, :4], joined[:, 4], joined[:, 5] > 0
    highest = reduce_extremum(torch.where(used, u, -math.inf), group, largest=True)
    lowest = reduce_extremum(torch.where(used, u, math.inf), group, largest=False)
    if points is None:
        area = _exact_area(u, used, table, highest)
    else:
        area = _trapezoid(u, table, lowest, highest, points, group)
    return -torch.log(area)


def elbo_loss(
    logits: Tensor,
    labels: Tensor,
    kl: Tensor | float,
    *,
    num_train: int,
    kl_weight: float = 1.0,
    ignore_index: int = -100,
) -> Tensor:
    """Negative ELBO per sample: E_q[cross-entropy] + kl_weight·KL/num_train, the expectation over the draws given.

    >>> round(elbo_loss(torch.zeros(1, 2), torch.tensor([0]), 50.0, num_train=100).item(), 4)  # log 2 + 50/100
    1.1931
    """
    if num_train < 1:
        raise InputError(f"elbo_loss: num_train is the size of the training set, at least 1; found {num_train}")
    logits = at_least_float32(logits)
    if draws := check_shapes(logits, labels):
        logits, labels = logits.flatten(0, 1), labels.expand(draws, *labels.shape).flatten(0, 1)
    return F.cross_entropy(logits, labels, ignore_index=ignore_index) + kl_weight * kl / num_train


class AvUCLoss(nn.Module):
    """β·L_AvUC with a threshold that it learns: add it to the cross-entropy or to the negative ELBO.

    For `warmup_epochs` epochs it returns 0 and gathers the uncertainties of the training predictions it is shown. After
    the last of them the threshold becomes the midpoint of the mean uncertainties of accurate and inaccurate predictions
    (the overall mean where one group is empty) and stays fixed. Call `epoch_end()` after each epoch. The threshold,
    what was gathered and the epoch survive a `state_dict` round trip.

    >>> avuc = AvUCLoss(beta=3.0, warmup_epochs=1)
    >>> logits, labels = torch.tensor([[2.0, 0.0], [0.1, 0.0]]), torch.tensor([1, 0])
    >>> avuc(logits, labels).item()
    0.0
    >>> avuc.epoch_end()
    >>> avuc(logits, labels).item() > 1  # wrong and certain, right and uncertain
    True
    """

    threshold: Tensor
    gathered: Tensor

    def __init__(
        self,
        beta: float = 3.0,
        warmup_epochs: int = 5,
        variant: Variant = "paper",
        *,
        threshold: float | None = None,
        uncertainty: Uncertainty = "entropy",
        ignore_index: int = -100,
        group: Group = None,
    ) -> None:
        super().__init__()
        one_of("variant", variant, VARIANTS)
        one_of("uncertainty", uncertainty, UNCERTAINTIES)
        if beta < 0 or warmup_epochs < 0 or (threshold is None and warmup_epochs == 0):
            raise InputError(
                "AvUCLoss: beta and warmup_epochs must not be negative, and without warm-up epochs to learn it from "
                f"a threshold must be given; found {beta=}, {warmup_epochs=}, {threshold=}"
            )
        self.beta, self.variant, self.uncertainty = beta, variant, uncertainty
        self.warmup_epochs = warmup_epochs if threshold is None else 0
        self.ignore_index, self.group, self.epoch = ignore_index, group, 0
        self.register_buffer("threshold", torch.tensor(math.nan if threshold is None else threshold))
        # Σ u and the number of predictions; first row inaccurate ones, second row accurate ones
        self.register_buffer("gathered", torch.zeros(2, 2, dtype=torch.float64))

    @property
    def warming_up(self) -> bool:
        """Whether the threshold is still being learned."""
        return self.epoch < self.warmup_epochs

    def forward(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.warming_up:
            if self.training:
                self._gather(logits, labels, weights)
            return at_least_float32(logits).new_zeros(())
        loss = avuc_loss(
            logits,
            labels,
            self.threshold,
            variant=self.variant,
            uncertainty=self.uncertainty,
            ignore_index=self.ignore_index,
            weights=weights,
            group=self.group,
        )
        return self.beta * loss

    def epoch_end(self) -> None:
        """Count an epoch; after the last warm-up epoch, fix the threshold."""
        self.epoch += 1
        if self.epoch != self.warmup_epochs:
            return
        sums, counts = sum_over_ranks(self.gathered, self.group).unbind(dim=1)
        if not counts.sum() > 0:
            raise InputError("AvUCLoss: no prediction was seen in train() mode during the warm-up epochs")
        midpoint = (sums / counts).mean() if bool((counts > 0).all()) else sums.sum() / counts.sum()
        self.threshold.copy_(midpoint)

    @torch.no_grad()
    def _gather(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        rows = rows_from_logits(logits, labels, self.uncertainty, self.ignore_index, weights)
        refuse_nan(rows.uncertainty, "logits")
        right = rows.correct.double()
        groups = torch.stack((1 - right, right)) * rows.weight
        self.gathered += torch.stack(((groups * rows.uncertainty).sum(dim=1), groups.sum(dim=1)), dim=1)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.epoch)

    def set_extra_state(self, state: Tensor) -> None:
        self.epoch = int(state)


def _avu(good: Tensor, bad: Tensor) -> Tensor:
    good = or_empty(good)
    return good / (good + bad)


def _good_and_bad(order: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """(good, bad) with the k least uncertain rows certain and the rest uncertain, for k = 0 … N."""
    table = F.pad(table[order], (0, 0, 1, 0)).cumsum(dim=0)
    certain, uncertain = table[:, :2], table[-1, 2:] - table[:, 2:]
    good, bad = (certain + uncertain).clamp(min=0).unbind(dim=1)  # the difference of two sums may round below 0
    return good, bad


def _trapezoid(u: Tensor, table: Tensor, lowest: Tensor, highest: Tensor, points: int, group: Group) -> Tensor:
    t = torch.linspace(0, 1, points, dtype=u.dtype, device=u.device)
    # t = 1 must give u_max itself, which lowest + 1·(highest − lowest) may miss by a rounding
    thresholds = torch.where(t < 1, lowest + t * (highest - lowest), highest)
    ordered, order = u.detach().sort()
    certain = torch.searchsorted(ordered, thresholds, right=True)
    good, bad = _good_and_bad(order, table)
    good, bad = sum_over_ranks(torch.stack((good[certain], bad[certain])), group)
    return torch.trapezoid(_avu(good, bad), t)


def _exact_area(u: Tensor, used: Tensor, table: Tensor, highest: Tensor) -> Tensor:
    """∫ AvU dt: AvU is constant between one row's uncertainty and the next."""
    if not u.numel():
        return table.sum() + 1
    # an unused row weighs nothing; moved to the top it adds no width either
    ordered, order = torch.where(used, u, torch.where(highest.isfinite(), highest, 0)).sort()
    good, bad = _good_and_bad(order, table)
    avu = _avu(good, bad)[1:]  # with 1 … N rows certain
    span = ordered[-1] - ordered[0]
    area = (avu[:-1] * ordered.diff()).sum() / torch.where(span > 0, span, 1)
    # with one uncertainty for all, every threshold calls every row certain
    return torch.where(span > 0, area, avu[-1])
