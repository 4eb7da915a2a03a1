"""Open the files of shifts and of out-of-distribution data before anything is trained."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import torch

from avuc.core.errors import InputError, MissingExtra
from avuc.data import list_imagenet_c
from avuc.data.decode import AsIs
from avuc.data.folder import list_folder
from avuc.data.stream import in_memory
from avuc.shifts.archive import Archive
from avuc.study.data.sets import StudyData, check_outside_shape, outside_images
from avuc.study.grid import TestSet
from avuc.study.own.code import is_path
from avuc.study.own.text_file import is_text_file
from avuc.study.recipe.config import Recipe
from avuc.study.recipe.other_data import OtherData


def try_sources(recipe: Recipe, data: StudyData, sets: Container[TestSet]) -> None:
    """Raise an `InputError` that names the key of the recipe if a file is missing or its images do not fit.

    Args:
        recipe: the study.
        data: its data. If they cannot be loaded, shapes are not compared: the training says at once what is missing.
        sets: the sets that have evaluations left. Files of other sets are not opened: a study that is resumed without
            them can finish.
    """
    if recipe.data.corruptions_dir:
        _try_corruptions(recipe, sets)
    for other in recipe.study.others:
        if TestSet(f"ood:{other.name}") not in sets:
            continue
        if is_path(other.path) or is_text_file(other.path):
            # twice: the data are loaded again after other sets
            data.prints(TestSet(f"ood:{other.name}"))
            data.load_again(TestSet(f"ood:{other.name}"))
        elif other.name != "photographs" or other.path:
            _try_images(other, data)


def _try_corruptions(recipe: Recipe, sets: Container[TestSet]) -> None:
    folder, study = recipe.data.corruptions_dir, recipe.study
    needed = [
        [(name, severity) for severity in study.severities if TestSet(name, severity) in sets] for name in study.shifts
    ]
    if not any(needed):
        return
    try:
        if recipe.data.source == "imagenet":
            for severities in needed:
                for name, severity in severities[:1]:
                    list_imagenet_c(folder, corruption=name, severity=severity, verify=False)
            return
        archive = Archive(folder)
        for severities in needed:
            for name, severity in severities:
                archive.images(name, severity)
    except InputError as error:
        raise InputError(f"data.corruptions_dir: {error}") from error


def _try_images(other: OtherData, data: StudyData) -> None:
    source = other.path or other.name
    if Path(source).is_dir():
        try:  # one picture shows the size: decoding all takes minutes
            images = in_memory(list_folder(source).subset(torch.arange(1)), AsIs("RGB")).images
        except InputError as error:
            raise InputError(f"study.ood: {error}") from error
    else:
        images = outside_images(source)
    if data.config.source == "imagenet":
        return  # decoding its pictures takes minutes
    try:
        shape = data.image_shape
    except (InputError, MissingExtra, OSError):
        return
    check_outside_shape(source, images, shape)
