"""Recipe keys that were renamed after version 0.1.0.

Recipes with the old keys are still read. `study.sqlite` always holds recipes with the old keys, so that its format is
the same for every version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from avuc.core.errors import InputError

# table -> {key of version 0.1.0: key of today}
RENAMED: dict[str, dict[str, str]] = {
    "data": {"rehearsal": "evaluate_on_validation", "released": "corruptions_dir"},
    "train": {"at_once": "models_per_step"},
    "methods": {"of": "reuse_model", "start": "init_from", "as_given": "skip_training"},
}

Notify = Callable[[str], None]


def new_key(table: str, key: str) -> str:
    """Return today's name of a key.

    >>> new_key("methods", "of"), new_key("methods", "samples")
    ('reuse_model', 'samples')
    """
    return RENAMED.get(table, {}).get(key, key)


def with_new_keys(tables: Mapping[str, Any], source: str = "recipe", notify: Notify | None = None) -> dict[str, Any]:
    """Return the tables of a recipe with today's keys.

    Args:
        tables: as `tomllib` reads them; values of unexpected types are left as they are.
        source: the file, for messages.
        notify: called with one line for each old key that the recipe uses.

    >>> with_new_keys({"methods": [{"name": "TS", "of": "SVI"}]}, "r.toml", print)
    r.toml: 'of' is now 'reuse_model'; the old key still works
    {'methods': [{'name': 'TS', 'reuse_model': 'SVI'}]}
    """
    used: dict[str, str] = {}

    def rename(table: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
        for old, new in names.items():
            if old in table and new in table:
                raise InputError(f"{source}: {where}: {old!r} is the old name of {new!r}; give one of them")
        used.update({key: names[key] for key in table if key in names})
        return {names.get(key, key): value for key, value in table.items()}

    renamed = _renamed(tables, RENAMED, rename)
    if notify is not None:
        for old, new in used.items():
            notify(f"{source}: {old!r} is now {new!r}; the old key still works")
    return renamed


def with_old_keys(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a recipe with the keys of version 0.1.0, as `study.sqlite` holds them.

    >>> with_old_keys({"methods": [{"name": "TS", "reuse_model": "SVI"}]})
    {'methods': [{'name': 'TS', 'of': 'SVI'}]}
    """
    old = {table: {new: old for old, new in names.items()} for table, names in RENAMED.items()}
    return _renamed(tables, old, lambda table, names, _: {names.get(key, key): value for key, value in table.items()})


def _renamed(
    tables: Mapping[str, Any],
    names: Mapping[str, Mapping[str, str]],
    rename: Callable[[Mapping[str, Any], Mapping[str, str], str], dict[str, Any]],
) -> dict[str, Any]:
    """Return the tables with `rename` applied to each table that has renamed keys."""
    result: dict[str, Any] = {}
    for name, content in tables.items():
        if name == "methods" and isinstance(content, list):
            result[name] = [_method(table, names, rename) for table in content]
        elif name in names and isinstance(content, Mapping):
            result[name] = rename(content, names[name], name)
        else:
            result[name] = content
    return result


def _method(
    table: Any,
    names: Mapping[str, Mapping[str, str]],
    rename: Callable[[Mapping[str, Any], Mapping[str, str], str], dict[str, Any]],
) -> Any:
    if not isinstance(table, Mapping):
        return table
    where = f"methods.{table.get('name', '?')}"
    renamed = rename(table, names["methods"], where)
    if isinstance(renamed.get("train"), Mapping):
        renamed["train"] = rename(renamed["train"], names["train"], f"{where}.train")
    return renamed
