"""`Posterior`, the interface between methods and everything that predicts with them.

A method returns a posterior. A posterior draws samples: sample s is a function f_s from images to logits, for example
a network with sampled weights or with one dropout mask. `avuc.predict` averages over samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from avuc.core.private_copy import private_copy

__all__ = ["Draw", "NetDraw", "Posterior"]

# the random stream of sample 0; `training.model_trainer` has those with smaller numbers
FIRST_SAMPLE = 6

Draw = Callable[..., Any]
"""A sample of a posterior: a function from images, or whatever the network takes, to logits (N, C)."""


@runtime_checkable
class Posterior(Protocol):
    """Anything that draws functions from images to logits.

    `num_draws` is the number of different samples, None if there is no limit. A posterior with a limited number, such
    as an ensemble, also has `member(index)`; `predict` then uses each member once, in order. Without a limit `predict`
    calls `draw`, which must return the same function for the same state of the generator.

    >>> class Coin:
    ...     num_draws = None
    ...
    ...     def draw(self, generator):
    ...         logits = torch.randn(2, generator=generator)
    ...         return lambda images: logits.expand(len(images), 2)
    >>> isinstance(Coin(), Posterior)
    True
    """

    @property
    def num_draws(self) -> int | None: ...

    def draw(self, generator: torch.Generator) -> Draw: ...


@dataclass(frozen=True)
class NetDraw:
    """A sample that is a network in evaluation mode with some of its weights and buffers replaced.

    `predict` runs such samples fast, like those of a `BayesianModule`: batch normalisation is folded into the
    convolutions, and one compiled function serves all samples. Any other function of the images works too, without
    these optimisations.

    Args:
        net: the network; it is not changed.
        weights: the replaced parameters and buffers, by their names in `net`.

    >>> NetDraw(nn.Linear(2, 3), {"bias": torch.zeros(3)})(torch.zeros(1, 2)).tolist()
    [[0.0, 0.0, 0.0]]
    """

    net: nn.Module
    weights: Mapping[str, Tensor]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        net = private_copy(self.net).eval()  # another thread may be using the net itself
        if not self.weights:
            return net(*args, **kwargs)
        return functional_call(net, dict(self.weights), args, kwargs)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode inside the block, and restore the mode of each layer afterwards.

    This changes the module for all threads. If other threads may use it, call `private_copy(module).eval()` instead.

    Args:
        module: the module.

    >>> net = nn.Dropout()
    >>> with evaluating(net):
    ...     net.training
    False
    >>> net.training
    True
    """
    training = [layer for layer in module.modules() if layer.training]
    for layer in training:
        layer.training = False
    try:
        yield
    finally:
        for layer in training:
            layer.training = True


def seeded_generator(*key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded by a key of integers ≥ 0; similar keys give unrelated random numbers.

    Args:
        key: integers ≥ 0, for example a seed and the index of a sample.
        device: device of the generator.

    >>> seeded_generator(0, 1).initial_seed() == seeded_generator(1, 0).initial_seed()
    False
    """
    return torch.Generator(device=device).manual_seed(seed_of(*key))


def seed_of(*key: int) -> int:
    """Return the seed of `seeded_generator`, below 2^63. Zeros at the end of a key of up to four numbers do not count.

    Args:
        key: as there.

    >>> seed_of(0, 1) == seeded_generator(0, 1).initial_seed()
    True
    """
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return int(state >> np.uint64(1))


def sample_generator(seed: int, index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of sample `index` of `predict(seed=seed)`.

    Args:
        seed, index, device: as in `sample_seed`.
    """
    return torch.Generator(device=device).manual_seed(sample_seed(seed, index, device))


def sample_seed(seed: int, index: int, device: torch.device | str = "cpu") -> int:
    """Return the seed of the noise of sample `index` of `predict(seed=seed)`.

    On a CPU, (seed, 0) gives the numbers of the initial weights of `fit(seed=seed)`, so the noise of sample 0 would be
    these weights. It has a key of its own. A GPU draws other numbers from the same seed.

    Args:
        seed: of all samples.
        index: number of the sample.
        device: where the noise is drawn.

    >>> sample_seed(3, 1) == seed_of(3, 1), sample_seed(3, 0) == seed_of(3, 0)
    (True, False)
    """
    own = (FIRST_SAMPLE,) if index == 0 and torch.device(device).type == "cpu" else ()
    return seed_of(seed, index, *own)
