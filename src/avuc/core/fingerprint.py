"""Detect that a posterior has changed: its weights, its buffers, its layers, hooks or attributes.

torch's version counters miss writes through `.data`, by a fused optimiser or by a replayed CUDA graph. So each call
reads the contents of every tensor. Their bits, as 64-bit integers in a matrix X of 1,024 columns, give

    h = Σ_r Σ_c a_r b_c X_rc   mod 2⁶⁴,        a and b fixed odd numbers.

A single changed number always changes h; any other change does with probability 1 − 2⁻⁶³. Layers, hooks and plain
attributes, such as a dropout rate, are compared directly.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

COLUMNS = 1024
# tensors of at least this size are read in place, smaller ones are joined first
LARGE_BYTES = 1 << 20
# limits on the number and depth of values, because an attribute may refer to large parts of the program
MOST_VALUES, MOST_DEPTH = 100_000, 6
PLAIN = frozenset(
    {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range, slice, type}
)
# a network's attributes that have no effect on its forward pass
BOOKKEEPING = frozenset(
    {
        "_backward_pre_hooks",
        "_backward_hooks",
        "_is_full_backward_hook",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_non_persistent_buffers_set",
        "_compiled_call_impl",
        "_flat_weight_refs",
    }
)


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    facts: tuple[object, ...]
    contents: tuple[int, ...]


@torch.no_grad()
def fingerprint(posterior: object) -> Fingerprint:
    """Return a value that is equal for two calls if nothing that the posterior's samples depend on has changed.

    Changes inside a closure, a global variable or a class are not detected.

    >>> net = nn.Linear(2, 3)
    >>> before = fingerprint(net)
    >>> net.weight.data[0, 0] += 1
    >>> fingerprint(net) == before
    False
    """
    walk = _Walk()
    walk.look(posterior, 0)
    return Fingerprint(tuple(walk.facts), _contents(walk.tensors))


def structure(module: nn.Module) -> tuple[object, ...]:
    """Return the layers, hooks and attributes of a network in evaluation mode, without the contents of its tensors."""
    walk = _Walk(whole=False)
    walk.look(module, 0)
    return tuple(walk.facts)


def form(module: nn.Module) -> tuple[object, ...] | None:
    """Return the `structure` of a network that is a function of its input, weights and buffers alone.

    Two networks of equal form compute the same, given the same weights and buffers. None: an attribute holds a tensor
    or an array, whose contents are not part of the structure.

    >>> form(nn.Linear(2, 3)) == form(nn.Linear(2, 3)), form(nn.Dropout(0.1)) == form(nn.Dropout(0.2))
    (True, False)
    """
    facts = structure(module)
    kinds = [fact for fact in facts if isinstance(fact, type)]
    arrays = any(issubclass(kind, np.ndarray) for kind in kinds)
    weights = {id(value) for value in (*module.parameters(), *module.buffers())}
    return None if arrays or sum(issubclass(kind, Tensor) for kind in kinds) != len(weights) else facts


class _Same:
    """Equal only to itself. It keeps the object alive, so that no other object gets the same address."""

    __slots__ = ("what",)

    def __init__(self, what: object) -> None:
        self.what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.what is other.what

    def __hash__(self) -> int:
        return id(self.what)


class _Walk:
    def __init__(self, whole: bool = True) -> None:
        self.whole = whole  # whether the tensors' contents and the modules' modes are included
        self.facts: list[object] = []
        self.tensors: list[Tensor] = []
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []

    def look(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in PLAIN:
            self.facts.append(value)
            return
        if id(value) in self._seen:
            self.facts.append(("again", self._seen[id(value)]))
            return
        if len(self._seen) >= MOST_VALUES:
            self.facts.append(_Same(value))
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        self.facts.append(kind)
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, dict):
            self._items(value, depth)
        elif isinstance(value, set | frozenset):
            self.facts.append(frozenset(part if type(part) in PLAIN else _Same(part) for part in value))
        elif isinstance(value, tuple | list):
            self.facts.append(len(value))
            for part in value:
                self.look(part, depth)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.look(part, depth)
        elif isinstance(value, MethodType) and not isinstance(value.__self__, type):
            self.facts.append(_Same(value.__func__))
            self.look(value.__self__, depth + 1)
        elif depth >= MOST_DEPTH or _unchanging(value):
            self.facts.append(_Same(value))
        else:
            self._items(vars(value), depth + 1)

    def _module(self, module: nn.Module) -> None:
        add = self.facts.append
        for key, part in vars(module).items():
            # empty dicts of hooks and children are skipped: most layers have none
            empty = type(part) in (dict, OrderedDict) and not part
            if key in BOOKKEEPING or (empty and key[0] == "_") or (key == "training" and not self.whole):
                continue
            add(key)
            if type(part) in PLAIN:
                add(part)
            else:
                self.look(part, 0)

    def _items(self, items: Mapping[Any, Any], depth: int) -> None:
        self.facts.append(len(items))
        for key, part in items.items():
            self.facts.append(key if type(key) in PLAIN else _Same(key))
            self.look(part, depth)

    def _array(self, array: np.ndarray) -> None:
        self.facts += [array.shape, array.dtype.str]
        if isinstance(array, np.memmap) or array.dtype == object or not array.size:
            self.facts.append(_Same(array))  # a mapped file may be larger than memory
        elif self.whole:
            plain = np.ascontiguousarray(array)
            plain = plain if plain.flags.writeable else plain.copy()
            self.tensors.append(torch.from_numpy(plain.reshape(-1).view(np.uint8)))

    def _tensor(self, tensor: Tensor) -> None:
        self.facts += [tensor.shape, tensor.dtype, tensor.device]
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            self.facts.append(_Same(tensor))
        elif self.whole:
            # a tensor that was replaced by an equal one counts as changed: the old one may be written to later
            self.facts += [tensor.stride(), tensor.data_ptr()]
            self.tensors.append(tensor.detach())


def _unchanging(value: Any) -> bool:
    """Return whether a value is compared by identity: code, and objects without attributes that can change."""
    code = (type, FunctionType, BuiltinFunctionType, ModuleType, torch.Generator)
    parameters = getattr(type(value), "__dataclass_params__", None)
    frozen = parameters is not None and parameters.frozen
    # objects of the standard library, such as a logger, a lock or a file, except plain containers of attributes
    standard = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    plain = isinstance(value, SimpleNamespace | argparse.Namespace)
    return isinstance(value, code) or frozen or (standard and not plain) or not hasattr(value, "__dict__")


def _contents(tensors: list[Tensor]) -> tuple[int, ...]:
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        # other devices may not support 64-bit integers
        device = tensor.device if tensor.device.type in ("cpu", "cuda") else torch.device("cpu")
        by_device.setdefault(device, []).append(_bytes(tensor.to(device)))
    sums_of_devices: list[int] = []
    for parts in by_device.values():
        sums = torch.stack([_sum(matrix) for matrix in _matrices(parts)])
        sums_of_devices.extend(sums.tolist())
    return tuple(sums_of_devices)


def _bytes(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes in memory order, without a copy if they are contiguous."""
    if not tensor.is_contiguous() or tensor.is_complex():
        order = sorted(range(tensor.ndim), key=tensor.stride().__getitem__, reverse=True)
        tensor = tensor.resolve_conj().resolve_neg().permute(order).contiguous()
    return tensor.view(-1).view(torch.uint8)


def _matrices(parts: list[Tensor]) -> Iterator[Tensor]:
    """Yield the bytes as (rows, COLUMNS) 64-bit integers: one matrix for each large part, one for the rest."""
    width, rest = 8 * COLUMNS, []
    for part in parts:
        size = part.numel()
        if size >= LARGE_BYTES and part.storage_offset() % 8 == 0:
            whole = size // width * width
            yield part[:whole].view(torch.int64).view(-1, COLUMNS)
            part = part[whole:]
        rest.append(part)
    size = sum(part.numel() for part in rest)
    rest.append(rest[0].new_zeros(-size % width if size else width))
    yield torch.cat(rest).view(torch.int64).view(-1, COLUMNS)


def _sum(matrix: Tensor) -> Tensor:
    columns, rows = _odd(COLUMNS, 1, matrix.device), _odd(len(matrix), 2, matrix.device)
    product = torch.mv(matrix, columns) if matrix.device.type == "cpu" else _product(matrix, columns)
    return (rows * product).sum()


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return matrix · vector. CUDA has no integer matrix product; blocks bound the memory of the products."""
    return torch.cat([(block * vector).sum(1) for block in matrix.split(8192)])


@functools.lru_cache(maxsize=32)
def _odd(count: int, seed: int, device: torch.device) -> Tensor:
    """Return fixed odd 64-bit numbers that look random."""
    state = np.random.SeedSequence([seed, count]).generate_state(count, np.uint64)
    return torch.from_numpy((state | np.uint64(1)).view(np.int64)).to(device)
