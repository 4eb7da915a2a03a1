"""Numbers that a user gives: a text, such as "0.1", or another object in their place gets one line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from avuc.core.errors import InputError

NUMBERS = {"int", "float", "int | None", "float | None"}
LISTS = {"tuple[int, ...]", "tuple[float, ...]"}


def check_number(what: str, value: object, wanted: str = "must be a number") -> None:
    """Raise `InputError` unless a value is a number of Python or NumPy, or an array or tensor of one element.

    Args:
        what: the argument, for the message.
        value: what the user gave.
        wanted: the verb of the message, and what was expected.

    >>> check_number("rate", 0.1)
    >>> check_number("rate", "0.1")
    Traceback (most recent call last):
    avuc.core.errors.InputError: rate must be a number, found '0.1'; leave out the quotes
    """
    if isinstance(value, Real) or getattr(value, "size", None) == 1 or getattr(value, "shape", None) == ():
        return
    raise InputError(f"{what} {wanted}, found {value!r}{'; leave out the quotes' if _is_quoted(value) else ''}")


def check_settings(settings: Any, where: str, whole: Iterable[str] = ()) -> None:
    """Raise `InputError` if a number, a list of numbers or a choice of True and False in a dataclass is something else.

    Args:
        settings: an instance of a dataclass.
        where: start of the messages.
        whole: names of fields that must be whole numbers.
    """
    for field in fields(settings):
        value, what = getattr(settings, field.name), f"{where}: {field.name}"
        if field.type in NUMBERS and not (value is None and str(field.type).endswith("None")):
            check_number(what, value)
        elif field.type in LISTS:
            if not isinstance(value, tuple | list):
                raise InputError(f"{what} must be a list of numbers, found {value!r}")
            for one in value:
                check_number(what, one, "must be numbers")
        elif field.type == "bool" and isinstance(value, str):  # any text would count as True
            raise InputError(f"{what} must be True or False, found {value!r}")
    for name in whole:
        value = getattr(settings, name)
        if not isinstance(value, Integral):
            raise InputError(f"{where}: {name} must be a whole number, found {value!r}")


def _is_quoted(value: object) -> bool:
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False
