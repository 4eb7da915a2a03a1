"""What a shift is, and the published corruptions' common shape: one formula, five constants per profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

__all__ = ["PROFILES", "SEVERITIES", "Corruption", "Profile", "Shift"]

Profile = Literal["cifar", "imagenet"]
PROFILES: tuple[Profile, ...] = ("cifar", "imagenet")
SEVERITIES = (1, 2, 3, 4, 5)


class Shift(Protocol):
    """Anything that turns a batch of uint8 NHWC images into another of the same shape, on the same device.

    Randomness comes from `generator` alone. `corrupt` hands over an `ImageStreams`; drawing from that makes the
    result independent of how the images are batched.
    """

    def __call__(self, images: Tensor, severity: int, generator: torch.Generator, /) -> Tensor: ...


@dataclass(frozen=True)
class Corruption:
    """A published corruption: `formula(images, constants, generator)` with the constants of CIFAR-C or ImageNet-C."""

    formula: Callable[[Tensor, Any, torch.Generator], Tensor]
    cifar: Sequence[Any]
    imagenet: Sequence[Any]
    profile: Profile = "cifar"

    def __call__(self, images: Tensor, severity: int, generator: torch.Generator, /) -> Tensor:
        constants = self.cifar if self.profile == "cifar" else self.imagenet
        return self.formula(images, constants[severity - 1], generator)
