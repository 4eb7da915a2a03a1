"""The source of the noise of a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from avuc.bayes.mean_field import Family
from avuc.core.random_numbers import own_generator as own_generator


def flat_noise(family: Family, sizes: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return the noise of a family. torch.compile cannot trace a generator, so with one its graph breaks here."""
    # without this check, the compiler would be loaded in eager mode too, which takes seconds
    if generator is None or not torch.compiler.is_compiling():
        return family.noise(sizes, like, generator)
    return _eager_noise(family, sizes, like, generator)


def _noise(family: Family, sizes: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    return family.noise(sizes, like, generator)


_eager_noise: Callable[[Family, Sequence[int], Tensor, torch.Generator], Tensor] = _disable_dynamo(_noise)
