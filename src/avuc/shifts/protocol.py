"""What a shift is, and how the published corruptions are described: one formula and five constants per profile."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from avuc.core.errors import InputError

Profile = Literal["cifar", "imagenet"]
"""Whose constants a corruption uses: `"cifar"` (CIFAR-10-C) or `"imagenet"` (ImageNet-C)."""

PROFILES: tuple[Profile, ...] = ("cifar", "imagenet")
"""Every `Profile`."""

SEVERITIES = (1, 2, 3, 4, 5)
"""The severities of every corruption, from mild to strong."""


class Shift(Protocol):
    """A function `(images, severity, generator) -> images` that changes a batch of images.

    Images are uint8 (N, H, W, C); the result has the same shape and device. All randomness comes from `generator`.
    `corrupt` passes an `ImageStreams`: numbers drawn from `streams(images, generator)` belong to an image, so the
    result does not depend on how images are batched.
    """

    def __call__(self, images: Tensor, severity: int, generator: torch.Generator, /) -> Tensor: ...


@dataclass(frozen=True)
class Corruption:
    """A published corruption: a `Shift` made of one formula and its constants in CIFAR-10-C and ImageNet-C.

    Source: Hendrycks & Dietterich 2019, arXiv:1903.12261.

    Args:
        formula: `(images, constants, generator) -> images`; images are uint8 (N, H, W, C).
        cifar: the constants of severities 1 to 5 in CIFAR-10-C.
        imagenet: the constants of severities 1 to 5 in ImageNet-C.
        profile: which of the two are used; default `"cifar"`.
        labels: for a corruption that moves pixels, `(images, labels, constants, generator) -> labels`, which moves
            labels of pixels, (N, H, W), with them; default None: labels stay.

    >>> darken = Corruption(lambda images, amount, generator: images // amount, (2, 3, 4, 5, 6), (3, 4, 5, 6, 7))
    >>> darken(torch.full((1, 2, 2, 1), 120, dtype=torch.uint8), 2, torch.Generator()).unique().tolist()
    [40]
    """

    formula: Callable[[Tensor, Any, torch.Generator], Tensor]
    cifar: Sequence[Any]
    imagenet: Sequence[Any]
    profile: Profile = "cifar"
    labels: Callable[[Tensor, Tensor, Any, torch.Generator], Tensor] | None = None

    def __call__(self, images: Tensor, severity: int, generator: torch.Generator, /) -> Tensor:
        return self.formula(images, self._constants(severity), generator)

    def moved_labels(self, images: Tensor, labels: Tensor, severity: int, generator: torch.Generator) -> Tensor:
        """Return the labels (N, H, W) of the corrupted images; `generator` is in the same state as for the images."""
        return labels if self.labels is None else self.labels(images, labels, self._constants(severity), generator)

    def _constants(self, severity: int) -> Any:
        return (self.cifar if self.profile == "cifar" else self.imagenet)[severity - 1]


def checked_severity(severity: object, source: str = "") -> int:
    """Return `severity` as an int, or raise an `InputError` if it is not one of `SEVERITIES`.

    Args:
        severity: what the user asked for.
        source: name of the data set, for the error message.
    """
    try:
        number = operator.index(severity)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number not in SEVERITIES:
        prefix = f"{source}: " if source else ""
        raise InputError(f"{prefix}severity must be 1…5, found {severity!r}; give a whole number in that range")
    return number
