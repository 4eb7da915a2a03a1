"""The recipe in `study.sqlite` as plain data, read without torch; it has only the keys that a report needs."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from avuc.core.errors import InputError
from avuc.study.grid import Done, all_sets
from avuc.study.recipe.keys import with_new_keys
from avuc.study.recipe.other_data import OtherData
from avuc.study.recipe.portable import portable_tables
from avuc.study.recipe.tables import Location, build
from avuc.study.recipe.toml import document

T = TypeVar("T")

# objectives are stored without default values, so this is `beta` if it is missing
DEFAULT_BETA = 3.0


@dataclass(frozen=True)
class StoredStudy:
    """The table [study]."""

    name: str
    seeds: tuple[int, ...]
    samples: int
    shifts: tuple[str, ...]
    severities: tuple[int, ...]
    ood: tuple[str | OtherData, ...] = ()

    @property
    def others(self) -> tuple[OtherData, ...]:
        return tuple(OtherData.of(entry) for entry in self.ood)


@dataclass(frozen=True)
class StoredData:
    """The table [data]."""

    source: str
    evaluate_on_validation: bool = False


@dataclass(frozen=True)
class StoredNet:
    """The table [net]."""

    name: str


@dataclass(frozen=True)
class StoredMethod:
    """One table of [[methods]].

    Args:
        name: the method's name in the results.
        kind: kind of the method that is trained ("svi", …); empty if another method's model is reused.
        reuse_model: the method whose model is reused; empty if a model is trained.
        seeds: its own seeds; empty for those of the study, or of the model it reuses.
        objective: kind of the training objective ("plain", "avuc", …).
        beta: weight of the AvUC term.
        calibrator: kind of the calibrator; empty without one.
        samples: its own number of posterior samples; 0 for that of the study.
    """

    name: str
    kind: str = ""
    reuse_model: str = ""
    seeds: tuple[int, ...] = ()
    objective: str = "plain"
    beta: float = DEFAULT_BETA
    calibrator: str = ""
    samples: int = 0


@dataclass(frozen=True)
class StoredRecipe:
    """A recipe that avuc wrote into a study's file.

    >>> text = '''
    ... [study]
    ... name = "mine"
    ... seeds = [0]
    ... samples = 8
    ... shifts = ["fog"]
    ... severities = [1, 5]
    ... [data]
    ... source = "cifar10"
    ... [net]
    ... name = "resnet20"
    ... [[methods]]
    ... name = "SVI"
    ... method = {kind = "svi"}
    ... [[methods]]
    ... name = "SVI-TS"
    ... of = "SVI"
    ... calibrator = {kind = "temperature"}
    ... '''
    >>> recipe = StoredRecipe.parse(text)
    >>> [(method.name, method.reuse_model) for method in recipe.methods], recipe.missing(set())
    ([('SVI', ''), ('SVI-TS', 'SVI')], 8)
    """

    study: StoredStudy
    data: StoredData
    net: StoredNet
    methods: tuple[StoredMethod, ...]
    tables: Mapping[str, Any] = dataclasses.field(repr=False, compare=False, hash=False)

    @classmethod
    def parse(cls, text: str, source: str = "recipe") -> StoredRecipe:
        """Read a stored recipe, with old or new keys; `source` is the file, for messages.

        Keys that the report does not need are not checked.
        """
        try:
            tables = with_new_keys(tomllib.loads(text), source)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{source}: its recipe is not valid TOML ({error})") from error
        location = Location(source)
        methods = tables.get("methods")
        if not isinstance(methods, list) or not methods:
            raise (location / "methods").error("expected at least one [[methods]] table")
        stored = [_method(table, location / "methods" / number) for number, table in enumerate(methods)]
        recipe = cls(
            _build(StoredStudy, tables.get("study"), location / "study"),
            _build(StoredData, tables.get("data"), location / "data"),
            _build(StoredNet, tables.get("net"), location / "net"),
            tuple(stored),
            tables,
        )
        trained = {method.name for method in stored if method.kind}
        for method in stored:
            if not method.kind and method.reuse_model not in trained:
                raise (location / "methods" / method.name).error("has neither a method nor another method's model")
        return recipe

    def method(self, name: str) -> StoredMethod:
        return next(method for method in self.methods if method.name == name)

    def seeds(self, method: StoredMethod) -> tuple[int, ...]:
        """Return the seeds that a method is evaluated with."""
        if method.reuse_model:
            return self.seeds(self.method(method.reuse_model))
        return method.seeds or self.study.seeds

    def missing(self, done: Done) -> int:
        """Return how many evaluations the recipe asks for that are not in `done`."""
        sets = all_sets(self.study.shifts, self.study.severities, [other.name for other in self.study.others])
        return sum(
            (method.name, seed, test_set.shift, test_set.severity) not in done
            for method in self.methods
            for seed in self.seeds(method)
            for test_set in sets
        )

    def to_toml(self) -> str:
        """Return the recipe as text with today's keys, and file names without the folders of this machine."""
        return document(portable_tables(self.tables))


def _build(kind: type[T], table: Any, location: Location) -> T:
    """Build a dataclass from the keys of a table that it has fields for."""
    if not isinstance(table, Mapping):
        raise location.error("expected a table")
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return build(kind, {key: value for key, value in table.items() if key in names}, location)


def _method(table: Any, location: Location) -> StoredMethod:
    if not isinstance(table, Mapping):
        raise location.error("expected a table")
    plain = {key: table[key] for key in ("name", "reuse_model", "seeds", "samples") if key in table}
    for key, name in (("method", "kind"), ("calibrator", "calibrator"), ("objective", "objective")):
        value = table.get(key)
        kind = value.get("kind") if isinstance(value, Mapping) else value
        if kind is not None:
            plain[name] = kind
    objective = table.get("objective")
    if isinstance(objective, Mapping) and "beta" in objective:
        plain["beta"] = objective["beta"]
    return build(StoredMethod, plain, location)
