"""The loss of tokens whose statistics are known: cross-entropy and AvUC or UA-CLM, over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from avuc.core.data_parallel import Group, sum_over_ranks, world_size
from avuc.core.errors import InputError
from avuc.losses.accumulation import part_of_total, running_loss
from avuc.losses.analytic import loss_of
from avuc.losses.inputs import may_synchronise
from avuc.losses.quadrants import Quadrants, SampleStatistics, Variant, quadrants_of
from avuc.losses.ua_clm import ua_clm_of_sums, ua_clm_sums

Kind = Literal["avuc", "ua_clm", "plain"]


class Whole(NamedTuple):
    """Sums over all micro-batches and ranks of a larger batch."""

    quadrants: Quadrants
    num_correct: Tensor
    num_valid: Tensor


class Running(NamedTuple):
    """Decayed sums of the quadrants and of the batches' weights, (5), and their decay; see `running_loss`."""

    averages: Tensor
    decay: float


def summed(results: Iterable[Whole]) -> Whole:
    """Return the sums over micro-batches, in float64 where there is float64."""
    results = list(results)
    if not results:
        raise InputError("linear_avuc: total has no results; give those of all micro-batches")
    dtype = torch.float32 if results[0].num_valid.device.type == "mps" else torch.float64
    quadrants = torch.stack([torch.stack(tuple(each.quadrants)).detach().to(dtype) for each in results]).sum(dim=0)
    correct, valid = (torch.stack(tuple(counts)).sum() for counts in zip(*(each[1:] for each in results), strict=True))
    return Whole(Quadrants(*quadrants), correct, valid)


def mean_nll(nll: Tensor, weight: Tensor, num_valid: Tensor, whole: Whole | None, group: Group) -> Tensor:
    """Return the mean over the tokens of all ranks, or this micro-batch's part of the mean over the whole batch."""
    return mean_of_sum(torch.where(weight > 0, nll, 0).sum(), num_valid, whole, group)  # an ignored token may be NaN


def mean_of_sum(total: Tensor, num_valid: Tensor, whole: Whole | None, group: Group) -> Tensor:
    """Return the mean as above, of the sum over the tokens of this rank."""
    if whole is None:
        return sum_over_ranks(total, group) / num_valid.clamp(min=1)
    return _times_ranks(total / whole.num_valid.clamp(min=1), group)


def avuc_of(
    statistics: SampleStatistics,
    threshold: float | Tensor | None,
    variant: Variant,
    group: Group,
    whole: Whole | None,
    running: Running | None,
) -> tuple[Tensor, Quadrants]:
    """Return L_AvUC and the quadrants of all ranks, which have no gradient."""
    return avuc_of_quadrants(quadrants_of(statistics, threshold, variant), group, whole, running)


def avuc_of_quadrants(
    own: Quadrants, group: Group, whole: Whole | None, running: Running | None
) -> tuple[Tensor, Quadrants]:
    """Return the same, of the quadrants of this rank."""
    batch = sum_over_ranks(torch.stack(own), group)
    if whole is not None:
        if may_synchronise(batch) and bool((sum(whole.quadrants) == 0) & (batch.sum() > 0)):
            raise InputError("linear_avuc: total has no quadrants; use kind='avuc' in the first pass as well")
        loss = part_of_total(own, whole.quadrants, group)
    elif running is not None and torch.is_grad_enabled():
        loss = running_loss(batch, running.averages, running.decay)
    else:
        loss = loss_of(batch)
    return loss, Quadrants(*batch.detach())


def ua_clm_of(statistics: SampleStatistics, variant: Variant, group: Group, whole: Whole | None) -> Tensor:
    """Return the UA-CLM loss."""
    kind: Literal["paper", "monotone"] = "paper" if variant == "paper" else "monotone"
    return ua_clm_of_terms(ua_clm_sums(statistics, kind), group, whole)


def ua_clm_of_terms(sums: Tensor, group: Group, whole: Whole | None) -> Tensor:
    """Return the same, of the four sums of `ua_clm_sums` over the tokens of this rank."""
    if whole is None:
        return ua_clm_of_sums(sum_over_ranks(sums, group))
    counts = torch.stack((whole.num_valid - whole.num_correct, whole.num_correct)).to(sums)
    return _times_ranks(ua_clm_of_sums(torch.stack((sums[0], counts[0], sums[2], counts[1]))), group)


def _times_ranks(part: Tensor, group: Group) -> Tensor:
    """Return the part with its gradient multiplied by the number of ranks, by which data parallelism divides it."""
    ranks = world_size(group)
    return part if ranks == 1 else part.detach() + ranks * (part - part.detach())
