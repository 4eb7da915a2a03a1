"""Random numbers that two forward passes must share, and those that data-parallel ranks must not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import distributed
from torch._compile import _disable_dynamo

from avuc.core.errors import InputError

# by device, rank and seed of torch's own generator
rank_generators: dict[tuple[torch.device, int, int], torch.Generator] = {}


def own_generator(device: torch.device) -> torch.Generator | None:
    """Return a generator of this rank in a distributed run, otherwise None (torch's own generator).

    Data-parallel ranks usually have equal seeds, so that they build the same network. With equal noise, N ranks would
    use one sample of the weights instead of N. A new `torch.manual_seed` starts a new generator.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    make = _eager_generator if torch.compiler.is_compiling() else _rank_generator
    return make(device, distributed.get_rank())


def noise_source(generator: torch.Generator | None, device: torch.device) -> torch.Generator | None:
    """Return the source of the noise of a training pass: the generator, else that of `own_generator`.

    Gradient checkpointing runs layers again in the backward pass, and sets back torch's own generators only. From
    another one the second pass would draw other numbers, and the gradients would be those of neither pass. So that is
    an `InputError`.

    Args:
        generator: what the user or `fit` has chosen; None if nobody has.
        device: of the noise.
    """
    generator = generator or own_generator(device)
    if generator is None or torch.compiler.is_compiling():
        return generator
    if torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1:
        raise InputError(
            "gradient checkpointing runs a layer with random numbers again in the backward pass, and these come from a "
            "generator that torch does not set back (as in fit and in data-parallel runs): the gradients would be "
            "wrong; switch gradient checkpointing off, or leave generator= out if you pass one"
        )
    return generator


@contextlib.contextmanager
def restored(device: torch.device) -> Iterator[None]:
    """Restore torch's own generators and those of this rank at the end: the same numbers are drawn again.

    Args:
        device: a device that may be used inside, besides the CPU and the current GPU.
    """
    devices = {device.index or 0} if device.type == "cuda" else set[int]()
    if torch.cuda.is_initialized():
        devices.add(torch.cuda.current_device())
    before = {key: generator.get_state() for key, generator in rank_generators.items()}
    try:
        with torch.random.fork_rng(devices=sorted(devices)):
            yield
    finally:
        for key in rank_generators.keys() - before.keys():
            del rank_generators[key]  # it starts over
        for key, state in before.items():
            rank_generators[key].set_state(state)


def _rank_generator(device: torch.device, rank: int) -> torch.Generator:
    key = (device, rank, torch.initial_seed())
    if key not in rank_generators:
        # seed and rank are in different bits, so ranks never share a seed
        seed = (torch.initial_seed() % 2**40) * 2**20 + rank + 1
        rank_generators[key] = torch.Generator(device=device).manual_seed(seed)
    return rank_generators[key]


_eager_generator = _disable_dynamo(_rank_generator)
