"""The sections of a recipe: frozen dataclasses for the tables [study], [data] and [net], and for calibrators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from avuc.calibration import CALIBRATORS, Calibrator
from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.nets import NETS
from avuc.shifts import PAPER, SEVERITIES, SHIFTS, Profile
from avuc.shifts.text import TEXT_SHIFTS
from avuc.study.own.code import is_path, unknown
from avuc.study.own.text_file import is_text_file
from avuc.study.recipe.other_data import OtherData

Options = Mapping[str, Any]
MOST = 2**63  # SQLite has no larger whole number


def check_different(name: str, values: tuple[int, ...] | tuple[str, ...]) -> None:
    """Refuse duplicate values, which would be counted twice and computed once."""
    wrong = [value for value in values if isinstance(value, int) and not 0 <= value < MOST]
    if wrong or len(set(values)) < len(values):
        kind = "different whole numbers from 0 up" if name not in ("shifts", "class_names") else "different names"
        raise InputError(f"{name}: expected {kind}, found {list(values)}")


def plain_options(name: str, value: Any) -> Any:
    """Return options as TOML would give them back: tables, lists, text, numbers and truth values."""
    if isinstance(value, Mapping):
        return {str(key): plain_options(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_options(name, item) for item in value]
    if not isinstance(value, str | int | float | bool):
        raise InputError(f"{name}: expected text, a number, true, false or a list, found {type(value).__name__}")
    return value


@dataclass(frozen=True)
class StudySettings:
    """The table [study].

    Args:
        name: title of the study.
        seeds: every method is trained once with each seed.
        samples: posterior samples for each prediction.
        shifts, severities: corruptions of the test data: names, import paths or files of sentences; every shift is
            applied at every severity.
        profile: whose corruption constants are used, "cifar" or "imagenet".
        shift_seed: seed of the corruptions.
        shift_size: images are scaled to this height and width before a shift changes them, and the network gets them
            in that size; 0: as they are. For networks that scale small images up themselves.
        train_first: on a GPU, train all models before the first evaluation, so that each shifted set is generated only
            once; by default the models of one group are evaluated before the next group is trained.
        ood: out-of-distribution data: names of data sets, files of images, "photographs", or `OtherData`.
        bins: bins of the calibration errors.
        predictions: also save every prediction to a file.
        precision: of the network during evaluation on a GPU. On a CPU, and for all metrics, it is always float32.
        max_rows: with a label for each pixel or token, metrics and calibrators use so many positions of a set at most,
            spread evenly over it; 0 for all. Mean IoU and PAvPU always use all.
        batch_size: rows in a batch of the evaluation; 0 for what suits the device. Results differ by rounding only.
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
    shift_size: int = 0
    train_first: bool = False
    max_rows: int = 0
    batch_size: int = 0

    def __post_init__(self) -> None:
        if not self.seeds:
            raise InputError("seeds: expected different whole numbers from 0 up, found []")
        check_different("seeds", self.seeds)
        check_different("shifts", self.shifts)
        check_different("severities", self.severities)
        if self.samples < 1 or self.bins < 1:
            raise InputError(f"samples and bins must be at least 1, found {self.samples} and {self.bins}")
        if self.shift_size < 0:
            raise InputError(f"shift_size must not be negative, found {self.shift_size}")
        if self.max_rows < 0:
            raise InputError(f"max_rows must not be negative, found {self.max_rows}; 0 for all")
        if self.batch_size < 0:
            raise InputError(f"batch_size must not be negative, found {self.batch_size}; 0 for what suits the device")
        for name in self.shifts:
            if not (name in SHIFTS or name in TEXT_SHIFTS or is_path(name) or is_text_file(name)):
                raise InputError(f"shifts: {unknown('shift', name, [*SHIFTS, *TEXT_SHIFTS])}")
        if not set(self.severities) <= set(SEVERITIES):
            raise InputError(f"severities: expected some of 1 … 5, found {list(self.severities)}")
        names = [other.name for other in self.others]
        if len(set(names)) < len(names):
            raise InputError(f"ood: two sets have the same name in {names}; rename one: {{name = …, path = …}}")

    @property
    def others(self) -> tuple[OtherData, ...]:
        return tuple(OtherData.of(entry) for entry in self.ood)


@dataclass(frozen=True)
class DataConfig:
    """The table [data].

    Args:
        source, root: the data set, as `load_dataset` takes it; or the import path of a function of your own, which gets
            `root` if it takes an argument of that name.
        options: arguments of that function.
        encode: import path of a function of your own from a list of sentences to what the network takes; for a source
            that gives sentences.
        ignore_index: label of pixels or tokens without a label, in a source of your own.
        class_names: names of the classes, if a source of your own does not know them. Tags O, B-x and I-x give the
            entity-level F1.
        validation: how many training images are held out.
        validation_split: the split of your own function that is held out instead, such as "val"; empty for none.
        split_seed, stratified: how they are chosen.
        train_images, test_images: use fewer images than there are; 0 for all.
        corruptions_dir: folder of published corrupted images, which are read instead of generated.
        evaluate_on_validation: compare recipes without looking at the test data. Temperatures and thresholds are
            learned on one half of the held-out images, and the other half is evaluated in place of the test images.
        stream, size, workers: train from image files, for data sets that do not fit in memory; size of the images and
            number of reading processes.
        verify: check that files are the published ones.
    """

    source: str = "mnist5k"
    root: str = ""
    validation: int = 5000
    split_seed: int = 0
    stratified: bool = False
    train_images: int = 0
    test_images: int = 0
    corruptions_dir: str = ""
    evaluate_on_validation: bool = False
    stream: bool = False
    size: int = 0
    workers: int = 0
    verify: bool = True
    encode: str = ""
    ignore_index: int = IGNORE_INDEX
    options: Options = field(default_factory=dict)
    validation_split: str = ""
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", plain_options("options", self.options))
        if (self.options or self.encode) and not self.is_own:
            raise InputError("options and encode are for a source of your own, module:function; use the keys of [data]")
        if self.class_names and not self.is_own:
            raise InputError("class_names are for a source of your own, module:function; leave them out")
        check_different("class_names", self.class_names)
        if self.encode and not is_path(self.encode):
            raise InputError(f"encode: expected module:function, found {self.encode!r}")
        if self.is_own and (self.stream or self.size or self.workers):
            raise InputError(
                "stream, size and workers are for the data sets of avuc; what your own function needs goes into "
                "data.options"
            )
        if self.validation_split and not self.is_own:
            raise InputError("validation_split is for a source of your own, module:function; use validation = COUNT")
        if self.validation_split in ("train", "test"):
            raise InputError(f"validation_split: {self.validation_split!r} is used already; name a third split")
        if self.validation < 1:
            raise InputError("validation: temperatures and thresholds are learned there; expected at least 1 image")
        if self.evaluate_on_validation and (self.stream or self.corruptions_dir or self.validation < 2):
            raise InputError(
                "evaluate_on_validation: needs validation ≥ 2, stream = false and no corruptions_dir: the held-out "
                "images are split in memory, and their shifts are generated"
            )
        for name in ("train_images", "test_images", "size", "workers", "split_seed"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, found {getattr(self, name)}")

    @property
    def is_own(self) -> bool:
        """Whether the data come from a function of the user's."""
        return is_path(self.source)

    @property
    def offered(self) -> dict[str, Any]:
        """Arguments that the user's `encode` and shifts get if they have these parameters: `root` and the options."""
        return ({"root": self.root} if self.root else {}) | dict(self.options)

    # names of version 0.1.0

    @property
    def released(self) -> str:
        return self.corruptions_dir

    @property
    def rehearsal(self) -> bool:
        return self.evaluate_on_validation


@dataclass(frozen=True)
class NetConfig:
    """The table [net].

    Args:
        name: a network of `avuc.nets.NETS`, or the import path of a function of your own that returns one.
        width, hidden, mean, std: its options, if it has them; 0 or empty for its defaults.
        options: other arguments of the function.
        class_dim: dimension of the classes in the output of your own network, if there is a label for each pixel or
            token: 1 for (N, C, …), −1 for the (N, T, C) of language models.
        weights: file of trained weights to start from, .safetensors or a state_dict saved by torch.
    """

    name: str = "resnet20"
    width: int = 0
    hidden: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    weights: str = ""
    class_dim: int = 1
    options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", plain_options("options", self.options))
        if self.name not in NETS and not self.is_own:
            raise InputError(f"name: {unknown('net', self.name, NETS)}")

    @property
    def is_own(self) -> bool:
        """Whether the network comes from a function of the user's."""
        return is_path(self.name)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the function that makes the network."""
        chosen = {name: getattr(self, name) for name in ("width", "hidden", "mean", "std")}
        return {name: value for name, value in chosen.items() if value} | dict(self.options)


@dataclass(frozen=True)
class CalibratorSpec:
    """A calibrator by its name in CALIBRATORS, and the arguments that differ from its defaults."""

    kind: str
    params: tuple[tuple[str, Any], ...] = ()

    def make(self) -> Calibrator:
        """Return an unfitted calibrator."""
        return CALIBRATORS[self.kind](**dict(self.params))
