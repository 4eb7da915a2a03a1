"""The AvUC loss of logits (N, C) and its gradient, written out. Training steps use this path.

With G = AC + IU and B = AU + IC the loss is L = log((G + B)/G), so ∂L/∂B = 1/(G + B) and ∂L/∂G = 1/(G + B) − 1/G. Each
prediction adds its mass m(p̂, u) to G or to B, and `backward_rows` carries ∂L/∂p̂ and ∂L/∂u back to the logits.
Autograd gives the same numbers (the tests compare them) but needs four times as many passes over the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.data_parallel import Group, refuse_second_derivative, sum_over_ranks, world_size
from avuc.losses.inputs import at_least_float32, class_indices, classes_last, label_weights
from avuc.losses.quadrants import SampleStatistics, Variant, mass_and_slopes, quadrants_of
from avuc.losses.softmax_statistics import (
    ForwardPass,
    SoftmaxStatistics,
    backward_coefficients,
    backward_rows,
    forward_rows,
    traceable,
)
from avuc.uncertainty import highest_certain

# Replaces AC + IU where both quadrants are empty: the loss stays finite, and its gradient still moves predictions out
# of AU and IC. Wherever AC + IU is larger, Eq. 3 is unchanged.
EMPTY_MASS = 1e-12


def or_empty(good: Tensor) -> Tensor:
    """Return AC + IU, or EMPTY_MASS where both are empty."""
    return torch.where(good > EMPTY_MASS, good, EMPTY_MASS)


def loss_of(quadrants: Tensor) -> Tensor:
    """Return L_AvUC of the quadrants AC, AU, IC, IU, shape (4)."""
    ac, au, ic, iu = quadrants
    return torch.log1p((au + ic) / or_empty(ac + iu))


def loss_from_statistics(
    statistics: SampleStatistics, threshold: float | Tensor | None, variant: Variant, group: Group
) -> Tensor:
    """Return L_AvUC, computed with ordinary torch operations."""
    return loss_of(sum_over_ranks(torch.stack(quadrants_of(statistics, threshold, variant)), group))


def analytic_avuc(
    logits: Tensor,
    labels: Tensor,
    threshold: float | Tensor,
    variant: Variant,
    ignore_index: int,
    weights: Tensor | None,
    group: Group,
) -> Tensor:
    """Return L_AvUC of logits (N, C) or (N, C, *spatial), for the variants with a hard threshold."""
    flat = classes_last(at_least_float32(logits), labels)
    labels = class_indices(labels)
    weight = label_weights(labels, flat.shape[1], ignore_index, weights, flat.dtype)
    loss: Tensor = _AnalyticAvUC.apply(flat, labels, threshold, variant, weight, group)
    return loss


class _AnalyticAvUC(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        threshold: float | Tensor,
        variant: Variant,
        weight: Tensor | None,
        group: Group,
    ) -> Tensor:
        kept, rows = forward_rows(logits)
        columns: list[Any] = [kept.largest, rows, labels, threshold, weight]
        xp: Any = torch
        if logits.device.type == "cpu":
            # the same algebra on the same memory: for a training batch NumPy's calls cost a third of torch's
            xp = np
            columns = [value.detach().numpy() if isinstance(value, Tensor) else value for value in columns]
            columns[1] = SoftmaxStatistics(*(column.numpy() for column in rows))  # type: ignore[arg-type]
        loss, coefficients = _loss_and_coefficients(*columns, variant=variant, group=group, xp=xp)
        if ctx.needs_input_grad[0]:
            tensor, number = (threshold, None) if isinstance(threshold, Tensor) else (None, threshold)
            slopes = torch.as_tensor(coefficients, device=logits.device)
            ctx.save_for_backward(logits, labels, weight, tensor, rows.predicted, slopes, *kept)
            ctx.options = number, variant, group
        return torch.as_tensor(loss, dtype=logits.dtype, device=logits.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        logits, labels, weight, threshold, predicted, coefficients, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient itself must have a gradient
            number, variant, group = ctx.options
            refuse_second_derivative(group)
            confidence, entropy, classes = traceable(logits)
            weight = torch.ones_like(confidence) if weight is None else weight
            rows = SampleStatistics(confidence, entropy, classes == labels, weight, logits.shape[1])
            loss = loss_from_statistics(rows, number if threshold is None else threshold, variant, group)
            (in_logits,) = torch.autograd.grad(loss, logits, gradient, create_graph=True)
        else:
            in_logits = backward_rows(ForwardPass(*kept), predicted, gradient * coefficients)
        return in_logits, None, None, None, None, None


def _loss_and_coefficients(
    largest: Any,
    rows: SoftmaxStatistics,
    labels: Any,
    threshold: Any,
    weight: Any,
    *,
    variant: Variant,
    group: Group,
    xp: Any,
) -> tuple[Any, Any]:
    """The loss, and the coefficients of its gradient for `backward_rows`: tensors or, with `xp=numpy`, arrays."""
    correct, uncertain = rows.predicted == labels, rows.entropy > highest_certain(threshold)
    masses, in_p, in_u = mass_and_slopes(rows.confidence, xp.tanh(rows.entropy), correct, uncertain, variant, xp)
    if weight is not None:
        masses = masses * weight
    is_good = correct ^ uncertain
    good_masses = masses * is_good
    # two sums rather than total − good, which would round to less than nothing
    sums: Any = xp.stack((good_masses.sum(), (masses - good_masses).sum()))
    sums = sum_over_ranks(sums if xp is torch else torch.from_numpy(sums), group)
    good, bad = sums if xp is torch else sums.numpy()
    full = good > EMPTY_MASS
    floor = xp.where(full, good, EMPTY_MASS)
    to_bad = world_size(group) / (floor + bad)
    # an empty G does not depend on any row
    to_good = xp.where(full, to_bad - world_size(group) / floor, 0)
    upstream = xp.where(is_good, to_good, to_bad)
    if xp is np:
        upstream = upstream.astype(masses.dtype, copy=False)  # NumPy 1 turns a float32 scalar with 1e-12 into float64
    if weight is not None:
        upstream = upstream * weight
    to_confidence = None if in_p is None else upstream * in_p
    return xp.log1p(bad / floor), backward_coefficients(largest, rows, to_confidence, upstream * in_u, xp)
