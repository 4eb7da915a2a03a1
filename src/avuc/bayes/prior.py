"""The prior N(m, s²) of the variational weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from avuc.bayes.layout import Layout
from avuc.core.errors import InputError

__all__ = ["Normal", "flat_value", "inverse_softplus"]

Value = float | Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Normal:
    """Prior N(mean, std²), each a number for all weights or a mapping from weight name to a tensor of its shape.

    A mapping may hold more names than are variational, so a whole `state_dict()` serves as a prior mean.

    >>> Normal(mean=0.0, std=0.1).std
    0.1
    """

    mean: Value = 0.0
    std: Value = 1.0

    def flat(self, layout: Layout, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation as 0-dim tensors, or as flat vectors where given per weight."""
        mean, std = flat_value("prior mean", self.mean, layout, like), flat_value("prior std", self.std, layout, like)
        if not bool(mean.isfinite().all()):
            raise InputError("prior mean: expected finite numbers, found NaN or infinity")
        if not bool((std.isfinite() & (std > 0)).all()):
            raise InputError(f"prior std: expected finite numbers above 0, found a least value of {std.min().item():g}")
        return mean, std


def flat_value(what: str, value: Value, layout: Layout, like: Tensor) -> Tensor:
    """A number or a mapping of tensors, as the flat vectors keep it; never shares memory with what was given."""
    if not isinstance(value, Mapping):
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
    """ρ with log(1 + e^ρ) = std, as std + log(1 − e^−std): neither overflows nor cancels.

    >>> round(float(torch.nn.functional.softplus(inverse_softplus(torch.tensor(0.05)))), 6)
    0.05
    """
    return std + torch.log(-torch.expm1(-std))
