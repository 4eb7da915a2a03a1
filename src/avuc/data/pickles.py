"""Read CIFAR's pickles without running code from them.

Python's unpickler imports and calls whatever the file names. This reader interprets the opcodes itself and builds only
arrays, bytes, str, int, bool, None, list and dict; tuples exist only as arguments. The few functions that the pickle of
an array names are recognised by their names and never imported or called. Memory is bounded by the size of the file.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError

FUNCTIONS = {
    "numpy.core.multiarray _reconstruct": "reconstruct",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",  # how Python 3 writes bytes in protocol 2,
    "__builtin__ bytes": "empty",  # and empty bytes
    "numpy.core.numeric _frombuffer": "frombuffer",  # how NumPy writes an array in protocol 5
    "numpy._core.numeric _frombuffer": "frombuffer",
}
KINDS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"b1", "f4", "f8"}
CONSTANTS: dict[str, bool | None] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1"}
PYTHON2_STRINGS = {"BINSTRING", "SHORT_BINSTRING"}  # bytes, which pickletools shows as latin-1 text
LITERALS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MAX_DEPTH = 16
_MARK = object()


@dataclass(frozen=True)
class _Function:
    """A function or class that a pickle names; it is never called."""

    name: str


@dataclass
class _Dtype:
    kind: str
    order: str = "|"


@dataclass
class _Array:
    """An array under construction: a pickle first creates it and fills it later."""

    value: NDArray[Any] | None = None


def load_plain(data: bytes, name: str) -> Any:
    """Return the data in a pickle of protocol 2 to 5.

    Args:
        data: the bytes of the pickle.
        name: name of the file, for error messages.

    >>> import pickle
    >>> load_plain(pickle.dumps({"labels": [3, 1], "data": np.arange(3, dtype=np.uint8)}, 2), "batch")
    {'labels': [3, 1], 'data': array([0, 1, 2], dtype=uint8)}
    """
    machine = _Machine(name, len(data))
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
        return _finished(machine.result(), name, {}, 0)
    except InputError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{name}: not a whole pickle of plain data ({reason}); fetch it again") from error


class _Machine:
    """The stack machine that executes the opcodes of a pickle."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.budget = (
            size  # text that is converted to bytes is copied; the sum of all copies is at most the size of the file
        )
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.stopped = False

    def result(self) -> Any:
        if not self.stopped or len(self.stack) != 1:
            raise ValueError("it ends early")
        return self.stack[0]

    def refuse(self, what: str) -> InputError:
        return InputError(
            f"{self.name}: refused: {what}; only arrays, bytes, str, int, list and dict are read; fetch it again"
        )

    def step(self, op: str, argument: Any) -> None:
        push = self.stack.append
        if op in INTEGERS or op in LITERALS:
            push(bytes(argument) if isinstance(argument, bytearray) else argument)
        elif op in PYTHON2_STRINGS:
            push(argument.encode("latin-1"))
        elif op in CONSTANTS:
            push(CONSTANTS[op])
        elif op in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif op in ("BINGET", "LONG_BINGET"):
            push(self.memo[argument])
        elif op == "MARK":
            push(_MARK)
        elif op == "EMPTY_LIST":
            push([])
        elif op == "EMPTY_DICT":
            push({})
        elif op == "TUPLE":
            push(tuple(self.pop_to_mark()))
        elif op in TUPLES:
            push(tuple(self.pop(TUPLES[op])))
        elif op in ("APPEND", "APPENDS"):
            items = self.pop(1) if op == "APPEND" else self.pop_to_mark()
            self.top(list).extend(items)
        elif op in ("SETITEM", "SETITEMS"):
            items = self.pop(2) if op == "SETITEM" else self.pop_to_mark()
            self.set_items(items)
        elif op == "GLOBAL":
            push(self.function(argument))
        elif op == "STACK_GLOBAL":
            module, attribute = self.pop(2)
            push(self.function(f"{module} {attribute}"))
        elif op == "REDUCE":
            function, arguments = self.pop(2)
            push(self.build(function, arguments))
        elif op == "BUILD":
            (state,) = self.pop(1)
            self.fill(self.stack[-1], state)
        elif op == "STOP":
            self.stopped = True
        elif op not in ("PROTO", "FRAME"):
            raise self.refuse(f"the opcode {op}")

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("its stack runs empty")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        if any(item is _MARK for item in taken):
            raise ValueError("a mark is misplaced")
        return taken

    def pop_to_mark(self) -> list[Any]:
        for start in range(len(self.stack) - 1, -1, -1):
            if self.stack[start] is _MARK:
                taken = self.stack[start + 1 :]
                del self.stack[start:]
                return taken
        raise ValueError("a mark is missing")

    def top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"a {kind.__name__} is missing")
        return self.stack[-1]

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, bytes, int):
                raise self.refuse(f"a dict key of type {type(key).__name__}")
            target[key] = value

    def function(self, path: str) -> _Function:
        if path not in FUNCTIONS:
            raise self.refuse(f"it asks for {path[:80].replace(' ', '.')!r}")
        return _Function(FUNCTIONS[path])

    def build(self, function: Any, arguments: Any) -> Any:
        match function, arguments:
            case _Function("reconstruct"), (_Function("ndarray"), *_):
                return _Array()
            case _Function("dtype"), (str() | bytes() as kind, *_):
                return _Dtype(self.kind(kind))
            case _Function("empty"), ():
                return b""
            case _Function("encode"), (str() as text, "latin1"):
                self.budget -= len(text)
                if self.budget < 0:
                    raise self.refuse("more bytes than the file holds")
                return text.encode("latin-1")
            case _Function("frombuffer"), (bytes() as raw, _Dtype() as dtype, tuple() as shape, "C" | "F" as order):
                return _Array(self.array(raw, dtype, shape, order))
        raise self.refuse("a call that is not part of an array")

    def kind(self, kind: str | bytes) -> str:
        text = kind.decode("latin-1") if isinstance(kind, bytes) else kind
        if text not in KINDS:
            raise self.refuse(f"the array type {text[:20]!r}")
        return text

    def fill(self, target: Any, state: Any) -> None:
        match target, state:
            case _Dtype(), (int(), str() | bytes() as order, None, None, None, *_):
                target.order = order.decode("latin-1") if isinstance(order, bytes) else order
                if target.order not in ("|", "<", ">", "="):
                    raise self.refuse(f"the byte order {target.order[:20]!r}")
            case _Array(None), (int(), tuple() as shape, _Dtype() as dtype, bool() as fortran, bytes() as raw):
                target.value = self.array(raw, dtype, shape, "F" if fortran else "C")
            case _:
                raise self.refuse("a state that is not an array's")

    def array(self, raw: bytes, dtype: _Dtype, shape: tuple[Any, ...], order: str) -> NDArray[Any]:
        real = np.dtype(dtype.order + dtype.kind)
        if len(shape) > 8 or any(type(side) is not int or not 0 <= side < 2**40 for side in shape):
            raise self.refuse(f"the array shape {str(shape)[:60]}")
        if math.prod(shape) * real.itemsize != len(raw):
            raise ValueError(f"an array {shape} of {real} has {len(raw):,} bytes")
        return np.frombuffer(raw, real).reshape(shape, order="F" if order == "F" else "C")


def _finished(value: Any, name: str, seen: dict[int, Any], depth: int) -> Any:
    """Return `value` with finished arrays; anything but plain data is refused, also a list that contains itself."""
    if isinstance(value, str | bytes | int) or value is None:
        return value
    if depth > MAX_DEPTH:
        raise InputError(f"{name}: refused: data nested more than {MAX_DEPTH} deep; fetch it again")
    if id(value) in seen:  # each shared part is finished once; otherwise a small file could cause endless work
        return seen[id(value)]
    if isinstance(value, _Array) and value.value is not None:
        done: Any = value.value
    elif type(value) is list:
        done = [_finished(item, name, seen, depth + 1) for item in value]
    elif type(value) is dict:
        done = {key: _finished(item, name, seen, depth + 1) for key, item in value.items()}
    else:
        raise InputError(
            f"{name}: refused: it holds a {type(value).__name__.strip('_').lower()}, not plain data; fetch it again"
        )
    seen[id(value)] = done
    return done
