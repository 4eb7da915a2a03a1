"""Build objects from TOML tables: every key must be known, every value must have the type of its field."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from avuc.core.errors import InputError
from avuc.core.text import did_you_mean

T = TypeVar("T")
Table = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Location:
    """Where a value stands in a recipe: the file, and the keys that lead to the value."""

    source: str
    path: str = ""

    def __truediv__(self, key: str | int) -> Location:
        step = f"[{key}]" if isinstance(key, int) else f".{key}" if self.path else key
        return Location(self.source, self.path + step)

    def error(self, message: str) -> InputError:
        return InputError(f"{self.source}: {self.path}: {message}" if self.path else f"{self.source}: {message}")


def build(kind: Callable[..., T], table: Table, location: Location, special: Mapping[Any, Any] | None = None) -> T:
    """Return `kind(**table)` after checking keys and types.

    Args:
        kind: a dataclass, or a class with annotated arguments.
        table: its arguments, as `tomllib` reads them.
        location: where the table stands, for messages.
        special: annotation → function(value, location), for values that are not plain.

    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: float
    ...     label: str = ""
    >>> build(Point, {"x": 1}, Location("points.toml"))
    Point(x=1.0, label='')
    >>> build(Point, {"x": 1, "lable": "a"}, Location("points.toml"))
    Traceback (most recent call last):
    avuc.core.errors.InputError: points.toml: lable: no such key; did you mean 'label'? There are x, label
    """
    hints = hints_of(kind)
    known_keys(table, hints, location)
    values = {key: _checked(value, hints[key], location / key, special or {}) for key, value in table.items()}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in values:
            raise location.error(f"needs the key {name!r}")
    try:
        return kind(**values)
    except InputError as error:
        raise location.error(str(error)) from error


def hints_of(kind: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a class and their types."""
    names = [name for name in inspect.signature(kind).parameters if name != "self"]
    hints = get_type_hints(kind if dataclasses.is_dataclass(kind) else kind.__init__)
    return {name: hints[name] for name in names}


def known_keys(table: Table, known: Iterable[str], location: Location) -> None:
    """Raise if `table` is not a table or has keys that are not in `known`."""
    if not isinstance(table, Mapping):
        raise location.error(f"expected a table, found {_short(table)}")
    keys = list(known)
    for key in table:
        if key not in keys:
            raise (location / key).error(f"no such key; {did_you_mean(key, keys)}")


def _checked(value: Any, hint: Any, location: Location, special: Mapping[Any, Any]) -> Any:
    if hint in special:
        return special[hint](value, location)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in args:
            raise location.error(f"found {_short(value)}; {did_you_mean(str(value), [str(arg) for arg in args])}")
        return value
    if origin in (Union, types.UnionType):
        table = [choice for choice in args if dataclasses.is_dataclass(choice)]
        if table and isinstance(value, Mapping):  # so that the message names the error inside the table
            return build(table[0], value, location, special)  # type: ignore[arg-type]
        for choice in args:
            try:
                return _checked(value, choice, location, special)
            except InputError:
                continue
        raise location.error(f"expected {_type_name(hint)}, found {_short(value)}")
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise location.error(f"expected a table, found {_short(value)}")
        return dict(value)
    if origin is tuple:
        return _many(value, args, hint, location, special)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, location, special)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:  # bool is an int in Python, not here
        return value
    raise location.error(f"expected {_type_name(hint)}, found {_short(value)}")


def _many(
    value: Any, args: tuple[Any, ...], hint: Any, location: Location, special: Mapping[Any, Any]
) -> tuple[Any, ...]:
    each = args[0] if args[-1] is Ellipsis else None
    if not isinstance(value, list | tuple) or (each is None and len(value) != len(args)):
        raise location.error(f"expected {_type_name(hint)}, found {_short(value)}")
    return tuple(_checked(item, each or args[n], location / n, special) for n, item in enumerate(value))


TYPE_NAMES: dict[type[Any], str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "nothing",
}


def _type_name(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(arg) for arg in args if arg is not type(None))
    if origin is tuple:
        return f"a list ({_type_name(args[0])} each)" if args[-1] is Ellipsis else f"a list of {len(args)}"
    if origin is Literal:
        return " or ".join(repr(arg) for arg in args)
    return TYPE_NAMES.get(hint, "a table")


def _short(value: Any) -> str:
    text = "a table" if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
