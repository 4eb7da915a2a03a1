"""Try the user's own code and files before anything is trained, so that a mistake costs seconds."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Collection

import torch

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data import UNLABELLED
from avuc.data.digest import digest_of, shapes_of
from avuc.data.tensors import MemoryData, TensorData
from avuc.study.data.own import check_repeatable
from avuc.study.data.sets import StudyData
from avuc.study.data.shifted import shifted_data
from avuc.study.grid import CLEAN, VALIDATION, Plan, TestSet
from avuc.study.own.code import bound, find, is_path, search_recipe_folder, takes
from avuc.study.own.digest import begin, code_prints
from avuc.study.recipe.config import Recipe
from avuc.study.trial.net import FEW, in_memory, try_net
from avuc.study.trial.overlap import check_overlap
from avuc.study.trial.sources import try_sources

MOST_NAMES = 5  # classes that a line names
IMAGE_DIMS = 4  # (N, channels, height, width)
# data of a study, by whether they are `TensorData`
KINDS = {False: "uint8 images with one label each", True: "other tensors"}
VOID = 255  # what data sets of segmentation often write where there is no label
# a shift is tried on so many examples, and on fewer if that takes more seconds or more numbers in memory
MOST_EXAMPLES, MOST_SECONDS, MOST_NUMBERS = 4096, 3.0, 1 << 28


def try_own_code(recipe: Recipe, device: str = "cpu", sets: Collection[TestSet] | None = None) -> dict[str, str]:
    """Load the data, make the network, take one step of every method and apply every shift.

    An error is one line that names the key of the recipe. Without own code, only the files of shifts and of
    out-of-distribution data are opened.

    Args:
        recipe: the study.
        device: where the methods take their step.
        sets: the sets that have evaluations left, whose files are opened; None: all.

    Returns:
        digests of the data and of the code, by name, for `Store.check_data`.
    """
    begin()
    sets = Plan(recipe).sets if sets is None else sets
    search_recipe_folder(recipe.code_folder)
    study, net = recipe.study, recipe.net
    own_shifts = [name for name in study.shifts if is_path(name)]
    for other in study.others:
        if is_path(other.path):
            offered = {"split": "test"} | recipe.data.offered
            bound(find(other.path, "study.ood"), offered, {}, "study.ood", other.path)
    data = StudyData(recipe, torch.device("cpu"))
    if not (recipe.data.is_own or net.is_own or own_shifts or study.shift_size):
        try_sources(recipe, data, sets)
        return {}
    for name in own_shifts:
        find(name, "study.shifts")
    if net.is_own:
        find(net.name, "net.name")
    if recipe.data.is_own:
        _check_data(data)
        _note_augmentation(recipe, data.validation)
        tested = () if recipe.data.evaluate_on_validation else ("test",)
        for split in filter(None, ("train", recipe.data.validation_split, *tested)):
            check_repeatable(recipe.data, split)
    shifted = _try_shifts(recipe, data.test if recipe.data.is_own else data.validation)
    try_sources(recipe, data, sets)
    try_net(recipe, data, shifted, torch.device(device))
    prints = code_prints([net.name, *own_shifts])
    if recipe.data.is_own:  # published data are checked with the results, after their test images are decoded
        prints |= data.training_prints() | data.prints(VALIDATION) | data.prints(CLEAN)
    return prints


def _try_shifts(recipe: Recipe, data: MemoryData) -> dict[tuple[str, int], MemoryData]:
    """Apply every shift to a few examples, and the user's own shifts to many; return the few, shifted."""
    study = recipe.study
    few = data.subset(range(min(FEW, len(data))))
    severities = sorted(study.severities)
    shifted: dict[tuple[str, int], MemoryData] = {}
    # the corruptions of avuc are tested already; a few images show whether they fit the data
    for name in study.shifts if not recipe.data.corruptions_dir else ():
        for severity in severities if is_path(name) else severities[:1]:
            began = time.monotonic()
            shifted[name, severity] = _try_shift(recipe, few, name, severity)
            seconds = (time.monotonic() - began) / 2
        if is_path(name) and severities:
            _try_many(recipe, data, name, severities[-1], seconds)
        if is_path(name) and len(severities) > 1 and not takes(find(name, "study.shifts"), "severity"):
            print(
                f"avuc: study.shifts: {name} takes no 'severity', so it does the same at every severity",
                file=sys.stderr,
            )
    return shifted


def _try_shift(recipe: Recipe, few: MemoryData, name: str, severity: int) -> MemoryData:
    study = recipe.study
    chosen = study.shift_seed, study.profile, study.shift_size
    results = [shifted_data(few, name, severity, *chosen, recipe.data.offered) for _ in range(1 + is_path(name))]
    # the set is generated again for later methods and after an interruption, and must then be the same
    if digest_of(results[0]) != digest_of(results[-1]):
        raise InputError(
            f"study.shifts: {name} returns something else if it is called again with the same arguments; take random "
            "numbers from its argument 'generator', and keep no state between calls"
        )
    return results[0]


def _try_many(recipe: Recipe, data: MemoryData, name: str, severity: int, seconds: float) -> None:
    """Apply a shift to as many examples as take little time and memory: it may fail on large batches only.

    Args:
        recipe: the study.
        data: the examples.
        name, severity: the shift.
        seconds: what it took on `FEW` examples.
    """
    size = recipe.study.shift_size
    numbers = sum(map(math.prod, shapes_of(data).values()))
    affordable = int(FEW * MOST_SECONDS / max(seconds, 1e-6)), MOST_NUMBERS // max(1, numbers, 3 * size * size)
    many = min(len(data), MOST_EXAMPLES, *affordable)
    if many <= FEW:
        return
    chosen = recipe.study.shift_seed, recipe.study.profile, size
    try:
        shifted_data(data.subset(range(many)), name, severity, *chosen, recipe.data.offered)
    except InputError as error:
        raise InputError(f"{error}; it failed on {many} examples and not on {FEW}") from error


def _check_data(data: StudyData) -> None:
    source, train, test = data.config.source, data.validation, data.test
    if shapes_of(train) != shapes_of(test):
        raise InputError(
            f"data.source: {source}: one training example is {shapes_of(train)}, one test example {shapes_of(test)}; "
            "give both one shape"
        )
    if train.num_classes != test.num_classes:
        raise InputError(
            f"data.source: {source}: {train.num_classes} classes in the training data and {test.num_classes} in the "
            "test data; give both the same"
        )
    if type(train) is not type(test):
        kinds = [KINDS[isinstance(part, TensorData)] for part in (train, test)]
        raise InputError(
            f"data.source: {source}: the training data are {kinds[0]}, the test data {kinds[1]}; return the same for "
            "both splits"
        )
    for part, name in ((train, "held-out"), (test, "test")):
        if missing := int((part.labels == UNLABELLED).sum()):
            raise InputError(
                f"data.source: {source}: {missing} {name} labels are {UNLABELLED}, which is no class; leave these "
                "examples out, or give positions without a label data.ignore_index"
            )
        if not part.num_labelled:
            raise InputError(f"data.source: {source}: none of the {len(part)} {name} examples has a label")
    _check_unused_classes(source, data)
    if not data.config.evaluate_on_validation:
        check_overlap(source, in_memory(data.train(1, 0)), train, test)


def _note_augmentation(recipe: Recipe, data: MemoryData) -> None:
    """Print a line if crops and flips are set and the data are images as floats, to which they are not applied."""
    inputs = data.inputs
    are_floats = isinstance(inputs, torch.Tensor) and inputs.is_floating_point() and inputs.ndim == IMAGE_DIMS
    trained = [method.train for method in recipe.methods if method.method is not None and not method.skip_training]
    if are_floats and any(settings.pad or settings.flip for settings in trained):
        print(
            f"avuc: data.source: {recipe.data.source}: train.pad and train.flip are for uint8 images, and these are "
            "floats: they are trained without crops and flips (pad = 0, flip = false leave this line out)",
            file=sys.stderr,
        )


def _check_unused_classes(source: str, data: StudyData) -> None:
    """Print a line if a class has no example to learn from; refuse a single class, labels from 1, and pixels of 255."""
    parts, names = (in_memory(data.train(1, 0)), data.validation), data.validation.class_names
    used = torch.cat([part.labels.unique() for part in parts]).tolist()
    unused = sorted(set(range(data.validation.num_classes)).difference(used))
    if len(set(used) - {IGNORE_INDEX, UNLABELLED}) < 2:
        raise InputError(
            f"data.source: {source}: every training example has the label {max(used)}; a classifier needs at least two "
            "classes, 0 and 1"
        )
    counted = not names and data.config.ignore_index != 0 and data.validation.labels.ndim == 1
    if counted and unused == [0] and not bool((data.test.labels == 0).any()):
        raise InputError(
            f"data.source: {source}: the labels are 1 … {max(used)}, and classes are counted from 0; subtract 1, or "
            "set data.class_names if there is a class 0"
        )
    if data.validation.labels.ndim > 1 and not names and VOID - 1 in unused and max(used) == VOID:
        raise InputError(
            f"data.source: {source}: the labels are 0 … {max(set(used) - {VOID}, default=0)} and {VOID}, which often "
            f"means that there is no label; set data.ignore_index = {VOID}, or data.class_names if it is a class"
        )
    if unused:
        listed = ", ".join(names[label] if names else str(label) for label in unused[:MOST_NAMES])
        more = ", …" if len(unused) > MOST_NAMES else ""
        print(
            f"avuc: data.source: {source}: {len(unused)} of {data.validation.num_classes} classes have no training "
            f"example ({listed}{more}); labels are counted from 0, without gaps",
            file=sys.stderr,
        )
