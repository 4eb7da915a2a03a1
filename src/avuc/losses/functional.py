"""The AvUC family: losses that ask a classifier to be certain where it is right and uncertain where it is wrong.

Krishnan & Tickoo, "Improving model calibration with accuracy versus uncertainty optimization" (NeurIPS 2020), Eq. 3–5
and appendix F, over the soft cells of `avuc.losses.quadrants`:

    L_AvUC = log(1 + (AU + IC) / (AC + IU))
"""

from __future__ import annotations

import torch
from torch import Tensor

from avuc.core.data_parallel import Group, sum_over_ranks
from avuc.core.errors import InputError
from avuc.losses.analytic import analytic_avuc, loss_from_statistics
from avuc.losses.area import area_loss
from avuc.losses.inputs import check_shapes, checked_threshold, checked_whole, one_of, refuse_nan, transforming
from avuc.losses.quadrants import UNCERTAINTIES, VARIANTS, Uncertainty, Variant, sample_statistics

__all__ = ["auavuc_loss", "avuc_loss", "confidence_penalty"]


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
    Second derivatives and torch.func work, on one process.

    >>> logits = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> avuc_loss(logits, torch.tensor([0, 1]), threshold=0.3).item()  # both right and certain
    0.0
    """
    one_of("variant", variant, VARIANTS)
    # the fused pass is for one draw, has no gradient in the weights and cannot be traced or transformed
    plain = variant == "soft" or check_shapes(logits, labels) or torch.compiler.is_compiling() or transforming()
    if plain or (isinstance(weights, Tensor) and weights.requires_grad):
        rows = sample_statistics(logits, labels, uncertainty, ignore_index, weights)
        loss = loss_from_statistics(rows, threshold, variant, group)
    else:
        if uncertainty != "entropy":
            one_of("uncertainty", uncertainty, UNCERTAINTIES)
            raise InputError(f"avuc: mutual information needs samples, logits (S, N, C); found {tuple(logits.shape)}")
        loss = analytic_avuc(
            logits, labels, checked_threshold(threshold, variant), variant, ignore_index, weights, group
        )
    refuse_nan(loss, "logits", threshold)
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
    if points is not None:
        checked_whole("auavuc_loss: points (or None for the exact area)", points, least=2)
    rows = sample_statistics(logits, labels, uncertainty, ignore_index, weights)
    one_of("variant", variant, VARIANTS)
    loss = area_loss(rows, points, variant, group)
    refuse_nan(loss, "logits")
    return loss


def confidence_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    uncertainty: Uncertainty = "entropy",
    ignore_index: int = -100,
    weights: Tensor | None = None,
    group: Group = None,
) -> Tensor:
    """−mean entropy of the predictions (Pereyra et al. 2017, arXiv 1701.06548): it only lowers confidence.

    Unlike AvUC it does not look at which predictions are right, so it is the control for AvUC's effect. Shapes and the
    other arguments are those of `avuc_loss`; labels say only which rows to leave out. No row at all is 0.

    >>> round(confidence_penalty(torch.zeros(3, 2), torch.tensor([0, 1, 0])).item(), 4)  # −log 2
    -0.6931
    """
    rows = sample_statistics(logits, labels, uncertainty, ignore_index, weights)
    # a row of weight 0 may hold anything
    used = torch.where(rows.weight > 0, rows.uncertainty, 0.0)
    total, weight = sum_over_ranks(torch.stack([(rows.weight * used).sum(), rows.weight.sum()]), group)
    loss: Tensor = -total / torch.where(weight > 0, weight, 1.0)
    refuse_nan(loss, "logits")
    return loss
