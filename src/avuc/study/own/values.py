"""The values that a function or an object of the user carries, as text: changed ones give another digest."""

from __future__ import annotations

import argparse
import dataclasses
import dis
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from avuc.prediction.backends.features import attributes_of

# containers of values, unlike objects that work with files, caches or the network
RECORDS = (SimpleNamespace, argparse.Namespace)
NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def carried_by(value: Any) -> str:
    """Return the values that a function or object carries: variables around it, attributes, numbers of its module.

    >>> def times(factor):
    ...     return lambda x: factor * x
    >>> carried_by(times(2)), carried_by(times(3))
    ("{'factor': 2}", "{'factor': 3}")
    """
    if inspect.isclass(value):
        return ""
    if isinstance(value, nn.Module):
        return _network(value)
    if not inspect.isroutine(value):
        return "" if hasattr(value, "state_dict") else text_of(getattr(value, "__dict__", {}))
    function = inspect.unwrap(value)
    try:
        around = inspect.getclosurevars(function)
        variables, outside = dict(around.nonlocals), _numbers(function, around.globals)
    except (TypeError, ValueError):
        variables, outside = {}, {}
    own = getattr(value, "__self__", None).__dict__ if _is_method(value) else {}
    return " ".join(filter(None, (text_of({**variables, **own}), text_of(outside))))


def text_of(value: Any) -> str:
    """Return a value as text: numbers, text, containers, arrays and tensors; other objects as the name of their type.

    >>> text_of({"rate": 0.5, "size": (3, 4)}), text_of(np.float32(2)), text_of(object())
    ("{'rate': 0.5, 'size': [3, 4]}", 'float32 2.0', 'object')
    """
    if isinstance(value, Mapping):
        items = [f"{key!r}: {text_of(item)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}" if items else ""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]" if value else ""
    if isinstance(value, str | bytes | int | float | None):
        return repr(value)
    name = type(value).__name__
    if isinstance(value, np.generic):
        return f"{name} {value}"
    if isinstance(value, np.ndarray):
        return f"{name} {value.shape} {value.dtype} {_array(value)}"
    if isinstance(value, nn.Module):
        return f"{name} {_network(value)} {text_of(dict(value.state_dict()))}"
    if isinstance(value, Tensor):
        readable = value.layout is torch.strided and not value.is_quantized and not value.is_meta
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() if readable else np.empty(0)
        return f"{name} {tuple(value.shape)} {value.dtype} {_array(plain)}"
    if isinstance(value, partial):
        return f"{name} {text_of(value.args)} {text_of(value.keywords)}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{name} {text_of({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})}"
    return f"{name} {text_of(vars(value))}" if isinstance(value, RECORDS) else name


def _numbers(function: Callable[..., Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers among the global variables that a function reads and does not write.

    They may come from the command line or from another cell of a notebook. Text, such as a device or a folder, may
    differ where a study is continued, and containers may be caches.
    """
    written = {step.argval for step in dis.get_instructions(function) if step.opname == "STORE_GLOBAL"}
    return {name: value for name, value in found.items() if isinstance(value, NUMBERS) and name not in written}


def _network(net: nn.Module) -> str:
    """Return the layers, their settings and other plain attributes; weights are not among them."""
    tensors, others = attributes_of(net)
    printed = re.sub(r" at 0x[0-9a-f]+", "", f"{net!r} {others}")  # functions among them have addresses
    return f"{printed} {text_of(tensors)}"


def _array(array: np.ndarray[Any, Any]) -> str:
    if array.dtype == object:
        return text_of(array.tolist())
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _is_method(value: Any) -> bool:
    return inspect.ismethod(value) and hasattr(value.__self__, "__dict__") and not inspect.isclass(value.__self__)
