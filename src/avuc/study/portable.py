"""A recipe that can be published: it names files, not where they are on somebody's machine."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath

from avuc.study.recipe import OtherData, Recipe

__all__ = ["PLACE", "portable", "without_folder"]

PLACE = "<data>"


def portable(recipe: Recipe) -> Recipe:
    """The recipe with `<data>/NAME` for every path that begins at the root of a machine or in somebody's home."""
    outside: list[str | OtherData] = []
    for entry in recipe.study.ood:
        if isinstance(entry, OtherData):
            outside.append(replace(entry, path=without_folder(entry.path)))
        else:
            outside.append(without_folder(entry))
    data = replace(
        recipe.data,
        source=without_folder(recipe.data.source),
        root=without_folder(recipe.data.root),
        released=without_folder(recipe.data.released),
    )
    net = replace(recipe.net, weights=without_folder(recipe.net.weights))
    return replace(recipe, study=replace(recipe.study, ood=tuple(outside)), data=data, net=net)


def without_folder(path: str) -> str:
    """
    >>> without_folder("/home/ada/data/digits.npz"), without_folder("data/digits.npz"), without_folder("")
    ('<data>/digits.npz', 'data/digits.npz', '')
    """
    windows = re.match(r"[A-Za-z]:[\\/]|\\\\", path) is not None
    pure = PureWindowsPath(path) if windows else PurePosixPath(path)
    if windows or pure.is_absolute() or path.startswith("~") or ".." in pure.parts:
        return f"{PLACE}/{pure.name}" if pure.name and pure.name != ".." else PLACE
    return path
