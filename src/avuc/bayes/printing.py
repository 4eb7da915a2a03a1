"""How a posterior prints its layers: with the weights that are sampled, which the layers themselves do not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

_AS_STORED: ContextVar[bool] = ContextVar("_AS_STORED", default=False)


@contextmanager
def layers_as_stored() -> Iterator[None]:
    """Print layers inside this context as versions before did: without sampled weights, so each as `bias=False`.

    Checkpoints are identified by a digest of that text.
    """
    token = _AS_STORED.set(True)
    try:
        yield
    finally:
        _AS_STORED.reset(token)


def printed(net: nn.Module, name: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the text of a module whose child `name` has these tensors in place of the parameters that are None."""
    if _AS_STORED.get():
        return nn.Module.__repr__(net)
    twin = _twin(net)
    child = net.get_submodule(name)
    twin.__dict__["_modules"] = net._modules | {name: _with(child, tensors, "", {})}
    return nn.Module.__repr__(twin)


def _with(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str, known: dict[int, nn.Module]) -> nn.Module:
    """Return a module to print; the original stays as it is, because another thread may run it."""
    if id(module) not in known:
        twin = known[id(module)] = _twin(module)
        twin.__dict__["_parameters"] = {
            name: tensors.get(prefix + name, value) for name, value in module._parameters.items()
        }
        twin.__dict__["_modules"] = {
            name: child if child is None else _with(child, tensors, f"{prefix}{name}.", known)
            for name, child in module._modules.items()
        }
    return known[id(module)]


def _twin(module: nn.Module) -> nn.Module:
    """Return another object with the same attributes; a copy could run code of the module."""
    twin: nn.Module = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    return twin
