"""`avuc.study.run`: a study from Python objects, with the same store, resume, report and engines as one of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from avuc.calibration import CALIBRATORS, Calibrator
from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.methods import METHODS, Method, Objective
from avuc.study.data.own import forget, load_own
from avuc.study.engines.run import run_study
from avuc.study.own.code import register
from avuc.study.recipe.config import Recipe, changed_fields, kind_table, plain
from avuc.study.recipe.load import to_stderr
from avuc.study.recipe.parser import notify_printed, parse_method
from avuc.study.recipe.sections import DataConfig, NetConfig, StudySettings
from avuc.study.recipe.tables import Location, build
from avuc.study.store.store import Store
from avuc.training.settings import TrainSettings

HELD_SPLIT = "validation"
HELD_OUT = 10  # one in ten training examples is held out, unless `validation` says how many


def run(
    *,
    methods: Mapping[str, Any],
    data: Any,
    net: str | nn.Module | Callable[..., nn.Module],
    shifts: Sequence[str | Callable[..., Any]] = (),
    encode: Callable[[list[str]], Any] | str = "",
    ignore_index: int = IGNORE_INDEX,
    class_dim: int = 1,
    class_names: Sequence[str] = (),
    out: str | Path = "out/study",
    train: TrainSettings | None = None,
    validation: int = 0,
    engine: str = "local",
    device: str = "auto",
    progress: bool = True,
    minutes: float | None = None,
    **study: Any,
) -> Store:
    """Run a study of your own objects, or continue it, and return the results.

    A function that can be imported is stored by its import path, so that other processes find it. Any other object
    lives in this process only: the same Python code resumes the study, and `avuc study` cannot.

    Args:
        methods: name in the results → a method (`SVI()`), its name ("svi"), or a dict with the keys of [[methods]] in a
            recipe, whose values may be objects: method, objective, calibrator, train, reuse_model, seeds, …. As in a
            recipe, the objective "avuc" without a variant is AvUC as printed; `Objective("avuc")` is "monotone".
        data: {"train": …, "test": …}, where "validation" is held out if it is there; a function `load(split)`; or the
            name of a data set. What they give is a `Dataset`, a pair (inputs, labels), a mapping of tensors with
            "labels", a torch Dataset or a DataLoader.
        net: a function `make_net(num_classes, …)`, a network (which is copied), or the name of one.
        shifts: functions `shift(batch, severity, generator)` and names; default none.
        encode: for sentences, a function from a list of str to what the network takes; default: none.
        ignore_index: label of pixels or tokens without a label; default −100.
        class_dim: dimension of the classes in the network's output; default 1.
        class_names: names of the classes, if the data do not know them; default: none.
        out: folder of the study; default "out/study".
        train: settings of the training; default `TrainSettings()`.
        validation: training examples to hold out; default 0: a tenth of them.
        engine, device, progress, minutes: as in `run_study`.
        **study: keys of [study] in a recipe: name, seeds, samples, severities, ood (also functions as for `data`), ….

    >>> import tempfile, torch
    >>> from avuc.methods import Vanilla
    >>> images, labels = torch.randint(256, (40, 4, 4, 1), dtype=torch.uint8), torch.arange(40) % 2
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = run(
    ...         methods={"plain": Vanilla(), "TS": {"reuse_model": "plain", "calibrator": "temperature"}},
    ...         data={"train": (images[:30], labels[:30]), "test": (images[30:], labels[30:])},
    ...         net=lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes)),
    ...         train=TrainSettings(epochs=1, milestones=(), factors=(), pad=0),
    ...         out=folder, device="cpu", progress=False,
    ...     )
    ...     len(store.done())
    ...     store.close()
    4
    """
    forget()
    parts = Parts(data, net, shifts, encode, ignore_index, class_dim, validation, tuple(class_names))
    recipe = recipe_of(methods, parts, train or TrainSettings(), study)
    return run_study(recipe, out, engine=engine, device=device, progress=progress, minutes=minutes)


class Parts(NamedTuple):
    """The user's own parts of a study; see `run`."""

    data: Any
    net: Any
    shifts: Sequence[Any] = ()
    encode: Any = ""
    ignore_index: int = IGNORE_INDEX
    class_dim: int = 1
    validation: int = 0
    class_names: tuple[str, ...] = ()


def recipe_of(methods: Mapping[str, Any], parts: Parts, train: TrainSettings, study: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a study of objects; arguments as in `run`."""
    location = Location("avuc.study.run")
    if not isinstance(methods, Mapping):
        raise (location / "methods").error(f"expected names and methods, found a {type(methods).__name__}")
    names: list[str] = []
    for shift in parts.shifts:
        names.append(shift if isinstance(shift, str) else register(shift, "shift", names))
    shifted, table = list(names), dict(study)
    if isinstance(table.get("ood"), list | tuple):
        table["ood"] = [_name(source, "ood", names) if callable(source) else source for source in table["ood"]]
    settings = build(StudySettings, {**table, "shifts": shifted}, location)
    data, net, encode = (_name(getattr(parts, part), part, names) for part in ("data", "net", "encode"))
    config = DataConfig(
        source=data,
        validation=max(1, parts.validation),
        encode=encode,
        ignore_index=parts.ignore_index,
        class_names=parts.class_names,
        validation_split=HELD_SPLIT if isinstance(parts.data, Mapping) and HELD_SPLIT in parts.data else "",
    )
    if not parts.validation and not config.validation_split:
        if not config.is_own:
            raise (location / "validation").error("say how many training examples are held out")
        config = replace(config, validation=max(1, len(load_own(config, "train")) // HELD_OUT))
    network = NetConfig(name=net, class_dim=parts.class_dim)
    configs = [
        parse_method({"name": name, **_table(value, location / "methods" / name)}, train, location / "methods", number)
        for number, (name, value) in enumerate(methods.items())
    ]
    recipe = Recipe(settings, config, network, train, tuple(configs))
    words = [{**value, "name": name} for name, value in methods.items() if isinstance(value, Mapping)]
    notify_printed({"methods": words}, location, to_stderr)
    return recipe


def _name(value: Any, part: str, taken: list[str]) -> str:
    """Return a recipe's name for the data, the network or the encoding function, and add it to the names taken."""
    if isinstance(value, str):
        return value
    if not callable(value) and not (part == "data" and isinstance(value, Mapping)):
        expected = "{'train': …, 'test': …}, a function of a split" if part == "data" else "a function"
        raise InputError(f"avuc.study.run: {part}: expected {expected} or a name, found a {type(value).__name__}")
    taken.append(register(value, part, taken))
    return taken[-1]


def _table(value: Any, location: Location) -> dict[str, Any]:
    """Return one entry of `methods` as a table of [[methods]], with a table in place of every object."""
    if isinstance(value, Method | str):
        value = {"method": value}
    if not isinstance(value, Mapping):
        raise location.error(f"expected a method, its name or a dict, found a {type(value).__name__}")
    table = {key: item for key, item in value.items() if item is not None}
    for key, item in table.items():
        if isinstance(item, Method):
            if METHODS.get(item.name) is not type(item):
                raise location.error(f"{type(item).__name__} is none of the methods {', '.join(METHODS)}")
            table[key] = kind_table(item)
        elif isinstance(item, Objective):
            table[key] = changed_fields(item, Objective())
        elif isinstance(item, TrainSettings):
            table[key] = plain(item)
        elif isinstance(item, Calibrator):
            kinds = [name for name, kind in CALIBRATORS.items() if kind is type(item)]
            if not kinds:
                raise location.error(f"{type(item).__name__} is none of the calibrators {', '.join(CALIBRATORS)}")
            default = CALIBRATORS[kinds[0]]().get_params()
            changed = {name: param for name, param in item.get_params().items() if param != default[name]}
            table[key] = {"kind": kinds[0], **changed}
    return table
