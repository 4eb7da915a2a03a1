"""What a recipe consists of: frozen dataclasses of numbers and words; see docs/study.md."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from avuc.calibration import CALIBRATORS, Calibrator
from avuc.core.errors import InputError
from avuc.methods import METHODS, SVI, Method, Objective
from avuc.nets import NETS
from avuc.shifts import PAPER, SEVERITIES, SHIFTS, Profile
from avuc.study import toml
from avuc.study.names import slugs
from avuc.study.tables import did_you_mean
from avuc.training.settings import TrainSettings

__all__ = ["CalibratorSpec", "DataPart", "NetPart", "OtherData", "Recipe", "Row", "StudyPart", "plain"]

MOST = 2**63  # SQLite has no larger whole number


def _different(name: str, values: tuple[int, ...] | tuple[str, ...]) -> None:
    """Refuse a value that is given twice: it would be counted twice and computed once."""
    wrong = [value for value in values if isinstance(value, int) and not 0 <= value < MOST]
    if wrong or len(set(values)) < len(values):
        kind = "different whole numbers from 0 up" if name != "shifts" else "different names"
        raise InputError(f"{name}: expected {kind}, found {list(values)}")


@dataclass(frozen=True)
class OtherData:
    """Data of another kind.

    name: in the results. path: a file of images, or a folder (empty: the data set of that name). first: so many of its
    images, from the first one on (0: all).
    """

    name: str
    path: str = ""
    first: int = 0

    def __post_init__(self) -> None:
        if not self.name or self.first < 0:
            raise InputError(f"expected a name and first ≥ 0, found {self.name!r} and {self.first}")

    @staticmethod
    def of(entry: str | OtherData) -> OtherData:
        """
        >>> OtherData.of("data/svhn-test.npy").name
        'svhn-test'
        """
        if isinstance(entry, OtherData):
            return entry
        is_file = "." in Path(entry).name or "/" in entry
        return OtherData(Path(entry).stem, entry) if is_file else OtherData(entry)


@dataclass(frozen=True)
class StudyPart:
    """
    seeds: each method is trained once for each. samples: posterior draws for each prediction.
    shifts × severities: corruptions of the test images, with `profile` constants and `shift_seed`.
    ood: data of another kind: names of data sets, files of images, "photographs", or tables like `OtherData`.
    predictions: also keep every prediction as a file.
    precision: of the net's passes on a GPU while judging; elsewhere it is float32 always, and so are all metrics.
    """

    name: str = "study"
    seeds: tuple[int, ...] = (0,)
    samples: int = 128
    shifts: tuple[str, ...] = PAPER
    severities: tuple[int, ...] = SEVERITIES
    profile: Profile = "cifar"
    shift_seed: int = 0
    ood: tuple[str | OtherData, ...] = ()
    bins: int = 15
    predictions: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if not self.seeds:
            raise InputError("seeds: expected different whole numbers from 0 up, found []")
        _different("seeds", self.seeds)
        _different("shifts", self.shifts)
        _different("severities", self.severities)
        if self.samples < 1 or self.bins < 1:
            raise InputError(f"samples and bins must be at least 1, found {self.samples} and {self.bins}")
        for name in self.shifts:
            if name not in SHIFTS:
                raise InputError(f"shifts: {name!r} is none; {did_you_mean(name, SHIFTS)}")
        if not set(self.severities) <= set(SEVERITIES):
            raise InputError(f"severities: expected some of 1 … 5, found {list(self.severities)}")
        names = [other.name for other in self.others]
        if len(set(names)) < len(names):
            raise InputError(f"ood: two sets have the same name in {names}; give one another: {{name = …, path = …}}")

    @property
    def others(self) -> tuple[OtherData, ...]:
        return tuple(OtherData.of(entry) for entry in self.ood)


@dataclass(frozen=True)
class DataPart:
    """
    source, root: as `load_dataset` takes them. validation: how many training images are held out, by `split_seed`.
    train_images, test_images: fewer than there are (0: all). released: a folder of released corruption files, read
    instead of generated. stream: train from files, for sets that do not fit in memory; size: of their pictures.
    rehearsal: to choose between recipes without a look at the test data, which stay closed: temperatures and thresholds
    are learned on one half of the held-out images, and the other half stands for the test images.
    """

    source: str = "mnist5k"
    root: str = ""
    validation: int = 5000
    split_seed: int = 0
    stratified: bool = False
    train_images: int = 0
    test_images: int = 0
    released: str = ""
    rehearsal: bool = False
    stream: bool = False
    size: int = 0
    workers: int = 0
    verify: bool = True

    def __post_init__(self) -> None:
        if self.validation < 1:
            raise InputError("validation: temperatures and thresholds are learned there; expected at least 1 image")
        if self.rehearsal and (self.stream or self.released or self.validation < 2):
            raise InputError("rehearsal: needs two held-out images or more, in memory, and shifts made from them")
        for name in ("train_images", "test_images", "size", "workers", "split_seed"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, found {getattr(self, name)}")


@dataclass(frozen=True)
class NetPart:
    """
    width, hidden, mean, std: where the net has them (0 or empty: its own). weights: a file of trained weights to start
    from, .safetensors or a state_dict saved by torch.
    """

    name: str = "resnet20"
    width: int = 0
    hidden: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    weights: str = ""

    def __post_init__(self) -> None:
        if self.name not in NETS:
            raise InputError(f"name: no net {self.name!r}; {did_you_mean(self.name, NETS)}")

    @property
    def options(self) -> dict[str, Any]:
        chosen = {name: getattr(self, name) for name in ("width", "hidden", "mean", "std")}
        return {name: value for name, value in chosen.items() if value}


@dataclass(frozen=True)
class CalibratorSpec:
    """A calibrator by its name in CALIBRATORS and the arguments that differ from its defaults."""

    kind: str
    params: tuple[tuple[str, Any], ...] = ()

    def make(self) -> Calibrator:
        return CALIBRATORS[self.kind](**dict(self.params))


@dataclass(frozen=True)
class Row:
    """One line of the results: a model that is trained (`method`), or another row's model (`of`) read differently.

    start: begin with the trained weights of that row (a vanilla one). as_given: do not train, take the weights of
    `net.weights` as they are. samples: draws, where not the study's. bn_images: each draw's batch normalisation is
    measured again on so many training images (`avuc.methods.batch_norm`; 0: the model's running averages).
    """

    name: str
    method: Method | None = None
    objective: Objective = field(default_factory=Objective)
    train: TrainSettings = field(default_factory=TrainSettings)
    seeds: tuple[int, ...] = ()
    start: str = ""
    as_given: bool = False
    of: str = ""
    calibrator: CalibratorSpec | None = None
    samples: int = 0
    bn_images: int = 0

    def __post_init__(self) -> None:
        _different("seeds", self.seeds)
        if (self.method is None) == (not self.of):
            raise InputError('give either method = …, or of = "ROW" for another row\'s model')
        if self.of and self.calibrator is None and not self.samples and not self.bn_images:
            raise InputError(f"of = {self.of!r} alone repeats that row; add calibrator, samples or bn_images")
        if self.samples < 0 or self.bn_images < 0:
            raise InputError(f"samples and bn_images must not be negative, found {self.samples} and {self.bn_images}")


@dataclass(frozen=True)
class Recipe:
    study: StudyPart
    data: DataPart
    net: NetPart
    train: TrainSettings
    methods: tuple[Row, ...]

    def __post_init__(self) -> None:
        rows = {row.name: row for row in self.methods}
        if not rows:
            raise InputError("methods: expected at least one [[methods]] table")
        if len(rows) < len(self.methods):
            names = [row.name for row in self.methods]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"methods: two rows have the same name, {twice!r:.80}; give one of them another")
        if "" in rows:
            raise InputError("methods: a row has an empty name; give it one")
        for row in self.methods:
            for key in ("of", "start"):
                named = getattr(row, key)
                if named and (named not in rows or rows[named].method is None):
                    trained = [name for name, other in rows.items() if other.method is not None and name != row.name]
                    raise InputError(
                        f"methods.{row.name}.{key}: no trained row {named!r}; {did_you_mean(named, trained)}"
                    )
            own = row.seeds or row.train != self.train or row.objective != Objective() or row.start or row.as_given
            if row.of and own:
                raise InputError(f"methods.{row.name}: seeds, train, objective, start, as_given belong to {row.of!r}")
            if row.as_given and (not self.net.weights or row.method is None or row.method.members > 1 or row.start):
                raise InputError(f"methods.{row.name}.as_given: needs net.weights, one model and no start")
            drawn = isinstance(rows[row.of or row.name].method, SVI) and not self.data.stream
            if row.bn_images and not drawn:  # known before anything is trained
                raise InputError(
                    f"methods.{row.name}.bn_images: needs a posterior over weights (svi, ll_svi, radial) and training "
                    "images in memory (data.stream = false)"
                )
            if row.start:
                first = rows[row.start]
                if first.method != METHODS["vanilla"]() or first.start:
                    raise InputError(f"methods.{row.name}.start: {row.start!r} must be a vanilla row without a start")
                if not set(self.seeds(row)) <= set(self.seeds(first)):
                    raise InputError(f"methods.{row.name}.start: {row.start!r} is not trained with every seed of it")

    def folder(self, name: str, seed: int) -> str:
        """Where files of a row with a seed are, below `models` and `predictions`."""
        return f"{self._slugs[name]}-{seed}"

    @cached_property
    def _slugs(self) -> dict[str, str]:
        return slugs(row.name for row in self.methods)

    def row(self, name: str) -> Row:
        return next(row for row in self.methods if row.name == name)

    def seeds(self, row: Row) -> tuple[int, ...]:
        return row.seeds or (self.seeds(self.row(row.of)) if row.of else self.study.seeds)

    def samples(self, row: Row) -> int:
        return row.samples or self.study.samples

    @property
    def trained(self) -> tuple[Row, ...]:
        return tuple(row for row in self.methods if row.method is not None)

    def variants(self, name: str) -> tuple[Row, ...]:
        """The row of a model, and the rows that read it differently."""
        return tuple(row for row in self.methods if name in (row.name, row.of))

    def to_toml(self) -> str:
        """The recipe as text; reading it gives an equal recipe."""
        parts = {name: plain(getattr(self, name)) for name in ("study", "data", "net", "train")}
        return toml.document({**parts, "methods": [self._row_table(row) for row in self.methods]})

    def _row_table(self, row: Row) -> dict[str, Any]:
        table: dict[str, Any] = {"name": row.name}
        if row.method is not None:
            table["method"] = _kind_table(row.method)
            table["objective"] = _changed(row.objective, Objective())
        if row.train != self.train:
            table["train"] = _changed(row.train, self.train)
        if row.calibrator is not None:
            table["calibrator"] = {"kind": row.calibrator.kind, **dict(row.calibrator.params)}
        others = ("seeds", "start", "as_given", "of", "samples", "bn_images")
        return table | {key: getattr(row, key) for key in others if getattr(row, key)}


def plain(part: Any) -> dict[str, Any]:
    """A dataclass as a table; TOML has no word for None."""
    values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    if isinstance(part, StudyPart):
        values["ood"] = tuple(plain(one) if isinstance(one, OtherData) else one for one in part.ood)
    return {name: value for name, value in values.items() if value is not None}


def _changed(part: Any, usual: Any) -> dict[str, Any]:
    return {key: value for key, value in plain(part).items() if value != getattr(usual, key)}


def _kind_table(method: Method) -> dict[str, Any]:
    values = plain(method).items()
    return {"kind": method.name} | {k: _kind_table(v) if isinstance(v, Method) else v for k, v in values}
