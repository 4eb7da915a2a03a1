"""Run one network with many sets of weights: batch normalisation is folded, and compiling happens once for all sets."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from avuc.core.fingerprint import form, structure
from avuc.core.private_copy import written_in_forward
from avuc.nets.fold import Folded, fold, state_of

Weights = dict[str, Tensor]
Compiled = Callable[..., Any]

# Autotuning ("max-autotune") took 424 s for EfficientNet-Lite0 on a busy H200 and made its layers 5 % faster
MODE = "default"
# Compiling takes tens of seconds, so the function is kept for the next dataset. The description shows whether the
# network has changed since.
Description = tuple[str, tuple[object, ...]]
_COMPILED: weakref.WeakKeyDictionary[nn.Module, tuple[Description, Folded, Compiled]] = weakref.WeakKeyDictionary()
# Networks that differ only in their weights share the function: ten seeds of one architecture compile once.
_SHARED: dict[object, tuple[Folded, Compiled]] = {}
MOST_SHARED = 8
# Threads share compiled functions, and torch's compiler supports only one thread at a time.
LOCK = threading.RLock()


class Runner:
    """`Runner(net).function(weights)` is the network in evaluation mode with these weights replaced.

    All other weights are those that the network had when the `Runner` was made.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3))
    >>> run = Runner(net).function({"3.bias": torch.ones(3)})
    >>> run(torch.rand(4, 1, 5, 5)).shape
    torch.Size([4, 3])
    """

    def __init__(
        self, module: nn.Module, *, key: nn.Module | None = None, folded: bool = True, compiled: bool | str = False
    ) -> None:
        """
        Args:
            module: the network.
            key: the module that the compiled function is remembered by, if `module` is a temporary copy.
            folded: whether to fold batch normalisation. The pairs to fold are found for a call with one positional
                argument; optional arguments can lead to other code.
            compiled: whether to compile; a string is a mode of torch.compile.
        """
        self._compiled: Compiled | None = None
        if compiled:
            with LOCK:
                self._folded, self._compiled = _compiled(
                    module, module if key is None else key, folded, MODE if compiled is True else str(compiled)
                )
        else:
            self._folded = fold(module, folded)
        self._channels_last = any(value.is_cuda for value in module.parameters())
        # the module's own values, read once: only the sampled weights are folded again for each sample
        written = {id(value) for value in written_in_forward(module)}
        self._state = {
            name: value.detach().clone() if id(value) in written else value.detach()
            for name, value in state_of(module).items()
        }
        # a weight with several names (tied weights) is known by its first name
        first = {id(value): name for name, value in module.named_parameters()}
        tied = ((name, first[id(value)]) for name, value in module.named_parameters(remove_duplicate=False))
        self._tied = {name: known for name, known in tied if name != known}
        self._affine = self._folded.affine(self._state)
        self._base = self._laid_out(self._folded.weights(self._state, self._affine))

    @torch.no_grad()
    def weights(self, sampled: Mapping[str, Tensor]) -> Weights:
        """Return the weights of the folded network that depend on the sampled ones; all others are in `base`."""
        if self._tied:
            sampled = {self._tied.get(name, name): value for name, value in sampled.items()}
        affine = self._affine if self._folded.fixed(sampled) else None
        changed = None if affine is None else sampled.keys()
        return self._folded.weights({**self._state, **sampled}, affine, changed)

    @property
    def base(self) -> Weights:
        """All weights and buffers of the folded network, without sampled weights."""
        return self._base

    @property
    def folds(self) -> bool:
        """Whether batch normalisation was folded, which is exact for calls with one positional argument only."""
        return bool(self._folded.pairs)

    @property
    def folded_norms(self) -> set[str]:
        """The names of the batch normalisations that were folded."""
        return {norm for _, norm in self._folded.pairs}

    def first_name(self, name: str) -> str:
        """Return the name by which `weights` and `base` know a weight that may have several (tied weights)."""
        return self._tied.get(name, name)

    @property
    def module(self) -> nn.Module:
        """The folded network in evaluation mode; its own weights are meaningless, use `base`."""
        return self._folded.module

    def function(self, weights: Mapping[str, Tensor]) -> Callable[..., Any]:
        """Return the network with these weights, by their names in the original module, as a function of images."""
        return self.with_folded(self.weights(weights))

    def with_folded(self, weights: Weights) -> Callable[..., Any]:
        """Return the network with the weights that `weights` returned, as a function of images."""
        if not weights and self._compiled is None and not self._folded.pairs and not self._channels_last:
            return self._folded.module  # it shares the weights of the original
        return self.with_all({**self._base, **self._laid_out(weights)})

    def with_all(self, values: Weights, compiled: bool = True) -> Callable[..., Any]:
        """Return the folded network with these values of all weights and buffers, as a function of images.

        Args:
            values: by name.
            compiled: False for a function that is not compiled, also if this `Runner` compiles.
        """
        module, function = self._folded.module, self._compiled
        if function is not None and compiled:
            return lambda *args, **kwargs: _one_at_a_time(function, values, *args, **kwargs)
        return lambda *args, **kwargs: functional_call(module, values, args, kwargs)

    def _laid_out(self, weights: Weights) -> Weights:
        if not self._channels_last:
            return weights
        return {
            name: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
            for name, value in weights.items()
        }


def _one_at_a_time(compiled: Compiled, weights: Weights, *args: Any, **kwargs: Any) -> Any:
    with LOCK:
        return compiled(weights, *args, **kwargs)


def _compiled(module: nn.Module, key: nn.Module, folded: bool, mode: str) -> tuple[Folded, Compiled]:
    shapes = {name: (tuple(value.shape), value.dtype, value.device) for name, value in sorted(state_of(module).items())}
    text = f"{mode} {folded} {module!r} {shapes}"
    description = (text, structure(key))
    if key in _COMPILED and _COMPILED[key][0] == description:
        return _COMPILED[key][1:]
    alike = _alike(module, text)
    shared = None if alike is None else _SHARED.get(alike)
    if shared is not None:
        _COMPILED[key] = (description, *shared)
        return shared
    slim = fold(module, folded)

    def run(weights: Weights, *args: Any, **kwargs: Any) -> Any:
        return functional_call(slim.module, weights, args, kwargs)

    # torch counts compilations by code object and stops after eight, so each network gets its own code object
    run.__code__ = run.__code__.replace()
    compiled = torch.compile(run, mode=mode, dynamic=False)
    _COMPILED[key] = (description, slim, compiled)
    if alike is not None:
        while len(_SHARED) >= MOST_SHARED:
            del _SHARED[next(iter(_SHARED))]
        _SHARED[alike] = (slim, compiled)
    return slim, compiled


def _alike(module: nn.Module, text: str) -> object:
    """Return a key that is equal for networks that can share a compiled function; None if this one cannot share."""
    if _is_fully_described(module):
        return text
    form_of_net = form(module)
    try:
        hash(form_of_net)
    except TypeError:  # a slice, for example
        return None
    return None if form_of_net is None else (text, form_of_net)


def _is_fully_described(module: nn.Module) -> bool:
    """Return whether networks with the same `repr` and the same shapes compute the same function of weights and images.

    This holds for the networks of this package: their layers are torch's own, or show all their settings in `repr`.
    Other modules may depend on attributes that `repr` does not show.
    """
    return all(
        type(layer).__module__.startswith(("avuc.nets.", "torch.nn.modules."))
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and "forward" not in vars(layer)
        and not parametrize.is_parametrized(layer)
        for layer in module.modules()
    ) and not type(module).__module__.startswith("torch.")
