"""One net run with many sets of weights: batch normalisation folded, the function compiled once for all of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from avuc.core.fingerprint import structure
from avuc.nets.fold import Folded, fold, state_of

__all__ = ["Runner"]

Weights = dict[str, Tensor]
Compiled = Callable[[Weights, Tensor], Tensor]

# autotuned convolutions; no CUDA graphs, because each draw's weights would have to be copied into the graph's own
MODE = "max-autotune-no-cudagraphs"
# compiling costs tens of seconds, and one posterior meets many datasets; the description tells a changed net
Description = tuple[str, tuple[object, ...]]
_COMPILED: weakref.WeakKeyDictionary[nn.Module, tuple[Description, Folded, Compiled]] = weakref.WeakKeyDictionary()
# nets whose description says everything share it: ten seeds of one architecture compile once
_SHARED: dict[str, tuple[Folded, Compiled]] = {}
MOST_SHARED = 8
# threads share compiled functions, and torch's compiler works for one thread at a time; a call only starts the work
_LOCK = threading.RLock()


class Runner:
    """`runner.function(weights)` is the net in evaluation mode with these weights (the rest as they are now).

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3))
    >>> run = Runner(net).function({"3.bias": torch.ones(3)})
    >>> run(torch.rand(4, 1, 5, 5)).shape
    torch.Size([4, 3])
    """

    def __init__(
        self, module: nn.Module, *, key: nn.Module | None = None, folded: bool = True, compiled: bool | str = False
    ) -> None:
        """`compiled` may name a mode of torch.compile. `key` is what the compiled function is remembered by, where
        `module` itself is a passing copy."""
        self._compiled: Compiled | None = None
        if compiled:
            with _LOCK:
                self._folded, self._compiled = _compiled(
                    module, module if key is None else key, folded, MODE if compiled is True else str(compiled)
                )
        else:
            self._folded = fold(module, folded)
        self._channels_last = any(value.is_cuda for value in module.parameters())
        # the module's own values, read once: only what is drawn is folded again for each draw
        self._state = {name: value.detach() for name, value in state_of(module).items()}
        # a tied weight goes by its first name
        first = {id(value): name for name, value in module.named_parameters()}
        tied = ((name, first[id(value)]) for name, value in module.named_parameters(remove_duplicate=False))
        self._tied = {name: known for name, known in tied if name != known}
        self._affine = self._folded.affine(self._state)
        self._base = self._laid_out(self._folded.weights(self._state, self._affine))

    @torch.no_grad()
    def weights(self, drawn: Mapping[str, Tensor]) -> Weights:
        """The folded net's weights that follow from the drawn ones; those that do not are in `base`."""
        if self._tied:
            drawn = {self._tied.get(name, name): value for name, value in drawn.items()}
        affine = self._affine if self._folded.fixed(drawn) else None
        changed = None if affine is None else drawn.keys()
        return self._folded.weights({**self._state, **drawn}, affine, changed)

    @property
    def base(self) -> Weights:
        """All weights and buffers of the folded net, from the module as it was."""
        return self._base

    @property
    def module(self) -> nn.Module:
        """The folded net, in evaluation mode; its own weights mean nothing."""
        return self._folded.module

    def function(self, weights: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
        return self.with_folded(self.weights(weights))

    def with_folded(self, weights: Weights) -> Callable[[Tensor], Tensor]:
        """The net with weights that `weights` gave."""
        values = {**self._base, **self._laid_out(weights)}
        module, compiled = self._folded.module, self._compiled
        if compiled is not None:
            return lambda images: _one_at_a_time(compiled, values, images)
        return lambda images: functional_call(module, values, (images,))

    def _laid_out(self, weights: Weights) -> Weights:
        if not self._channels_last:
            return weights
        return {
            name: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
            for name, value in weights.items()
        }


def _one_at_a_time(compiled: Compiled, weights: Weights, images: Tensor) -> Tensor:
    with _LOCK:
        return compiled(weights, images)


def _compiled(module: nn.Module, key: nn.Module, folded: bool, mode: str) -> tuple[Folded, Compiled]:
    shapes = {name: (tuple(value.shape), value.dtype, value.device) for name, value in sorted(state_of(module).items())}
    text = f"{mode} {folded} {module!r} {shapes}"
    description = (text, structure(key))
    if key in _COMPILED and _COMPILED[key][0] == description:
        return _COMPILED[key][1:]
    shared = _SHARED.get(text) if _says_all(module) else None
    if shared is not None:
        _COMPILED[key] = (description, *shared)
        return shared
    slim = fold(module, folded)

    def run(weights: Weights, images: Tensor) -> Tensor:
        logits: Tensor = functional_call(slim.module, weights, (images,))
        return logits

    compiled = torch.compile(run, mode=mode, dynamic=False)
    _COMPILED[key] = (description, slim, compiled)
    if _says_all(module):
        while len(_SHARED) >= MOST_SHARED:
            del _SHARED[next(iter(_SHARED))]
        _SHARED[text] = (slim, compiled)
    return slim, compiled


def _says_all(module: nn.Module) -> bool:
    """Whether two nets with the same text and the same shapes are the same function of their weights and the image.

    So it is for this package's nets, whose layers are torch's own or show all that they were made with. Somebody's own
    module may compute with attributes that its text does not show.
    """
    return all(
        type(layer).__module__.startswith(("avuc.nets.", "torch.nn.modules."))
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and not parametrize.is_parametrized(layer)
        for layer in module.modules()
    ) and not type(module).__module__.startswith("torch.")
