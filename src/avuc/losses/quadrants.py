"""Predictions of any shape into rows, and rows into the four soft cells of AvU (Eq. 2 and 4 of the paper).

Each prediction is accurate or inaccurate, and certain (u ≤ u_th, see `avuc.uncertainty.highest_certain`) or uncertain.
The variants differ in what a prediction with confidence p and uncertainty u weighs in its cell:

    variant    certain (AC, IC)                     uncertain (AU, IU)
    paper      p(1−tanh u) if accurate, else        p·tanh u if accurate, else        Eq. 4 as printed
               (1−p)(1−tanh u)                      (1−p)tanh u
    stopgrad   as paper, no gradient through p
    monotone   p(1−tanh u)                          (1−p)tanh u
    soft       (1−s)(1−tanh u)                      s·tanh u                          in both cells at once

with s = logistic(10·(logit(u/log C) − logit(u_th/log C))) (Karandikar et al. 2021, arXiv 2108.00106). Why the printed
cells need repair is shown in docs/avuc-pathology.md.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.losses.inputs import (
    at_least_float32,
    check_shapes,
    checked_threshold,
    class_indices,
    classes_last,
    label_weights,
    one_of,
    refuse_logits,
    refuse_nan,
)
from avuc.losses.row_statistics import row_statistics
from avuc.uncertainty import entropy, highest_certain, mutual_information

__all__ = ["Cells", "Uncertainty", "Variant", "avuc_cells"]

Variant = Literal["paper", "stopgrad", "monotone", "soft"]
Uncertainty = Literal["entropy", "mutual_information"]
VARIANTS: tuple[str, ...] = get_args(Variant)
UNCERTAINTIES: tuple[str, ...] = get_args(Uncertainty)

SOFT_TEMPERATURE = 0.1
SOFT_THRESHOLD = 0.5  # of log C: what the soft variant uses when it is given no threshold


class Cells(NamedTuple):
    """Soft counts of accurate/inaccurate × certain/uncertain predictions."""

    ac: Tensor
    au: Tensor
    ic: Tensor
    iu: Tensor


class Rows(NamedTuple):
    """One row per prediction, whatever shape the predictions came in."""

    confidence: Tensor
    uncertainty: Tensor
    correct: Tensor
    weight: Tensor  # 0 where the label is to be ignored
    num_classes: int


def avuc_cells(
    probs: Tensor,
    labels: Tensor,
    threshold: float | Tensor | None,
    *,
    variant: Variant = "paper",
    uncertainty: Tensor | None = None,
    ignore_index: int = -100,
    weights: Tensor | None = None,
) -> Cells:
    """The four soft cells of probabilities (N, C) or (N, C, *spatial), of this process alone.

    `uncertainty` (shaped like `labels`) takes the place of the entropy of `probs`, e.g. mutual information.

    >>> cells = avuc_cells(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1]), threshold=0.3)
    >>> [round(cell.item(), 3) for cell in cells]  # right and certain; wrong and uncertain: (1 − .5)·tanh(log 2)
    [1.0, 0.0, 0.0, 0.3]
    """
    if check_shapes(probs, labels):
        raise InputError(f"avuc_cells: give the mean over draws, (N, C); found {tuple(probs.shape)}")
    with torch.autocast(probs.device.type, enabled=False):
        flat = classes_last(at_least_float32(probs), labels)
        refuse_logits(flat)
        confidence, predicted = flat.max(dim=-1)
        u = entropy(flat) if uncertainty is None else at_least_float32(uncertainty).reshape(-1)
        if len(u) != len(flat):
            raise InputError(f"avuc_cells: one uncertainty per label; found {len(u)} for {len(flat)} labels")
        rows = _labelled(confidence, u, predicted, labels, flat.shape[-1], ignore_index, weights)
        cells = cells_of(rows, threshold, variant)
    refuse_nan(torch.stack(cells), "probs")
    return cells


def rows_from_logits(
    logits: Tensor, labels: Tensor, uncertainty: Uncertainty, ignore_index: int, weights: Tensor | None
) -> Rows:
    """Rows of logits (N, C), Monte Carlo (S, N, C) or dense ([S,] N, C, *spatial); p is the mean over draws."""
    one_of("uncertainty", uncertainty, UNCERTAINTIES)
    draws = check_shapes(logits, labels)
    if uncertainty == "mutual_information" and not draws:
        raise InputError(f"avuc: mutual information needs draws, logits (S, N, C); found {tuple(logits.shape)}")
    with torch.autocast(logits.device.type, enabled=False):
        flat = classes_last(at_least_float32(logits), labels)
        if draws == 1:
            flat = flat[0]
        if draws > 1 or uncertainty == "mutual_information":
            each = flat.reshape(draws, -1, flat.shape[-1]).softmax(dim=-1)
            probs = each.mean(dim=0)
            confidence, predicted = probs.max(dim=-1)
            u = entropy(probs) if uncertainty == "entropy" else mutual_information(each)
        else:
            confidence, u, predicted = row_statistics(flat)
        return _labelled(confidence, u, predicted, labels, flat.shape[-1], ignore_index, weights)


def mass(p: Tensor, scaled: Tensor, correct: Tensor, uncertain: Tensor, variant: Variant) -> Tensor:
    """What each prediction weighs in its cell, for the variants with hard membership; `scaled` is tanh u."""
    share = torch.where(_doubted(correct, uncertain, variant), 1 - p, p)
    if variant == "stopgrad":
        share = share.detach()
    return share * torch.where(uncertain, scaled, 1 - scaled)


def mass_and_slopes(
    p: Any, scaled: Any, correct: Any, uncertain: Any, variant: Variant, xp: Any
) -> tuple[Any, Any, Any]:
    """The mass, ∂mass/∂p (None where p is held fixed) and ∂mass/∂u, for those who do without autograd.

    Tensors with `xp=torch` or arrays with `xp=numpy`.
    """
    doubted = _doubted(correct, uncertain, variant)
    share, scale = xp.where(doubted, 1 - p, p), xp.where(uncertain, scaled, 1 - scaled)
    in_u = xp.where(uncertain, share, -share) * (1 - scaled * scaled)
    in_p = None if variant == "stopgrad" else xp.where(doubted, -scale, scale)
    return share * scale, in_p, in_u


def _doubted(correct: Any, uncertain: Any, variant: Variant) -> Any:
    """Where a cell weighs 1 − p: inaccurate predictions in Eq. 4, uncertain ones in the monotone variant."""
    return uncertain if variant == "monotone" else ~correct


def cells_of(rows: Rows, threshold: float | Tensor | None, variant: Variant) -> Cells:
    """Sums of the masses over the four groups."""
    one_of("variant", variant, VARIANTS)
    u, right = rows.uncertainty, rows.correct.to(rows.weight.dtype) * rows.weight
    wrong, scaled = rows.weight - right, torch.tanh(u)
    if variant == "soft":
        member = _soft_membership(u, threshold, rows.num_classes)
        certain, uncertain = (1 - member) * (1 - scaled), member * scaled
    else:
        above = u > highest_certain(checked_threshold(threshold, variant))
        weighed = mass(rows.confidence, scaled, rows.correct, above, variant)
        certain, uncertain = weighed * ~above, weighed * above
    sums = torch.stack((certain * right, uncertain * right, certain * wrong, uncertain * wrong)).sum(dim=1)
    return Cells(*sums.unbind())


def _soft_membership(u: Tensor, threshold: float | Tensor | None, num_classes: int) -> Tensor:
    """How far each prediction belongs to the uncertain ones."""
    ceiling = math.log(max(num_classes, 2))
    share = SOFT_THRESHOLD if threshold is None else checked_threshold(threshold, "soft") / ceiling
    middle = torch.as_tensor(share, dtype=u.dtype, device=u.device)
    # the clamp inside logit ends the gradient only where it vanishes anyway: near 0, s grows like (u/log C)^10
    odds = torch.logit(u / ceiling, eps=1e-6) - torch.logit(middle, eps=1e-6)
    return torch.sigmoid(odds / SOFT_TEMPERATURE)


def _labelled(
    confidence: Tensor,
    u: Tensor,
    predicted: Tensor,
    labels: Tensor,
    num_classes: int,
    ignore_index: int,
    weights: Tensor | None,
) -> Rows:
    labels = class_indices(labels)
    weight = label_weights(labels, num_classes, ignore_index, weights, confidence.dtype)
    if weight is None:
        weight = torch.ones_like(confidence)
    return Rows(confidence, u, predicted == labels, weight, num_classes)
