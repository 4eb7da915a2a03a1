"""What of a recipe may change while its study goes on."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError
from avuc.study.portable import PLACE
from avuc.study.recipe import Recipe
from avuc.training.settings import TrainSettings

__all__ = ["refuse_other"]

HOW = ("workers", "verify")  # data are read
OWN = ("npz", "npy", "folder")  # sources that are whatever lies at their root


def refuse_other(old: Recipe, new: Recipe, path: Path) -> None:
    """A study may grow by seeds, shifts, severities, other data and rows; what is there must stay what it was."""
    grown = ("seeds", "shifts", "severities", "ood", "predictions", "name")
    same = replace(new.study, **{name: getattr(old.study, name) for name in grown})
    pairs: dict[str, tuple[Any, Any]] = {
        "study": (old.study, same),
        "data": (old.data, new.data),
        "net": (old.net, new.net),
    }
    for other in new.study.others:
        pairs |= {
            f"study.ood.{one.name}": (replace(one, path=other.path), other)
            for one in old.study.others
            if one.name == other.name
        }
    if new.data.source not in OWN:
        pairs["data"] = (replace(old.data, root=new.data.root), new.data)  # the same images, elsewhere
    for part, names in (("data", ("source", "root", "released")), ("net", ("weights",))):
        # an exported copy names files without their folders
        before, now = pairs[part]
        same_file = {
            name: getattr(now, name) for name in names if _same_file(getattr(before, name), getattr(now, name))
        }
        pairs[part] = (replace(before, **same_file), now)
    rows = {row.name: row for row in new.methods}
    pairs |= {f"methods.{row.name}": (row, rows[row.name]) for row in old.methods if row.name in rows}
    for part, (before, now) in pairs.items():
        for item in fields(before):
            was, is_now = (_identity(getattr(one, item.name)) for one in (before, now))
            if was != is_now and item.name not in ("seeds", *HOW):
                raise InputError(
                    f"{path}: holds another study: {part}.{item.name} was {_short(was)}, now {_short(is_now)}; "
                    "choose another --out"
                )


def _same_file(before: str, now: str) -> bool:
    """Whether `before` is `now` as an exported copy names it."""
    return before.startswith(PLACE) and before == f"{PLACE}/{Path(now).name}"


def _identity(value: Any) -> Any:
    """Of training, what makes a difference to its result."""
    return value.identity() if isinstance(value, TrainSettings) else value


def _short(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
