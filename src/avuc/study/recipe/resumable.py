"""Which changes of a recipe a study may resume with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError
from avuc.study.recipe.config import Recipe
from avuc.study.recipe.portable import DATA_FOLDER, portable_options
from avuc.training.settings import TrainSettings

# fields of [data] that change how files are read, not what is read
READING = ("workers", "verify")
# sources that are identified by their path; those of published data sets may move
OWN_FILES = ("npz", "npy", "folder")


def check_resumable(old: Recipe, new: Recipe, path: Path) -> None:
    """Refuse a recipe that would mix two studies in one folder.

    A study may get more seeds, shifts, severities, out-of-distribution data and methods, and other batches in
    its evaluation. Everything else must stay the same.

    Args:
        old: a recipe that was run in the folder.
        new: the recipe to run.
        path: the study's file, for messages.
    """
    grown = ("seeds", "shifts", "severities", "ood", "predictions", "name", "batch_size")
    same = replace(new.study, **{name: getattr(old.study, name) for name in grown})
    pairs: dict[str, tuple[Any, Any]] = {
        "study": (old.study, same),
        "data": (old.data, new.data),
        "net": (old.net, new.net),
    }
    for other in new.study.others:
        pairs |= {
            f"study.ood.{stored.name}": (replace(stored, path=other.path), other)
            for stored in old.study.others
            if stored.name == other.name
        }
    if new.data.source not in OWN_FILES:
        pairs["data"] = (replace(old.data, root=new.data.root), new.data)  # the same images, elsewhere
    for part, names in (("data", ("source", "root", "corruptions_dir")), ("net", ("weights",))):
        # an exported copy names files without their folders
        before, now = pairs[part]
        same_file = {
            name: getattr(now, name) for name in names if _same_file(getattr(before, name), getattr(now, name))
        }
        if before.options == portable_options(now.options):
            same_file["options"] = now.options
        pairs[part] = (replace(before, **same_file), now)
    methods = {method.name: method for method in new.methods}
    pairs |= {
        f"methods.{method.name}": (method, methods[method.name]) for method in old.methods if method.name in methods
    }
    for part, (before, now) in pairs.items():
        for item in fields(before):
            was, is_now = (_identity(getattr(config, item.name)) for config in (before, now))
            if was != is_now and item.name not in ("seeds", *READING):
                values = (getattr(config, item.name) for config in (before, now))
                key, was, is_now = _first_difference(f"{part}.{item.name}", *values)
                raise InputError(
                    f"{path}: holds another study: {key} was {_short(was)}, now {_short(is_now)}; choose another --out"
                )


def _same_file(before: str, now: str) -> bool:
    """Return whether `before` is the path `now` as an exported copy writes it."""
    return before.startswith(DATA_FOLDER) and before == f"{DATA_FOLDER}/{Path(now).name}"


def _identity(value: Any) -> Any:
    """Return the value that is compared; for training settings, only those that change the result of a training."""
    return value.identity() if isinstance(value, TrainSettings) else value


def _first_difference(key: str, was: Any, is_now: Any) -> tuple[str, Any, Any]:
    """Return the first part of two settings that differs: its key and both values."""
    if type(was) is not type(is_now):
        return key, was, is_now
    if isinstance(was, TrainSettings):
        old, new = was.identity(), is_now.identity()
        name = next(name for name in {**old, **new} if old.get(name) != new.get(name))
        return f"{key}.{name}", getattr(was, name), getattr(is_now, name)
    if is_dataclass(was) and not isinstance(was, type):
        was, is_now = ({item.name: getattr(each, item.name) for item in fields(was)} for each in (was, is_now))
    if isinstance(was, Mapping) and was.keys() == is_now.keys():
        name = next(name for name in was if was[name] != is_now[name])
        return _first_difference(f"{key}.{name}", was[name], is_now[name])
    return key, was, is_now


def _short(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
