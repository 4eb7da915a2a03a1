"""The gradient of a large batch from its micro-batches.

L = log(1 + (AU + IC)/(AC + IU)) is a ratio of sums, so it is not a mean over micro-batches. Its gradient still is a sum
over them, once the quadrants Q of the whole batch are known:

    ∇L(Q) = Σ_i Σ_q ∂L/∂Q_q · ∇q_i        q_i: the quadrants of micro-batch i

`part_of_total` has this gradient for one micro-batch. `running_loss` takes an average over past batches for Q.
"""

from __future__ import annotations

import torch
from torch import Tensor

from avuc.core.data_parallel import Group, world_size
from avuc.losses.analytic import EMPTY_MASS, loss_of, or_empty
from avuc.losses.inputs import outside_transforms, plain_value
from avuc.losses.quadrants import Quadrants


def slopes(quadrants: Tensor) -> Tensor:
    """Return ∂L/∂AC, ∂L/∂AU, ∂L/∂IC and ∂L/∂IU, shape (4); 0 if all quadrants are empty."""
    ac, au, ic, iu = quadrants
    good = or_empty(ac + iu)
    to_bad = 1 / (good + au + ic)
    # an empty AC + IU does not depend on any prediction
    to_good = torch.where(ac + iu > EMPTY_MASS, to_bad - 1 / good, 0.0)
    return torch.stack((to_good, to_bad, to_bad, to_good)) * (quadrants.sum() > 0)


def part_of_total(own: Quadrants, total: Quadrants, group: Group) -> Tensor:
    """Return the part of a micro-batch in the loss of the whole batch, whose quadrants are `total`.

    The parts of all micro-batches, on all ranks, sum to the loss, and their gradients to its gradient.
    """
    parts = torch.stack(own)
    whole = torch.stack(tuple(total)).detach().to(parts)
    share = parts.detach().sum() / torch.where(whole.sum() > 0, whole.sum(), 1.0)
    surrogate = (slopes(whole) * parts).sum() * world_size(group)
    return share * loss_of(whole) + surrogate - surrogate.detach()


def running_loss(batch: Tensor, averages: Tensor, decay: float) -> Tensor:
    """Return L_AvUC of quadrants averaged over past batches, with a gradient through the quadrants of this batch alone.

    Args:
        batch: AC, AU, IC and IU of this batch, (4).
        averages: decayed sums of AC, AU, IC, IU and of the batches' weights, (5); this batch is added to them.
        decay: weight of the past; with 0 this is the loss of the batch.
    """
    ones = torch.ones_like(batch[:1])
    mixed = torch.lerp(averages.to(batch), torch.cat((batch, ones)).detach(), 1 - decay)
    value = plain_value(mixed, torch.mean)
    with outside_transforms():
        # a batch with NaN or infinity, which is refused, does not change the averages
        averages.copy_(torch.where(value.isfinite().all(), value, averages.to(value)))
    mean = mixed[:4] / mixed[4]
    surrogate = (slopes(mean) * batch).sum()
    return loss_of(mean) + surrogate - surrogate.detach()
