"""Record which layers a network calls, and on what, without disturbing other threads.

`torch.fx.symbolic_trace` replaces `nn.Module.__call__` and `nn.Module.__getattr__` for the whole process while it runs:
a network in another thread then fails or is recorded by mistake. Here nothing outside a private copy is changed. The
copy's torch.nn layers get a `forward` of their own that only writes the call down, and the copy runs on a stand-in for
the images.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

__all__ = ["Recorded", "record"]


class Recorded(NamedTuple):
    """The calls of one forward pass in evaluation mode."""

    graph: fx.Graph
    layers: dict[str, nn.Module]  # the copy's layers, by the names that `call_module` nodes use
    read: set[int]  # ids of the copy's tensors that the network's own code looked at, outside of its layers


def record(module: nn.Module) -> Recorded | None:
    """The calls of `module(images)`; None where they depend on the images' values or shapes, or cannot be followed."""
    made = copy.deepcopy(module).eval()
    graph = fx.Graph()
    images = fx.Proxy(graph.placeholder("images"))
    layers = dict(made.named_modules())
    for name, layer in layers.items():
        if layer is not made and _is_layer(layer):
            layer._forward_hooks.clear()
            layer._forward_pre_hooks.clear()
            layer.forward = _noted(images, name)
    reads = _Reads()
    try:
        with reads:
            logits = made(images)
        graph.output(images.tracer.create_arg(logits))
    except Exception:
        # the network's own code runs on a stand-in, which may fail in any way
        return None
    return Recorded(graph, layers, reads.seen)


def _is_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential)


def _noted(images: fx.Proxy, name: str) -> Callable[..., fx.Proxy]:
    def forward(*args: Any, **kwargs: Any) -> fx.Proxy:
        return images.tracer.create_proxy("call_module", name, args, kwargs)

    return forward


class _Reads(TorchFunctionMode):
    """Remembers every tensor that a torch function, method or attribute was called on; in this thread only."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.update(id(tensor) for tensor in _tensors((args, kwargs)))
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
