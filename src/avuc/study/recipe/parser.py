"""The recipe parser: TOML text in, checked dataclasses of `config` out.

Every recipe goes through here: `parse_recipe` reads those of `avuc study`, `parse_training` those of `avuc train`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from avuc.calibration import CALIBRATORS
from avuc.core.errors import InputError
from avuc.core.text import did_you_mean
from avuc.methods import METHODS, Method, Objective
from avuc.nets import NETS
from avuc.study.recipe.config import MethodConfig, Recipe, plain
from avuc.study.recipe.keys import new_key, with_new_keys
from avuc.study.recipe.sections import CalibratorSpec, DataConfig, NetConfig, StudySettings
from avuc.study.recipe.tables import Location, build, hints_of, known_keys
from avuc.training.settings import TrainSettings

Notify = Callable[[str], None]
# The variant of an objective whose table has none. `Objective("avuc")` in Python means "monotone". In recipes it stays
# "paper", because stored recipes leave this value out.
RECIPE_VARIANT = "paper"


def parse_recipe(
    text: str, source: str = "recipe", changes: Sequence[str] = (), *, notify: Notify | None = None
) -> Recipe:
    """Read the recipe of a study.

    Args:
        text: TOML.
        source: the file, for messages.
        changes: like "train.epochs=2" or "methods.SVI.objective.beta=1".
        notify: called with one line for each key that has a new name, and with one if an AvUC objective names no
            variant.

    >>> parse_recipe('[[methods]]\\nname = "A"\\nmethod = "svi"', changes=["study.samples=4"]).study.samples
    4
    """
    tables = with_new_keys(_toml(text, source), source, notify)
    for change in changes:
        _apply(tables, change, notify)
    location = Location(source)
    known_keys(tables, ("study", "data", "net", "train", "methods"), location)
    train = _train(tables.get("train", {}), location / "train")
    study = build(StudySettings, tables.get("study", {}), location / "study")
    data = build(DataConfig, tables.get("data", {}), location / "data")
    net = build(NetConfig, tables.get("net", {}), location / "net")
    listed = tables.get("methods", [])
    if not isinstance(listed, list):
        raise (location / "methods").error("expected [[methods]] tables, one for each method")
    methods = tuple(parse_method(table, train, location / "methods", number) for number, table in enumerate(listed))
    try:
        recipe = Recipe(study, data, net, train, methods)
    except InputError as error:
        raise location.error(str(error)) from error
    if notify is not None:
        notify_printed(tables, location, notify)
    return recipe


@dataclass(frozen=True)
class TrainingRecipe:
    """The recipe of one training (`avuc train`).

    Args:
        data: name (or path) of the data set.
        data_options: options of `load_dataset`, such as root, split and limit.
        validation: images to hold out, a count or a share; 0 for none.
        net: name of the network.
        net_options: options of its factory.
        method, objective, settings: what is trained, and how.
        train_keys: keys of the table [train] that the recipe has.
        is_default: whether it has neither [method] nor [objective].
    """

    data: str
    data_options: Mapping[str, Any]
    validation: int | float
    net: str
    net_options: Mapping[str, Any]
    method: Method
    objective: Objective
    settings: TrainSettings
    train_keys: tuple[str, ...] = ()
    is_default: bool = False


@dataclass(frozen=True)
class _Named:
    """A table with a name; the code that uses its other keys, the options, checks them."""

    name: str
    validation: int | float = 0
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_training(text: str, source: str = "recipe", *, notify: Notify | None = None) -> TrainingRecipe:
    """Read the recipe of one training: the tables [data], [net], [method], [objective] and [train].

    Arguments as in `parse_recipe`.

    >>> parse_training('[data]\\nname = "mnist5k"\\n[method]\\nname = "svi"\\nprior_std = 0.5').method.prior_std
    0.5
    """
    tables = with_new_keys(_toml(text, source), source, notify)
    location = Location(source)
    known_keys(tables, ("data", "net", "method", "objective", "train"), location)
    data = _named(tables.get("data", {}), "mnist5k", location / "data")
    net = _named(tables.get("net", {}), "small_cnn", location / "net")
    if net.name not in NETS:
        raise (location / "net" / "name").error(f"no net {net.name!r}; {did_you_mean(net.name, NETS)}")
    method = tables.get("method", {})
    if isinstance(method, Mapping) and not {"name", "kind"} & set(method):
        method = {"kind": "vanilla", **method}
    recipe = TrainingRecipe(
        data.name,
        data.options,
        data.validation,
        net.name,
        net.options,
        _method(method, location / "method"),
        _objective(tables.get("objective", {}), location / "objective"),
        _train(tables.get("train", {}), location / "train"),
        tuple(tables.get("train", {})),
        "method" not in tables and "objective" not in tables,
    )
    if notify is not None:
        notify_printed(tables, location, notify)
    return recipe


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: not valid TOML ({error})") from error


def _named(table: Any, name: str, location: Location) -> _Named:
    if not isinstance(table, Mapping):
        raise location.error(f"expected a table, found {table!r}")
    checked = ("name", "validation") if location.path == "data" else ("name",)
    if location.path == "data" and "source" in table:
        raise (location / "source").error("this key is for a study; the recipe of one training has name instead")
    options = {key: value for key, value in table.items() if key not in checked}
    checked_table = build(_Named, {"name": name} | {key: table[key] for key in checked if key in table}, location)
    return dataclasses.replace(checked_table, options=options)


def _train(table: Any, location: Location, base: TrainSettings | None = None) -> TrainSettings:
    """Return `TrainSettings` from a table; missing keys are taken from `base`."""
    known_keys(table, hints_of(TrainSettings), location)
    return build(TrainSettings, {**(plain(base) if base is not None else {}), **table}, location)


def parse_method(table: Any, train: TrainSettings, location: Location, number: int) -> MethodConfig:
    """Read one table of [[methods]]; `train` has the default settings, which the table may change."""
    name = table.get("name") if isinstance(table, Mapping) else None
    location = location / (name if isinstance(name, str) else number)
    special = {
        TrainSettings: lambda value, where: _train(value, where, train),
        Objective: _objective,
        Method | None: _method,
        CalibratorSpec | None: _calibrator,
    }
    known_keys(table, hints_of(MethodConfig), location)
    return build(MethodConfig, {"train": {}, **table}, location, special)


def _kind(value: Any, location: Location, known: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """Return the kind and the parameters of a table with the key `kind` (or `name`), or of the kind alone."""
    table = {"kind": value} if isinstance(value, str) else value
    if isinstance(table, Mapping) and "name" in table and "kind" not in table:
        table = {"kind": table["name"], **{key: item for key, item in table.items() if key != "name"}}
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise location.error(f"expected a name, or a table with kind = NAME; found {value!r}")
    if table["kind"] not in known:
        raise location.error(f"{table['kind']!r} is unknown; {did_you_mean(table['kind'], known)}")
    return table["kind"], {key: item for key, item in table.items() if key != "kind"}


def _method(value: Any, location: Location) -> Method:
    kind, params = _kind(value, location, METHODS)
    return build(METHODS[kind], params, location, {Method: _method})


def _objective(value: Any, location: Location) -> Objective:
    table = {"kind": value} if isinstance(value, str) else value
    return build(Objective, {"variant": RECIPE_VARIANT, **table} if isinstance(table, Mapping) else table, location)


def notify_printed(tables: Mapping[str, Any], location: Location, notify: Notify) -> None:
    """Say in one line which objectives of a checked recipe are AvUC as printed only because they name no variant."""
    found = {"objective": tables.get("objective")}
    found |= {f"methods.{table['name']}.objective": table.get("objective") for table in tables.get("methods", [])}
    printed = [
        where
        for where, value in found.items()
        if value == "avuc" or (isinstance(value, Mapping) and value.get("kind") == "avuc" and "variant" not in value)
    ]
    if printed:
        notify(
            f'{location.source}: {", ".join(printed)}: this recipe uses AvUC as printed; write variant = "monotone" '
            '(recommended) or variant = "paper"'
        )


def _calibrator(value: Any, location: Location) -> CalibratorSpec:
    kind, params = _kind(value, location, CALIBRATORS)
    calibrator = build(CALIBRATORS[kind], params, location)
    try:
        calibrator._check_params()
    except InputError as error:
        raise location.error(str(error)) from error
    checked = calibrator.get_params()
    return CalibratorSpec(kind, tuple((key, checked[key]) for key in params))


def _apply(tables: dict[str, Any], change: str, notify: Notify | None) -> None:
    """Set one `key=value` in the tables; it is checked later, with everything else."""
    here: Any = tables
    rest = change.strip()
    section = "methods"
    if rest.startswith("methods."):
        methods = {str(table.get("name")): table for table in tables.get("methods", [])}
        rest = rest.removeprefix("methods.")
        # a name may contain dots and equals signs: take the longest name that fits
        named = max((name for name in methods if rest.startswith(f"{name}.")), key=len, default=None)
        if named is None:
            near = did_you_mean(rest.partition(".")[0], methods)
            raise InputError(f"--set {change}: expected methods.NAME.KEY=VALUE, with the name of a method; {near}")
        here, rest = methods[named], rest.removeprefix(f"{named}.")
    path, sign, text = rest.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys) or (here is tables and len(keys) < 2):
        raise InputError(f"--set {change}: expected SECTION.KEY=VALUE, like train.epochs=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word
        if value[:1] in ("[", "{"):
            raise InputError(
                f"--set {change}: text in a list or table needs quotes, which the shell removes; write --set "
                f'\'{path}=["a", "b"]\', with single quotes around the whole'
            ) from None
    for key in keys[:-1]:
        section = key
        below = here.setdefault(key, {})
        if isinstance(below, str):  # method = "svi" is short for a table
            below = here[key] = {"kind": below}
        if not isinstance(below, dict):
            raise InputError(f"--set {change}: {key} is not a table")
        here = below
    key = new_key(section, keys[-1])
    if key != keys[-1] and notify is not None:
        notify(f"--set {change}: {keys[-1]!r} is now {key!r}; the old key still works")
    here[key] = value
