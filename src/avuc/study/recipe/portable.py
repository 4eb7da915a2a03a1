"""A recipe that can be published: it names files without the folders they are in on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

# stands for the folder of a file in a published recipe
DATA_FOLDER = "<data>"
# keys that hold paths, of today and of version 0.1.0
PATHS: dict[str, tuple[str, ...]] = {"data": ("source", "root", "corruptions_dir", "released"), "net": ("weights",)}


def portable_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a recipe with `<data>/NAME` for every absolute path and every path in a home folder.

    >>> portable_tables({"net": {"name": "mlp", "weights": "/home/ada/trained.safetensors"}})
    {'net': {'name': 'mlp', 'weights': '<data>/trained.safetensors'}}
    """
    result = dict(tables)
    for name, keys in PATHS.items():
        if isinstance(result.get(name), Mapping):
            result[name] = {
                key: portable_options(value) if key == "options" or (key in keys and isinstance(value, str)) else value
                for key, value in result[name].items()
            }
    study = result.get("study")
    if isinstance(study, Mapping) and isinstance(study.get("ood"), list | tuple):
        result["study"] = {**study, "ood": [_entry(entry) for entry in study["ood"]]}
    return result


def portable_options(value: Any) -> Any:
    """Return options of the user's own functions without the folders of this machine.

    >>> portable_options({"folder": "/home/ada/photos", "size": 32})
    {'folder': '<data>/photos', 'size': 32}
    """
    if isinstance(value, Mapping):
        return {key: portable_options(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable_options(item) for item in value]
    return without_folder(value) if isinstance(value, str) else value


def _entry(entry: Any) -> Any:
    """Return an entry of `study.ood` without the folders of this machine."""
    if isinstance(entry, Mapping) and isinstance(entry.get("path"), str):
        return {**entry, "path": without_folder(entry["path"])}
    return without_folder(entry) if isinstance(entry, str) else entry


def without_folder(path: str) -> str:
    """Return `<data>/NAME` for a path that reveals folders of this machine; other paths are returned unchanged.

    >>> without_folder("/home/ada/data/digits.npz"), without_folder("data/digits.npz"), without_folder("")
    ('<data>/digits.npz', 'data/digits.npz', '')
    """
    windows = re.match(r"[A-Za-z]:[\\/]|\\\\", path) is not None
    pure = PureWindowsPath(path) if windows else PurePosixPath(path)
    if windows or pure.is_absolute() or path.startswith("~") or ".." in pure.parts:
        return f"{DATA_FOLDER}/{pure.name}" if pure.name and pure.name != ".." else DATA_FOLDER
    return path
