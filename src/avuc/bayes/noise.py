"""Where the noise of a draw comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed
from torch._compile import _disable_dynamo

from avuc.bayes.mean_field import Family

__all__ = ["flat_noise", "own_generator"]

_generators: dict[tuple[torch.device, int, int], torch.Generator] = {}


def flat_noise(family: Family, sizes: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """A family's noise; with a generator the graph of torch.compile, which cannot trace one, breaks and goes on."""
    if generator is None or not torch.compiler.is_compiling():  # the way round the compiler loads it, seconds of work
        return family.noise(sizes, like, generator)
    return _eager_noise(family, sizes, like, generator)


def own_generator(device: torch.device) -> torch.Generator | None:
    """This rank's own generator in a distributed run, None (torch's own) otherwise.

    Data-parallel ranks are usually seeded alike, so that they build the same network; with the same noise on each
    they would also draw the same weights, and N ranks would see one draw instead of N. A new seed given to torch
    starts a new generator.
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
        # seed and rank side by side: ranks never share a seed, whatever the common one is
        seed = (torch.initial_seed() % 2**40) * 2**20 + rank + 1
        _generators[key] = torch.Generator(device=device).manual_seed(seed)
    return _generators[key]


_eager_noise: Callable[[Family, Sequence[int], Tensor, torch.Generator], Tensor] = _disable_dynamo(_noise)
_eager_generator: Callable[[torch.device, int], torch.Generator] = _disable_dynamo(_rank_generator)
