"""The prior N(m, s²) of the variational weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from avuc.bayes.layout import Layout
from avuc.core.errors import InputError
from avuc.core.numbers import check_number

Value = float | Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Normal:
    """Prior N(mean, std²) of the variational weights.

    Args:
        mean: a number for all weights (default 0), or a mapping from weight name to a tensor of the weight's shape.
            The mapping may have more names, so a whole `state_dict()` can be the mean.
        std: a number (default 1) or a mapping, as for `mean`; above 0.

    >>> from avuc.bayes import to_bayesian
    >>> trained = torch.nn.Linear(4, 3)
    >>> net = to_bayesian(trained, prior=Normal(mean=trained.state_dict(), std=0.1))
    >>> net.prior_mean.shape, net.prior_std
    (torch.Size([15]), tensor(0.1000))
    """

    mean: Value = 0.0
    std: Value = 1.0

    def flat(self, layout: Layout, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation as tensors without dimensions, or as flat vectors if given per weight."""
        mean, std = flat_value("prior mean", self.mean, layout, like), flat_value("prior std", self.std, layout, like)
        if not bool(mean.isfinite().all()):
            raise InputError("prior mean: expected finite numbers, found NaN or infinity")
        if not bool((std.isfinite() & (std > 0)).all()):
            raise InputError(f"prior std: expected finite numbers above 0, found a least value of {std.min().item():g}")
        return mean, std


def flat_value(what: str, value: Value, layout: Layout, like: Tensor) -> Tensor:
    """Return a number as a tensor, or a mapping of tensors as one flat vector; a copy in both cases."""
    if not isinstance(value, Mapping):
        if not isinstance(value, Tensor):
            check_number(what, value, "must be a number, or a mapping from weight name to tensor")
        scalar = torch.as_tensor(value).detach()
        if scalar.dim():
            raise InputError(
                f"{what}: expected a number, or a mapping from weight name to tensor, found a tensor of shape "
                f"{tuple(scalar.shape)}"
            )
        return scalar.to(dtype=like.dtype, device=like.device, copy=True)
    for slot in layout.slots:
        if slot.name not in value:
            raise InputError(f"{what}: no tensor for {slot.name!r}, expected shape {tuple(slot.shape)}")
        if tuple(value[slot.name].shape) != tuple(slot.shape):
            raise InputError(
                f"{what} of {slot.name!r}: expected shape {tuple(slot.shape)}, found {tuple(value[slot.name].shape)}"
            )
    return layout.flatten({slot.name: value[slot.name].detach().to(like) for slot in layout.slots})


def inverse_softplus(std: Tensor) -> Tensor:
    """Return ρ with log(1 + e^ρ) = std, as std + log(1 − e^−std), which neither overflows nor cancels.

    >>> round(float(torch.nn.functional.softplus(inverse_softplus(torch.tensor(0.05)))), 6)
    0.05
    """
    return std + torch.log(-torch.expm1(-std))
