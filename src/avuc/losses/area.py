"""The area under soft AvU over all thresholds, from rows: what `auavuc_loss` and the AvU calibrators minimise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.core.data_parallel import Group, gather_rows, reduce_extremum, sum_over_ranks
from avuc.losses.analytic import or_empty
from avuc.losses.quadrants import SampleStatistics, Variant, mass

__all__ = ["area_loss"]


def area_loss(rows: SampleStatistics, points: int | None, variant: Variant, group: Group) -> Tensor:
    """−log of the area: `auavuc_loss` of rows whose uncertainty is known already."""
    scaled, no = torch.tanh(rows.uncertainty), torch.zeros_like(rows.correct)
    certain = mass(rows.confidence, scaled, rows.correct, no, variant) * rows.weight
    uncertain = mass(rows.confidence, scaled, rows.correct, ~no, variant) * rows.weight
    right, wrong = rows.correct, ~rows.correct
    # what each row adds to (good, bad) where it is certain, and where it is uncertain
    table = torch.stack((certain * right, certain * wrong, uncertain * wrong, uncertain * right), dim=1)
    u, used = rows.uncertainty, rows.weight > 0
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


def _exact_area(u: Tensor, used: Tensor, table: Tensor) -> Tensor:
    """∫ AvU dt: AvU is constant between one row's uncertainty and the next."""
    if not u.numel():
        return table.sum() + 1
    # An unused row weighs nothing. It takes the place of the most uncertain used row and moves with it, so that it adds
    # neither width nor gradient.
    last = torch.where(used, u.detach(), -math.inf).argmax().unsqueeze(0)
    ordered, order = torch.where(used, u, u.gather(0, last)).sort()
    good, bad = _good_and_bad(order, table)
    avu = _avu(good, bad)[1:]  # with 1 … N rows certain
    span = ordered[-1] - ordered[0]
    # Where all uncertainties are equal, every threshold calls every row certain. Differences so small that their
    # inverse would not be finite are rounding.
    smallest = torch.finfo(u.dtype).tiny / torch.finfo(u.dtype).eps
    several = span > smallest
    area = (avu[:-1] * ordered.diff()).sum() / torch.where(several, span, 1)
    return torch.where(several, area, avu[-1])
