"""Record which layers a network calls, and with which arguments, safely while other threads use the network.

`torch.fx.symbolic_trace` replaces `nn.Module.__call__` and `nn.Module.__getattr__` for the whole process while it runs,
so networks in other threads fail or are traced by mistake. `trace` changes only a private copy: the `forward` of each
torch.nn layer in the copy is replaced by a function that records the call, and the copy runs on a symbolic input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from avuc.core.private_copy import deep_copy


class Trace(NamedTuple):
    """The calls of one forward pass in evaluation mode.

    Attributes:
        graph: the calls; layers are `call_module` nodes.
        layers: the layers of the private copy, by the names that `call_module` nodes use.
        read: ids of the tensors of the copy that the network's own code used directly, outside of its layers.
    """

    graph: fx.Graph
    layers: dict[str, nn.Module]
    read: set[int]


def trace(module: nn.Module) -> Trace | None:
    """Return the calls of `module(images)`; None if they depend on the images' values or shapes, or tracing fails."""
    try:
        private = deep_copy(module).eval()
    except (TypeError, RuntimeError):  # an attribute that cannot be copied
        return None
    graph = fx.Graph()
    images = fx.Proxy(graph.placeholder("images"))
    layers = dict(private.named_modules())
    for name, layer in layers.items():
        if layer is not private and _is_layer(layer):
            layer._forward_hooks.clear()
            layer._forward_pre_hooks.clear()
            layer.forward = _recording(images, name)
    reads = _Reads()
    try:
        with reads:
            logits = private(images)
        graph.output(images.tracer.create_arg(logits))
    except Exception:
        # the network's own code runs on a symbolic input, which may fail in any way
        return None
    return Trace(graph, layers, reads.seen)


def _is_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential)


def _recording(images: fx.Proxy, name: str) -> Callable[..., fx.Proxy]:
    def forward(*args: Any, **kwargs: Any) -> fx.Proxy:
        return images.tracer.create_proxy("call_module", name, args, kwargs)

    return forward


class _Reads(TorchFunctionMode):
    """Remembers every tensor that is an argument of a torch function or method, in this thread only."""

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
