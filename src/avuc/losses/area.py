"""The area under soft AvU over all thresholds, which `auavuc_loss` and the AvU calibrators maximise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.core.data_parallel import Group, gather_rows, reduce_extremum, sum_over_ranks
from avuc.losses.analytic import or_empty
from avuc.losses.quadrants import SampleStatistics, Variant, mass


def area_loss(statistics: SampleStatistics, points: int | None, variant: Variant, group: Group) -> Tensor:
    """Return −log of the area under soft AvU: `auavuc_loss` of predictions whose statistics are known.

    Args:
        statistics: confidence, uncertainty, correctness and weight of each prediction, each of shape (M).
        points: number of thresholds for the trapezoid rule; None: the exact area.
        variant: "paper", "stopgrad" or "monotone".
        group: the data-parallel processes that share a batch; False: this process alone.

    >>> ones = torch.ones(2)
    >>> statistics = SampleStatistics(ones, torch.tensor([0.1, 0.6]), torch.tensor([True, True]), ones, 2)
    >>> round(area_loss(statistics, 21, "paper", group=False).item(), 3)
    0.453
    """
    scaled, no = torch.tanh(statistics.uncertainty), torch.zeros_like(statistics.correct)
    certain = mass(statistics.confidence, scaled, statistics.correct, no, variant) * statistics.weight
    uncertain = mass(statistics.confidence, scaled, statistics.correct, ~no, variant) * statistics.weight
    right, wrong = statistics.correct, ~statistics.correct
    # what each prediction adds to (good, bad) if it is certain, and if it is uncertain
    table = torch.stack((certain * right, certain * wrong, uncertain * wrong, uncertain * right), dim=1)
    u, used = statistics.uncertainty, statistics.weight > 0
    if points is None:
        joined = gather_rows(torch.cat((table, u.unsqueeze(1), used.to(u.dtype).unsqueeze(1)), dim=1), group)
        area = _exact_area(joined[:, 4], joined[:, 5] > 0, joined[:, :4])
    else:
        highest = reduce_extremum(torch.where(used, u, -math.inf), group, largest=True)
        lowest = reduce_extremum(torch.where(used, u, math.inf), group, largest=False)
        area = _trapezoid(u, table, lowest, highest, points, group)
    return -torch.log(area)


def _avu(good: Tensor, bad: Tensor) -> Tensor:
    good = or_empty(good)
    return good / (good + bad)


def _good_and_bad(order: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return (good, bad) if the k least uncertain predictions are certain and the rest uncertain, for k = 0 … N."""
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


def _exact_area(u: Tensor, used: Tensor, table: Tensor) -> Tensor:
    """Return ∫ AvU dt: AvU is constant between one prediction's uncertainty and the next."""
    if not u.numel():
        return table.sum() + 1
    # An ignored prediction has no weight. It gets the uncertainty of the most uncertain used one, so that it adds
    # neither width nor gradient.
    last = torch.where(used, u.detach(), -math.inf).argmax().unsqueeze(0)
    ordered, order = torch.where(used, u, u.gather(0, last)).sort()
    good, bad = _good_and_bad(order, table)
    avu = _avu(good, bad)[1:]  # AvU if the 1 … N least uncertain predictions are certain
    span = ordered[-1] - ordered[0]
    # If all uncertainties are equal, every prediction is certain at every threshold. Differences whose inverse would be
    # infinite are rounding errors.
    smallest = torch.finfo(u.dtype).tiny / torch.finfo(u.dtype).eps
    several = span > smallest
    area = (avu[:-1] * ordered.diff()).sum() / torch.where(several, span, 1)
    return torch.where(several, area, avu[-1])
