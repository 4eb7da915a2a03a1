"""A digest of the code behind an import path, so that a study notices that a function has changed."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from avuc.study.own.code import find, is_path
from avuc.study.own.values import carried_by, text_of

CODE = "code of "  # prefix of the names of these digests
DIGITS = 32
_SOURCES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
# by id; keeping the object ensures that no other object gets its id
_CARRIED: dict[int, tuple[Any, str]] = {}


def begin() -> None:
    """Read the values of objects again in a new study. During a study they may change, for example a call counter."""
    _CARRIED.clear()


def code_digest(value: Any) -> str:
    """Return a digest of a function or class and of everything in its module that it uses, by name.

    Comments, docstrings and layout do not count, nor does the code of other modules. Values in an object count: the
    arguments of a `functools.partial`, the variables around a nested function, the attributes of an object, and numbers
    in global variables that a function reads. See `avuc.study.own.values`. The digest is empty if there is no source.

    >>> code_digest(code_digest) == code_digest(code_digest), code_digest(len)
    (True, '')
    """
    carried = []
    while isinstance(value, partial):
        carried.append(f"{text_of(value.args)} {text_of(value.keywords)}")
        value = value.func
    if id(value) not in _CARRIED:
        _CARRIED[id(value)] = (value, carried_by(value))
    carried.append(_CARRIED[id(value)][1])
    named = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    named = inspect.unwrap(getattr(named, "__func__", named))
    text = _source(named)
    digester = hashlib.sha256(text.encode())
    if any(carried):
        digester.update("\n".join(carried).encode())
    weights = getattr(value, "state_dict", None)
    if weights is not None and not inspect.isclass(value):  # a network given from Python
        text = text or "weights"
        for name, tensor in weights().items():
            digester.update(name.encode())
            digester.update(tensor.detach().cpu().contiguous().reshape(-1).double().numpy().tobytes())
    return digester.hexdigest()[:DIGITS] if text else ""


def code_prints(paths: Iterable[str]) -> dict[str, str]:
    """Return the digests of the user's functions among some names of a recipe, as the table `data` of a study."""
    digests = {f"{CODE}{path}": code_digest(find(path, "recipe")) for path in paths if is_path(path)}
    return {name: digest for name, digest in digests.items() if digest}


def _source(named: Any) -> str:
    """Return the code of a function or class as it was at the first call: later edits of the file are not what runs."""
    if named not in _SOURCES:
        try:
            module = sys.modules[named.__module__]
            text = "\n".join(_reachable(ast.parse(inspect.getsource(module)), named.__qualname__.partition(".")[0]))
        except (OSError, TypeError, KeyError, AttributeError, SyntaxError):
            text = ""
        _SOURCES[named] = text or _own_source(named)
    return _SOURCES[named]


def _own_source(named: Any) -> str:
    """Return the source of a function that was typed into a notebook or a shell; "" if Python does not have it."""
    try:
        return _plain(ast.parse(textwrap.dedent(inspect.getsource(named))))
    except (OSError, TypeError, SyntaxError):
        return ""


def _reachable(tree: ast.Module, start: str) -> list[str]:
    """Return the code of the statements of a module that define `start`, or a name that these use, and so on."""
    makers: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _defined(statement):
            makers.setdefault(name, []).append(statement)
    seen: set[str] = set()
    used: set[int] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in makers:
            continue
        seen.add(name)
        for statement in makers[name]:
            used.add(id(statement))
            waiting += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return [_plain(statement) for statement in tree.body if id(statement) in used]


def _defined(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def _plain(tree: ast.AST) -> str:
    """Return code without its docstrings; comments and layout are no part of a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
