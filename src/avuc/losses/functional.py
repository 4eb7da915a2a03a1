"""The AvUC losses as functions of logits and labels.

Krishnan & Tickoo, "Improving model calibration with accuracy versus uncertainty optimization" (NeurIPS 2020), Eq. 3–5
and appendix F. `avuc.losses.quadrants` defines the soft quadrants AC, AU, IC and IU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from avuc.core.data_parallel import Group, sum_over_ranks
from avuc.core.errors import InputError
from avuc.losses.accumulation import part_of_total
from avuc.losses.analytic import analytic_avuc, loss_from_statistics
from avuc.losses.area import area_loss
from avuc.losses.first_calls import warn_of_probs
from avuc.losses.inputs import check_shapes, checked_threshold, checked_whole, one_of, refuse_nan, transforming
from avuc.losses.layout import Task, standard_layout
from avuc.losses.quadrants import (
    UNCERTAINTIES,
    VARIANTS,
    Quadrants,
    Uncertainty,
    Variant,
    quadrants_of,
    sample_statistics,
)


def avuc_loss(
    logits: Tensor,
    labels: Tensor,
    threshold: float | Tensor | None,
    *,
    variant: Variant = "monotone",
    uncertainty: Uncertainty = "entropy",
    ignore_index: int = -100,
    weights: Tensor | None = None,
    group: Group = None,
    total: Quadrants | None = None,
    task: Task | None = None,
    class_dim: int | None = None,
) -> Tensor:
    """Return the AvUC loss of a batch, a tensor without dimensions (Eq. 3 of the paper).

        L_AvUC = log(1 + (AU + IC)/(AC + IU))

    It is small if accurate predictions are certain and inaccurate ones uncertain. A batch without predictions, or with
    all labels ignored, has loss 0. Second derivatives and torch.func work on one process.

    Args:
        logits: (N, C), (S, N, C) for S posterior samples, or dense ([S,] N, C, *spatial). With samples, p is the mean
            of their softmax probabilities. Binary: one logit per label, (N) or (N, 1). Multi-label: (N, L).
        labels: class indices, (N) or (N, *spatial); 0 and 1 for binary, and (N, L) for multi-label logits.
        threshold: largest uncertainty, in nats, that counts as certain. None only for the soft variant (log(C)/2).
        variant: "monotone" (default), "paper", "stopgrad" or "soft"; see `avuc_quadrants`. "paper" is the printed loss.
            It can make every prediction uncertain: so it failed on plain networks trained by SGD, or on few images
            (docs/gotchas.md).
        uncertainty: "entropy" (default), or "mutual_information" for logits (S, N, C).
        ignore_index: label of the predictions to leave out (default −100).
        weights: weight of each prediction, same shape as `labels`. Default None: 1 each.
        group: the data-parallel processes that share a batch. None (default): all; the quadrants are summed over them,
            so N processes under DistributedDataParallel train like one process on the whole batch. False: this process
            alone.
        total: the quadrants of a larger batch that this one is a part of (gradient accumulation). The losses of all
            parts then sum to the loss of the larger batch, and so do their gradients (first derivatives only).
        task: "multiclass", "binary" or "multilabel". Default None: binary for one number per label, else multiclass;
            multi-label is never guessed.
        class_dim: the dimension of the classes, −1 for the (N, T, C) of language models. Default None: the one after N.

    >>> logits = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> avuc_loss(logits, torch.tensor([0, 1]), threshold=0.3).item()  # both accurate and certain
    0.0
    """
    one_of("variant", variant, VARIANTS)
    logits, labels = standard_layout(logits, labels, task, class_dim)
    # the analytic pass takes logits (N, C), has no gradient in the weights and cannot be traced or transformed
    plain = (
        total is not None
        or variant == "soft"
        or check_shapes(logits, labels)
        or torch.compiler.is_compiling()
        or transforming()
    )
    if plain or (isinstance(weights, Tensor) and weights.requires_grad):
        statistics = sample_statistics(logits, labels, uncertainty, ignore_index, weights)
        if total is None:
            loss = loss_from_statistics(statistics, threshold, variant, group)
        else:
            loss = part_of_total(quadrants_of(statistics, threshold, variant), total, group)
    else:
        if uncertainty != "entropy":
            one_of("uncertainty", uncertainty, UNCERTAINTIES)
            raise InputError(f"avuc: mutual information needs samples, logits (S, N, C); found {tuple(logits.shape)}")
        loss = analytic_avuc(
            logits, labels, checked_threshold(threshold, variant), variant, ignore_index, weights, group
        )
    refuse_nan(loss, "logits", threshold)
    warn_of_probs("avuc_loss", logits, labels)
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
    task: Task | None = None,
    class_dim: int | None = None,
) -> Tensor:
    """Return minus the logarithm of the area under soft AvU over all thresholds (appendix F of the paper).

        L = −log ∫₀¹ AvU(u_min + t(u_max − u_min)) dt        with AvU = (AC + IU)/(AC + AU + IC + IU)

    It needs no threshold: u_min and u_max are the extreme uncertainties of the batch.

    Args:
        logits: (N, C), (S, N, C) for S posterior samples, or dense ([S,] N, C, *spatial).
        labels: class indices, (N) or (N, *spatial).
        points: number of thresholds for the trapezoid rule (default 21, as in the paper). None: the exact area.
        variant: "paper" (default), "stopgrad" or "monotone". The soft variant has no hard threshold and is refused.
        uncertainty: "entropy" (default), or "mutual_information" for logits (S, N, C).
        ignore_index: label of the predictions to leave out (default −100).
        weights: weight of each prediction, same shape as `labels`. Default None: 1 each.
        group: the data-parallel processes that share a batch; see `avuc_loss`.
        task, class_dim: the layout of `logits`, as in `avuc_loss`.

    >>> logits = torch.tensor([[4.0, 0.0], [0.0, 0.2]])
    >>> auavuc_loss(logits, torch.tensor([0, 0]), points=None).item()  # accurate and certain, inaccurate and uncertain
    -0.0
    """
    if variant == "soft":
        raise InputError("auavuc_loss: the soft variant has no hard threshold to move; use paper, stopgrad or monotone")
    if points is not None:
        checked_whole("auavuc_loss: points (or None for the exact area)", points, least=2)
    logits, labels = standard_layout(logits, labels, task, class_dim)
    statistics = sample_statistics(logits, labels, uncertainty, ignore_index, weights)
    one_of("variant", variant, VARIANTS)
    loss = area_loss(statistics, points, variant, group)
    refuse_nan(loss, "logits")
    warn_of_probs("auavuc_loss", logits, labels)
    return loss


def confidence_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    uncertainty: Uncertainty = "entropy",
    ignore_index: int = -100,
    weights: Tensor | None = None,
    group: Group = None,
    task: Task | None = None,
    class_dim: int | None = None,
) -> Tensor:
    """Return minus the mean uncertainty of the predictions (Pereyra et al. 2017, arXiv 1701.06548).

        L = −(1/N) Σ u

    It lowers the confidence of all predictions, accurate or not, so it is the control experiment for AvUC. A batch
    without predictions has loss 0.

    Args:
        logits: (N, C), (S, N, C) for S posterior samples, or dense ([S,] N, C, *spatial).
        labels: class indices, (N) or (N, *spatial); they only tell which predictions to leave out.
        uncertainty: "entropy" (default), or "mutual_information" for logits (S, N, C).
        ignore_index: label of the predictions to leave out (default −100).
        weights: weight of each prediction, same shape as `labels`. Default None: 1 each.
        group: the data-parallel processes that share a batch; see `avuc_loss`.
        task, class_dim: the layout of `logits`, as in `avuc_loss`.

    >>> round(confidence_penalty(torch.zeros(3, 2), torch.tensor([0, 1, 0])).item(), 4)  # −log 2
    -0.6931
    """
    logits, labels = standard_layout(logits, labels, task, class_dim)
    statistics = sample_statistics(logits, labels, uncertainty, ignore_index, weights)
    # a prediction of weight 0 may be NaN
    used = torch.where(statistics.weight > 0, statistics.uncertainty, 0.0)
    sums = torch.stack([(statistics.weight * used).sum(), statistics.weight.sum()])
    total, weight = sum_over_ranks(sums, group)
    loss: Tensor = -total / torch.where(weight > 0, weight, 1.0)
    refuse_nan(loss, "logits")
    warn_of_probs("confidence_penalty", logits, labels)
    return loss
