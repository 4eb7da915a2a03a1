"""Recipes from files: TOML text, checked and changed, becomes a `Recipe`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from avuc.calibration import CALIBRATORS
from avuc.core.errors import InputError
from avuc.core.files import read_text
from avuc.methods import METHODS, Method, Objective
from avuc.study.config import CalibratorSpec, DataPart, NetPart, OtherData, Recipe, Row, StudyPart, plain
from avuc.study.names import slug
from avuc.study.tables import Place, build, did_you_mean, hints_of, known_keys
from avuc.training.settings import TrainSettings

__all__ = [
    "CalibratorSpec",
    "DataPart",
    "NetPart",
    "OtherData",
    "Recipe",
    "Row",
    "StudyPart",
    "load_recipe",
    "parse_recipe",
    "recipe_names",
    "slug",
]


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("avuc").joinpath("recipes")
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """A recipe by its name or its file, with `changes` like "train.epochs=2" or "methods.SVI.objective.beta=1".

    >>> load_recipe("demo", ["study.samples=4"]).study.samples
    4
    """
    source = str(name)
    if source in recipe_names():
        text = resources.files("avuc").joinpath("recipes", f"{source}.toml").read_text(encoding="utf-8")
        source = f"{source}.toml"
    else:
        try:
            text = read_text(source)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            known = did_you_mean(source, recipe_names())
            raise InputError(
                f"{source}: no recipe can be read here ({reason}); {known}, or give a .toml file"
            ) from error
    return parse_recipe(text, source, changes)


def parse_recipe(text: str, source: str = "recipe", changes: Sequence[str] = ()) -> Recipe:
    """A recipe from TOML text; `source` is what messages call it."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: not valid TOML ({error})") from error
    place = Place(source)
    for change in changes:
        _apply(tables, change)
    known_keys(tables, ("study", "data", "net", "train", "methods"), place)
    train = build(TrainSettings, tables.get("train", {}), place / "train")
    parts = {
        key: build(kind, tables.get(key, {}), place / key)
        for key, kind in (("study", StudyPart), ("data", DataPart), ("net", NetPart))
    }
    rows = tables.get("methods", [])
    if not isinstance(rows, list):
        raise (place / "methods").wrong("expected [[methods]] tables, one for each row")
    methods = tuple(_row(table, train, place / "methods", number) for number, table in enumerate(rows))
    try:
        return Recipe(**parts, train=train, methods=methods)  # type: ignore[arg-type]
    except InputError as error:
        raise place.wrong(str(error)) from error


def _row(table: Any, train: TrainSettings, place: Place, number: int) -> Row:
    name = table.get("name") if isinstance(table, Mapping) else None
    place = place / (name if isinstance(name, str) else number)

    def own_train(value: Any, where: Place) -> TrainSettings:
        known_keys(value, hints_of(TrainSettings), where)
        return build(TrainSettings, {**plain(train), **value}, where)

    special = {
        TrainSettings: own_train,
        Objective: _objective,
        Method | None: _method,
        CalibratorSpec | None: _calibrator,
    }
    known_keys(table, hints_of(Row), place)
    return build(Row, {"train": {}, **table}, place, special)


def _kind(value: Any, place: Place, known: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """A table with its `kind`, or the kind alone."""
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise place.wrong(f"expected a name, or a table with kind = NAME; found {value!r}")
    if table["kind"] not in known:
        raise place.wrong(f"{table['kind']!r} is unknown; {did_you_mean(table['kind'], known)}")
    return table["kind"], {key: item for key, item in table.items() if key != "kind"}


def _method(value: Any, place: Place) -> Method:
    kind, params = _kind(value, place, METHODS)
    return build(METHODS[kind], params, place, {Method: _method})


def _objective(value: Any, place: Place) -> Objective:
    return build(Objective, {"kind": value} if isinstance(value, str) else value, place)


def _calibrator(value: Any, place: Place) -> CalibratorSpec:
    kind, params = _kind(value, place, CALIBRATORS)
    made = build(CALIBRATORS[kind], params, place)
    try:
        made._check_params()
    except InputError as error:
        raise place.wrong(str(error)) from error
    checked = made.get_params()
    return CalibratorSpec(kind, tuple((key, checked[key]) for key in params))


def _apply(tables: dict[str, Any], change: str) -> None:
    """Put one `key=value` in its place; whether it belongs there is checked with everything else."""
    here: Any = tables
    rest = change.strip()
    if rest.startswith("methods."):
        rows = {str(row.get("name")): row for row in tables.get("methods", [])}
        rest = rest.removeprefix("methods.")
        # a name may have dots and signs in it: the longest that fits
        named = max((name for name in rows if rest.startswith(f"{name}.")), key=len, default=None)
        if named is None:
            near = did_you_mean(rest.partition(".")[0], rows)
            raise InputError(f"--set {change}: expected methods.NAME.KEY=VALUE, with the name of a row; {near}")
        here, rest = rows[named], rest.removeprefix(f"{named}.")
    path, sign, text = rest.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys) or (here is tables and len(keys) < 2):
        raise InputError(f"--set {change}: expected SECTION.KEY=VALUE, like train.epochs=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word
    for key in keys[:-1]:
        below = here.setdefault(key, {})
        if isinstance(below, str):  # method = "svi" is short for a table
            below = here[key] = {"kind": below}
        if not isinstance(below, dict):
            raise InputError(f"--set {change}: {key} holds no keys")
        here = below
    here[keys[-1]] = value
