"""The data of a study from a function of the user's: `load(split, …)` returns them in one of the usual forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from avuc.core.errors import InputError
from avuc.data import UNLABELLED, Dataset
from avuc.prediction.arguments import Arguments, tensor_of
from avuc.prediction.data import DATASET_BATCH, Loaded, source_of
from avuc.study.own_code import bound, described, find
from avuc.study.sections import DataConfig

EXPECTED = (
    "an avuc Dataset, a pair (inputs, labels) of tensors, a mapping of tensors with 'labels', a torch Dataset or a "
    "DataLoader"
)
# what was loaded last: the check before a study and the study itself load the same
_LOADED: dict[tuple[str, str, str], Dataset] = {}


def load_own(config: DataConfig, split: str) -> Dataset:
    """Return what the user's function `data.source` gives for a split, checked and in memory.

    A DataLoader is read once, in the order of its dataset.

    Args:
        config: the table [data].
        split: "train" or "test".
    """
    # of two objects with one name, each has data of its own
    key = (config.source, f"{config.options!r} {id(find(config.source, 'data.source'))}", split)
    if key not in _LOADED:
        for other in [other for other in _LOADED if other[:2] != key[:2]]:
            del _LOADED[other]
        _LOADED[key] = _load(config, split)
    return _LOADED[key]


def forget() -> None:
    """Drop what was loaded; the next call loads it again."""
    _LOADED.clear()


def _load(config: DataConfig, split: str) -> Dataset:
    where = f"data.source: {config.source}"
    found = call_load(config.source, split, config.options)
    if isinstance(found, Dataset):
        return found
    inputs, labels = _collected(found, f"{where} ({split})")
    classes = class_names(found)
    if split == "train":
        count = len(classes) or int(labels.max()) + 1 if len(labels) else 0
    else:
        train = load_own(config, "train")
        count, classes = train.num_classes, train.class_names
    if not (isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and inputs.ndim == 4 and labels.ndim == 1):
        given = f"{inputs.dtype} {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InputError(f"{where} ({split}): expected uint8 images (N, height, width, channels), found {given}")
    return Dataset(inputs, labels, count, f"{config.source} {split}", classes, f"from {config.source}")


def call_load(path: str, split: str, options: Mapping[str, Any]) -> Any:
    """Return what the user's function gives for a split. An object in its place has one entry for each split."""
    function = find(path, "data.source")
    if isinstance(function, Mapping):
        if split not in function:
            raise InputError(f"data: no {split!r} among {', '.join(map(repr, function))}; give 'train' and 'test'")
        return function[split]
    call = bound(function, {"split": split}, options, "data", path)
    # transforms and generated data that use torch's own random numbers are the same in every run
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            return call()
        except InputError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise InputError(f"data.source: {path}(split={split!r}) failed: {described(error)}") from error


def _collected(found: Any, where: str) -> tuple[Any, Tensor]:
    """Return the inputs (a tensor, or a mapping of tensors) and labels of data in one of the usual forms."""
    labels = None
    if isinstance(found, tuple | list) and len(found) == 2:
        found, labels = found
    if isinstance(found, DataLoader) and not isinstance(found.dataset, IterableDataset):
        found = DataLoader(
            found.dataset,
            batch_size=found.batch_size or DATASET_BATCH,
            collate_fn=found.collate_fn,
            num_workers=found.num_workers,
        )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            source = source_of(found, labels, None, None)
            parts = list(source) if isinstance(source, Loaded) else [source]
    except InputError as error:
        raise InputError(f"{where}: {error}; expected {EXPECTED}") from error
    except Exception as error:  # whatever the user's dataset raises
        raise InputError(f"{where}: reading it failed: {described(error)}") from error
    if any(part.labels is None for part in parts):
        raise InputError(f"{where}: there are no labels; expected {EXPECTED}")
    try:
        inputs = _joined([part.arguments for part in parts])
        targets = torch.cat([torch.as_tensor(part.labels) for part in parts])
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{where}: batches of different shapes ({described(error)}); pad to one length") from error
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise InputError(f"{where}: labels must be class indices, found {targets.dtype}; convert them with .long()")
    return inputs, targets.long()


def _joined(parts: list[Arguments]) -> Any:
    first = parts[0]
    if first.kwargs and not first.args:
        return {name: torch.cat([tensor_of(part.kwargs[name]) for part in parts]) for name in first.kwargs}
    if len(first.args) != 1 or first.kwargs:
        raise InputError(
            "several positional inputs; use a mapping from the names of the network's arguments to tensors"
        )
    return torch.cat([tensor_of(part.args[0]) for part in parts])


def class_names(data: Any) -> tuple[str, ...]:
    """Return the names of the classes that torchvision's datasets have as `classes`."""
    data = getattr(data, "dataset", data)
    names = getattr(data, "classes", ())
    plain = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if plain else ()


def unlabelled(data: Dataset) -> Tensor:
    """Return labels that mark all of the data as out-of-distribution."""
    return torch.full_like(data.labels, UNLABELLED)
