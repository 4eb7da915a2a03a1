"""Old names of arguments: they still work, with a warning that says the new name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take arguments by their old names.

    Args:
        names: old name → new name.

    >>> @renamed(images="data")
    ... def count(data):
    ...     return len(data)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     count(images=[1, 2]), str(caught[0].message)
    (2, 'count(images=) is now data=')
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def accept(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names.keys() & kwargs.keys():
                new = names[old]
                if new in kwargs:
                    raise TypeError(f"{function.__name__}() got both {old!r} and {new!r}, its new name")
                warnings.warn(f"{_name(function)}({old}=) is now {new}=", DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return accept

    return decorate


def _name(function: Callable[..., object]) -> str:
    """Return the name of a function; of a class, if the function is its constructor or makes it callable."""
    owner, _, name = function.__qualname__.rpartition(".")
    return owner if name in ("__init__", "__call__") else name
