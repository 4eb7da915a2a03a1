"""A recipe as frozen dataclasses of plain values; `parser` reads it (docs/reference/recipes.md)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.core.text import did_you_mean
from avuc.methods import METHODS, SVI, Method, Objective
from avuc.study.own.code import objects
from avuc.study.recipe.keys import with_new_keys, with_old_keys
from avuc.study.recipe.names import slugs
from avuc.study.recipe.other_data import OtherData
from avuc.study.recipe.sections import CalibratorSpec, DataConfig, NetConfig, StudySettings, check_different
from avuc.study.recipe.toml import document
from avuc.training.settings import TrainSettings

# keys of [study], [data] and [net] that came after version 0.1.0, with their defaults
LATER: dict[str, Any] = {
    "options": {},
    "encode": "",
    "ignore_index": IGNORE_INDEX,
    "class_dim": 1,
    "class_names": (),
    "validation_split": "",
    "shift_size": 0,
    "train_first": False,
    "max_rows": 0,
    "batch_size": 0,
}


@dataclass(frozen=True)
class MethodConfig:
    """One table of [[methods]]: a model to train (`method`), or the model of another method (`reuse_model`).

    Args:
        name: the method's name in the results.
        method, objective, train: what is trained, and how.
        seeds: its own seeds; empty for those of the study.
        init_from: start with the trained weights of that method, which must be a vanilla one.
        skip_training: do not train; use the weights of `net.weights`, or those that a network of your own comes with.
        reuse_model: use the trained model of that method.
        calibrator: fitted on validation data and applied to every prediction.
        samples: its own number of posterior samples; 0 for that of the study.
        bn_images: measure the batch-norm statistics of every posterior sample on so many training images; 0 for the
            model's running averages. See `avuc.methods.batch_norm`.
    """

    name: str
    method: Method | None = None
    objective: Objective = field(default_factory=Objective)
    train: TrainSettings = field(default_factory=TrainSettings)
    seeds: tuple[int, ...] = ()
    init_from: str = ""
    skip_training: bool = False
    reuse_model: str = ""
    calibrator: CalibratorSpec | None = None
    samples: int = 0
    bn_images: int = 0

    def __post_init__(self) -> None:
        check_different("seeds", self.seeds)
        if (self.method is None) == (not self.reuse_model):
            raise InputError('give either method = …, or reuse_model = "NAME" for the model of another method')
        if self.reuse_model and self.calibrator is None and not self.samples and not self.bn_images:
            raise InputError(
                f"reuse_model = {self.reuse_model!r} alone repeats that method; add calibrator, samples or bn_images"
            )
        if self.samples < 0 or self.bn_images < 0:
            raise InputError(f"samples and bn_images must not be negative, found {self.samples} and {self.bn_images}")

    # names of version 0.1.0

    @property
    def of(self) -> str:
        return self.reuse_model

    @property
    def start(self) -> str:
        return self.init_from

    @property
    def as_given(self) -> bool:
        return self.skip_training


@dataclass(frozen=True)
class Recipe:
    """A whole study. `load_recipe` builds it from a file.

    Args:
        study, data, net, train: the tables of these names; `train` holds the settings of methods without their own.
        methods: one entry for each [[methods]] table.
        code_folder: the folder of the recipe's file, where modules of your own are looked for, too; "" for none. It is
            no part of the study.

    >>> from avuc.study import load_recipe
    >>> recipe = load_recipe("demo")
    >>> recipe.method("SVI-TS").reuse_model, recipe.seeds(recipe.method("SVI-TS"))
    ('SVI', (0,))
    """

    study: StudySettings
    data: DataConfig
    net: NetConfig
    train: TrainSettings
    methods: tuple[MethodConfig, ...]
    code_folder: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        by_name = {method.name: method for method in self.methods}
        if not by_name:
            raise InputError("methods: expected at least one [[methods]] table")
        if len(by_name) < len(self.methods):
            names = [method.name for method in self.methods]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"methods: two methods have the same name, {twice!r:.80}; rename one of them")
        if "" in by_name:
            raise InputError("methods: a method has an empty name; give it one")
        for method in self.methods:
            self._check(method, by_name)

    def _check(self, method: MethodConfig, by_name: dict[str, MethodConfig]) -> None:
        where = f"methods.{method.name}"
        for key in ("reuse_model", "init_from"):
            named = getattr(method, key)
            if named and (named not in by_name or by_name[named].method is None):
                trained = [name for name, other in by_name.items() if other.method is not None and name != method.name]
                raise InputError(f"{where}.{key}: no trained method {named!r}; {did_you_mean(named, trained)}")
        trains = (
            method.seeds
            or method.train != self.train
            or method.objective != Objective()
            or method.init_from
            or method.skip_training
        )
        if method.reuse_model and trains:
            raise InputError(
                f"{where}: seeds, train, objective, init_from, skip_training belong to {method.reuse_model!r}, whose "
                "model it reuses"
            )
        several = method.method is None or method.method.members > 1
        has_weights = bool(self.net.weights) or self.net.is_own
        if method.skip_training and (not has_weights or several or method.init_from):
            raise InputError(
                f"{where}.skip_training: needs net.weights or a network of your own, a single network and no init_from"
            )
        drawn = isinstance(by_name[method.reuse_model or method.name].method, SVI) and not self.data.stream
        if method.bn_images and not drawn:
            raise InputError(
                f"{where}.bn_images: needs a posterior over weights (svi, ll_svi, radial) and training images in "
                "memory (data.stream = false)"
            )
        if method.init_from:
            first = by_name[method.init_from]
            if first.method != METHODS["vanilla"]() or first.init_from:
                raise InputError(
                    f"{where}.init_from: {method.init_from!r} must be a vanilla method without init_from of its own"
                )
            if not set(self.seeds(method)) <= set(self.seeds(first)):
                raise InputError(
                    f"{where}.init_from: {method.init_from!r} is not trained with every seed of {method.name!r}"
                )

    def folder(self, name: str, seed: int) -> str:
        """Return the folder of a method with a seed, below `models` and `predictions`."""
        return f"{self._slugs[name]}-{seed}"

    @cached_property
    def _slugs(self) -> dict[str, str]:
        return slugs(method.name for method in self.methods)

    def shares_trunk(self, name: str) -> bool:
        """Return whether a method is not trained and another one freezes the trunk of the same network."""
        return self.method(name).skip_training and any(method.train.freeze_trunk for method in self.methods)

    def method(self, name: str) -> MethodConfig:
        return next(method for method in self.methods if method.name == name)

    row = method  # its name in version 0.1.0

    def seeds(self, method: MethodConfig) -> tuple[int, ...]:
        """Return the seeds a method is evaluated with."""
        if method.seeds:
            return method.seeds
        return self.seeds(self.method(method.reuse_model)) if method.reuse_model else self.study.seeds

    def samples(self, method: MethodConfig) -> int:
        """Return the posterior samples for each prediction of a method."""
        return method.samples or self.study.samples

    @property
    def trained(self) -> tuple[MethodConfig, ...]:
        """The methods that train a model of their own."""
        return tuple(method for method in self.methods if method.method is not None)

    def variants(self, name: str) -> tuple[MethodConfig, ...]:
        """Return the method that trains a model, and the methods that reuse it."""
        return tuple(method for method in self.methods if name in (method.name, method.reuse_model))

    def given_objects(self) -> dict[str, Any]:
        """Return the objects that were given from Python in place of names."""
        return objects(
            [
                self.net.name,
                self.data.source,
                self.data.encode,
                *self.study.shifts,
                *(o.path for o in self.study.others),
            ]
        )

    def tables(self) -> dict[str, Any]:
        """Return the recipe as TOML tables."""
        tables = {name: plain(getattr(self, name)) for name in ("study", "data", "net", "train")}
        for name in ("study", "data", "net"):  # keys that version 0.1.0 does not know are left out at their defaults
            tables[name] = {key: value for key, value in tables[name].items() if LATER.get(key, ...) != value}
        return {**tables, "methods": [self._method_table(method) for method in self.methods]}

    def to_toml(self) -> str:
        """Return the recipe as text; reading it gives an equal recipe. AvUC names its variant, also the printed one."""
        tables = self.tables()
        for table, method in zip(tables["methods"], self.methods, strict=True):
            if table.get("objective", {}).get("kind") == "avuc":
                table["objective"].setdefault("variant", str(method.objective.variant))
        return document(with_new_keys(tables))

    def stored_text(self) -> str:
        """Return the recipe as `study.sqlite` holds it: with the keys of version 0.1.0."""
        return document(with_old_keys(self.tables()))

    def _method_table(self, method: MethodConfig) -> dict[str, Any]:
        table: dict[str, Any] = {"name": method.name}
        if method.method is not None:
            table["method"] = kind_table(method.method)
            table["objective"] = changed_fields(method.objective, Objective())
        if method.train != self.train:
            table["train"] = changed_fields(method.train, self.train)
        if method.calibrator is not None:
            table["calibrator"] = {"kind": method.calibrator.kind, **dict(method.calibrator.params)}
        others = ("seeds", "init_from", "skip_training", "reuse_model", "samples", "bn_images")
        return table | {key: getattr(method, key) for key in others if getattr(method, key)}


def plain(config: Any) -> dict[str, Any]:
    """Return a dataclass as a table, without fields that are None, because TOML has no null."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    if isinstance(config, StudySettings):
        values["ood"] = tuple(plain(entry) if isinstance(entry, OtherData) else entry for entry in config.ood)
    return {name: value for name, value in values.items() if value is not None}


def changed_fields(config: Any, default: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from those of another one."""
    return {key: value for key, value in plain(config).items() if value != getattr(default, key)}


def kind_table(method: Method) -> dict[str, Any]:
    """Return a method as a table with its kind."""
    # fields that version 0.1.0 does not know are left out at their defaults
    values = [(k, v) for k, v in plain(method).items() if (k, v) != ("own_layers", False)]
    return {"kind": method.name} | {k: kind_table(v) if isinstance(v, Method) else v for k, v in values}
