"""The four soft quadrants of accuracy versus uncertainty (AvU), Eq. 2 and 4 of the paper.

Each prediction is accurate or inaccurate, and certain (u ≤ u_th, see `avuc.uncertainty.highest_certain`) or uncertain.
AC counts accurate and certain predictions, AU accurate and uncertain, IC inaccurate and certain, IU inaccurate and
uncertain ones. The variants differ in the weight that a prediction with confidence p and uncertainty u has in its
quadrant:

    variant    certain (AC, IC)                     uncertain (AU, IU)
    paper      p(1−tanh u) if accurate, else        p·tanh u if accurate, else        Eq. 4 as printed
               (1−p)(1−tanh u)                      (1−p)tanh u
    stopgrad   as paper, no gradient through p
    monotone   p(1−tanh u)                          (1−p)tanh u
    soft       (1−s)(1−tanh u)                      s·tanh u                          in both quadrants

with s = logistic(10·(logit(u/log C) − logit(u_th/log C))) (Karandikar et al. 2021, arXiv 2108.00106).
docs/concepts/avuc-pathology.md shows what is wrong with the printed weights.
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
from avuc.losses.layout import Task, standard_layout
from avuc.losses.softmax_statistics import softmax_statistics
from avuc.uncertainty import entropy, highest_certain, mutual_information

Variant = Literal["paper", "stopgrad", "monotone", "soft"]
Uncertainty = Literal["entropy", "mutual_information"]
VARIANTS: tuple[str, ...] = get_args(Variant)
UNCERTAINTIES: tuple[str, ...] = get_args(Uncertainty)

SOFT_TEMPERATURE = 0.1
SOFT_THRESHOLD = 0.5  # times log C: the default threshold of the soft variant


class Quadrants(NamedTuple):
    """Soft counts of accurate or inaccurate × certain or uncertain predictions: four tensors without dimensions.

    Args:
        ac: accurate and certain.
        au: accurate and uncertain.
        ic: inaccurate and certain.
        iu: inaccurate and uncertain.

    >>> quadrants = Quadrants(*torch.tensor([6.0, 1.0, 1.0, 2.0]))
    >>> quadrants.ac + quadrants.iu  # predictions where accuracy and certainty agree
    tensor(8.)
    """

    ac: Tensor
    au: Tensor
    ic: Tensor
    iu: Tensor


class SampleStatistics(NamedTuple):
    """What the losses need of each prediction. All tensors have shape (M), one entry for each label."""

    confidence: Tensor
    uncertainty: Tensor
    correct: Tensor  # bool
    weight: Tensor  # 0 where the label is ignored
    num_classes: int
    nll: Tensor | None = None  # −log of the label's probability, if asked for
    predicted: Tensor | None = None  # class index


def avuc_quadrants(
    probs: Tensor,
    labels: Tensor,
    threshold: float | Tensor | None,
    *,
    variant: Variant = "paper",
    uncertainty: Tensor | None = None,
    ignore_index: int = -100,
    weights: Tensor | None = None,
    task: Task | None = None,
    class_dim: int | None = None,
) -> Quadrants:
    """Return the four soft quadrants (AC, AU, IC, IU) of probabilities, Eq. 4 of the paper for the default variant.

        AC = Σ p(1 − tanh u)          over accurate predictions with u ≤ threshold
        AU = Σ p·tanh u               over accurate predictions with u > threshold
        IC = Σ (1 − p)(1 − tanh u)    over inaccurate predictions with u ≤ threshold
        IU = Σ (1 − p)·tanh u         over inaccurate predictions with u > threshold

    Under torch.distributed these are the quadrants of this process alone.

    Args:
        probs: probabilities, (N, C) or (N, C, *spatial); with posterior samples, their mean.
        labels: class indices, (N) or (N, *spatial).
        threshold: largest uncertainty, in nats, that counts as certain. None only for the soft variant (log(C)/2).
        variant: "paper" (default), "stopgrad", "monotone" (the default of `avuc_loss` and `AvUCLoss`) or "soft".
        uncertainty: used instead of the entropy of `probs`, for example mutual information; same shape as `labels`.
        ignore_index: label of the predictions to leave out (default −100).
        weights: weight of each prediction, same shape as `labels`; None (default) gives each the weight 1.
        task, class_dim: the layout of `probs`, as in `avuc_loss`.

    >>> quadrants = avuc_quadrants(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1]), threshold=0.3)
    >>> [round(value.item(), 3) for value in quadrants]  # accurate, certain: 1; inaccurate, uncertain: .5·tanh(log 2)
    [1.0, 0.0, 0.0, 0.3]
    """
    probs, labels = standard_layout(probs, labels, task, class_dim, "probs")
    if check_shapes(probs, labels):
        raise InputError(f"avuc_quadrants: give the mean over samples, (N, C); found {tuple(probs.shape)}")
    with torch.autocast(probs.device.type, enabled=False):
        flat = classes_last(at_least_float32(probs), labels)
        refuse_logits(flat)
        confidence, predicted = flat.max(dim=-1)
        u = entropy(flat) if uncertainty is None else at_least_float32(uncertainty).reshape(-1)
        if len(u) != len(flat):
            raise InputError(f"avuc_quadrants: one uncertainty per label; found {len(u)} for {len(flat)} labels")
        statistics = _with_labels(confidence, u, predicted, labels, flat.shape[-1], ignore_index, weights)
        quadrants = quadrants_of(statistics, threshold, variant)
    refuse_nan(torch.stack(quadrants), "probs")
    return quadrants


def sample_statistics(
    logits: Tensor,
    labels: Tensor,
    uncertainty: Uncertainty,
    ignore_index: int,
    weights: Tensor | None,
    *,
    with_nll: bool = False,
) -> SampleStatistics:
    """Return the statistics of logits (N, C), (S, N, C) for S posterior samples, or dense ([S,] N, C, *spatial).

    With posterior samples, p is the mean of their softmax probabilities. `with_nll` adds −log of the label's
    probability.
    """
    one_of("uncertainty", uncertainty, UNCERTAINTIES)
    samples = check_shapes(logits, labels)
    if uncertainty == "mutual_information" and not samples:
        raise InputError(f"avuc: mutual information needs samples, logits (S, N, C); found {tuple(logits.shape)}")
    with torch.autocast(logits.device.type, enabled=False):
        flat = classes_last(at_least_float32(logits), labels)
        if samples == 1:
            flat = flat[0]
        if samples > 1 or uncertainty == "mutual_information":
            each = flat.reshape(samples, -1, flat.shape[-1]).softmax(dim=-1)
            probs = each.mean(dim=0)
            confidence, predicted = probs.max(dim=-1)
            u = entropy(probs) if uncertainty == "entropy" else mutual_information(each)
            # an exact 0 has the gradient 1/0, which times 0 is NaN
            scores = probs.clamp(min=torch.finfo(probs.dtype).tiny).log() if with_nll else probs
        else:
            confidence, u, predicted = softmax_statistics(flat)
            scores = flat
        statistics = _with_labels(confidence, u, predicted, labels, flat.shape[-1], ignore_index, weights)
        if not with_nll:
            return statistics
        # z_ŷ − z_y is exact, and no second softmax is kept; ignored labels point to any class, their weight is 0
        columns = torch.stack((predicted, class_indices(labels).clamp(0, flat.shape[-1] - 1)), dim=1)
        highest, own = scores.gather(1, columns).unbind(dim=1)
        return statistics._replace(nll=highest - own - confidence.log())


def mass(p: Tensor, scaled: Tensor, correct: Tensor, uncertain: Tensor, variant: Variant) -> Tensor:
    """Return each prediction's weight in its quadrant, for the variants with a hard threshold; `scaled` is tanh u."""
    share = torch.where(_uses_complement(correct, uncertain, variant), 1 - p, p)
    if variant == "stopgrad":
        share = share.detach()
    return share * torch.where(uncertain, scaled, 1 - scaled)


def mass_and_slopes(
    p: Any, scaled: Any, correct: Any, uncertain: Any, variant: Variant, xp: Any
) -> tuple[Any, Any, Any]:
    """Return the mass, ∂mass/∂p (None for "stopgrad") and ∂mass/∂u, for code that does not use autograd.

    Takes tensors with `xp=torch`, arrays with `xp=numpy`.
    """
    complement = _uses_complement(correct, uncertain, variant)
    share, scale = xp.where(complement, 1 - p, p), xp.where(uncertain, scaled, 1 - scaled)
    in_u = xp.where(uncertain, share, -share) * (1 - scaled * scaled)
    in_p = None if variant == "stopgrad" else xp.where(complement, -scale, scale)
    return share * scale, in_p, in_u


def _uses_complement(correct: Any, uncertain: Any, variant: Variant) -> Any:
    """Where the weight has the factor 1 − p: inaccurate predictions in Eq. 4, uncertain ones in "monotone"."""
    return uncertain if variant == "monotone" else ~correct


def quadrants_of(statistics: SampleStatistics, threshold: float | Tensor | None, variant: Variant) -> Quadrants:
    """Return the weights summed over each of the four groups."""
    one_of("variant", variant, VARIANTS)
    u, right = statistics.uncertainty, statistics.correct.to(statistics.weight.dtype) * statistics.weight
    wrong, scaled = statistics.weight - right, torch.tanh(u)
    if variant == "soft":
        member = _soft_membership(u, threshold, statistics.num_classes)
        certain, uncertain = (1 - member) * (1 - scaled), member * scaled
    else:
        above = u > highest_certain(checked_threshold(threshold, variant))
        weighed = mass(statistics.confidence, scaled, statistics.correct, above, variant)
        certain, uncertain = weighed * ~above, weighed * above
    sums = torch.stack((certain * right, uncertain * right, certain * wrong, uncertain * wrong)).sum(dim=1)
    return Quadrants(*sums.unbind())


def _soft_membership(u: Tensor, threshold: float | Tensor | None, num_classes: int) -> Tensor:
    """Return each prediction's membership in the uncertain set, between 0 and 1."""
    ceiling = math.log(max(num_classes, 2))
    share = SOFT_THRESHOLD if threshold is None else checked_threshold(threshold, "soft") / ceiling
    middle = torch.as_tensor(share, dtype=u.dtype, device=u.device)
    # logit's clamp sets the gradient to 0 where it is negligible anyway: near 0, s grows like (u/log C)^10
    odds = torch.logit(u / ceiling, eps=1e-6) - torch.logit(middle, eps=1e-6)
    return torch.sigmoid(odds / SOFT_TEMPERATURE)


def _with_labels(
    confidence: Tensor,
    u: Tensor,
    predicted: Tensor,
    labels: Tensor,
    num_classes: int,
    ignore_index: int,
    weights: Tensor | None,
) -> SampleStatistics:
    labels = class_indices(labels)
    weight = label_weights(labels, num_classes, ignore_index, weights, confidence.dtype)
    if weight is None:
        weight = torch.ones_like(confidence)
    return SampleStatistics(confidence, u, predicted == labels, weight, num_classes, predicted=predicted)


# the names of version 0.1.0
Cells = Quadrants
avuc_cells = avuc_quadrants
