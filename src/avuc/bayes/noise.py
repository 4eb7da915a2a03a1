"""The source of the noise of a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed
from torch._compile import _disable_dynamo

from avuc.bayes.mean_field import Family

_generators: dict[tuple[torch.device, int, int], torch.Generator] = {}


def flat_noise(family: Family, sizes: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return the noise of a family. torch.compile cannot trace a generator, so with one its graph breaks here."""
    # without this check, the compiler would be loaded in eager mode too, which takes seconds
    if generator is None or not torch.compiler.is_compiling():
        return family.noise(sizes, like, generator)
    return _eager_noise(family, sizes, like, generator)


def own_generator(device: torch.device) -> torch.Generator | None:
    """Return a generator of this rank in a distributed run, otherwise None (torch's own generator).

    Data-parallel ranks usually have equal seeds, so that they build the same network. With equal noise, N ranks would
    use one sample of the weights instead of N. A new `torch.manual_seed` starts a new generator.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    make = _eager_generator if torch.compiler.is_compiling() else _rank_generator
    return make(device, distributed.get_rank())


def _noise(family: Family, sizes: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    return family.noise(sizes, like, generator)


def _rank_generator(device: torch.device, rank: int) -> torch.Generator:
    key = (device, rank, torch.initial_seed())
    if key not in _generators:
        # seed and rank are in different bits, so ranks never share a seed
        seed = (torch.initial_seed() % 2**40) * 2**20 + rank + 1
        _generators[key] = torch.Generator(device=device).manual_seed(seed)
    return _generators[key]


_eager_noise: Callable[[Family, Sequence[int], Tensor, torch.Generator], Tensor] = _disable_dynamo(_noise)
_eager_generator: Callable[[torch.device, int], torch.Generator] = _disable_dynamo(_rank_generator)
