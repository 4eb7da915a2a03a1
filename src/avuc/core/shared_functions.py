"""Functions that a copy of a network would share with it: they go on using the original's layers.

`copy.deepcopy` copies methods and `functools.partial` together with the layer that they belong to, but not plain
functions. After `layer.forward = lambda x: x @ layer.weight`, the layer of a copy runs with the weight of the original.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

from avuc.core.errors import InputError
from avuc.core.private_copy import deep_copy


def independent_copy(net: nn.Module) -> nn.Module:
    """Return `deep_copy(net)`, to train it or to sample its weights; `InputError` if it would use layers of `net`.

    >>> independent_copy(nn.Linear(2, 3))
    Linear(in_features=2, out_features=3, bias=True)
    """
    name = shared_function(net)
    if name:
        raise InputError(
            f"a copy of {type(net).__name__} would use the original's weights: its {name!r} is a function that refers "
            "to a layer or weight of this network; write a class with this forward, or set types.MethodType(function, "
            "layer) with a function of (layer, x)"
        )
    return deep_copy(net)


def shared_function(net: nn.Module) -> str:
    """Return the name of a function of a layer that refers to a part of the network itself; '' if there is none.

    Only functions that run in the forward pass count: `forward`, and those that the class's `forward` reads.

    >>> layer = nn.Linear(2, 3)
    >>> layer.forward = lambda x: x @ layer.weight.T
    >>> shared_function(layer)
    'forward'
    """
    own = {id(part) for part in (*net.modules(), *net.parameters(), *net.buffers())}
    for name, layer in net.named_modules():
        if _copies_itself(type(layer)):
            continue
        for attribute, value in vars(layer).items():
            if callable(value) and _runs(layer, attribute) and _shares(value, own, set(), copied=True):
                return f"{name}.{attribute}".lstrip(".")
    return ""


def _copies_itself(kind: type) -> bool:
    """Return whether a class decides what a copy gets, as that of torch.compile does."""
    own = [part for part in kind.__mro__ if part not in (nn.Module, object)]
    return any(name in vars(part) for part in own for name in ("__deepcopy__", "__getstate__", "__reduce_ex__"))


def _runs(layer: nn.Module, attribute: str) -> bool:
    code = getattr(getattr(type(layer), "forward", None), "__code__", None)
    return attribute == "forward" or (code is not None and attribute in code.co_names)


def _shares(value: Any, own: set[int], seen: set[int], *, copied: bool) -> bool:
    """Return whether a value leads to a part of the network through a function.

    Args:
        value: an attribute, or what a function refers to.
        own: ids of the layers and tensors of the network.
        seen: ids of what was looked at.
        copied: whether a copy of the network gets its own copy of the value; not so beyond a function.
    """
    if id(value) in own:
        return not copied
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, nn.Module) and not copied:  # a larger network that this one is a part of
        return any(id(part) in own for part in value.modules())
    if isinstance(value, FunctionType):
        return any(_shares(part, own, seen, copied=False) for part in _references(value))
    if isinstance(value, MethodType):
        parts = [value.__func__, value.__self__]
    elif isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    else:
        return False
    return any(_shares(part, own, seen, copied=copied) for part in parts)


def _references(function: FunctionType) -> Iterator[Any]:
    """Yield what a function refers to: variables of outer functions, defaults and global variables."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _global_names(code: CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            names |= _global_names(part)
    return names
