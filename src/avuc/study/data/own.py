"""Load the data of a study with the user's function: `load(split, …)` returns them in one of the usual forms."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, uint8
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data import UNLABELLED, Dataset
from avuc.data.digest import digest_of
from avuc.data.tensors import Encode, MemoryData, TensorData
from avuc.prediction.data import DATASET_BATCH
from avuc.prediction.in_memory import EMPTY, as_memory_data, collected, in_order
from avuc.study.data.reading import MOST_SECONDS, check_workers, is_small
from avuc.study.own.code import ANY_ERROR, bound, described, find, seeded
from avuc.study.recipe.sections import DataConfig

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
MOST_CLASSES = 10  # for each label
# the data loaded last, because the check before a study and the study itself load the same data
_LOADED: dict[tuple[str, str, str], MemoryData] = {}
_SECONDS: dict[tuple[str, str, str], float] = {}  # what loading them took


def load_own(config: DataConfig, split: str, num_classes: int = 0) -> MemoryData:
    """Return the data that the user's function `data.source` gives for a split, checked and in memory.

    A DataLoader is read once, in the order of its dataset; a sampler that chooses examples is kept.

    Args:
        config: the table [data].
        split: "train", "test" or `config.validation_split`.
        num_classes: number of classes of the study, for out-of-distribution data, whose labels are not used; 0 for the
            study's own data.
    """
    if num_classes:
        return _load(config, split, num_classes)
    key = _key(config, split)
    if key not in _LOADED:
        for other in [other for other in _LOADED if other[:2] != key[:2]]:
            del _LOADED[other]
        began = time.monotonic()
        _LOADED[key] = _load(config, split, 0)
        _SECONDS[key] = time.monotonic() - began
    return _LOADED[key]


def _key(config: DataConfig, split: str) -> tuple[str, str, str]:
    # two objects may have the same name; the id keeps their data apart
    function = id(find(config.source, "data.source"))
    settings = (config.options, config.root, config.encode, config.ignore_index, config.class_names, function)
    return (config.source, repr(settings), split)


def forget() -> None:
    """Forget the loaded data; the next call loads them again."""
    _LOADED.clear()
    _SECONDS.clear()


def check_repeatable(config: DataConfig, split: str) -> None:
    """Refuse a function that returns other data at a second call; slow functions and large data are not tried.

    A study loads its data again after an interruption and in other processes, and must then get the same.

    Args:
        config: the table [data].
        split: the split to load again.
    """
    if isinstance(find(config.source, "data.source"), Mapping):
        return
    data = load_own(config, split)
    if _SECONDS[_key(config, split)] >= MOST_SECONDS or not is_small(data):
        return
    if digest_of(_load(config, split, 0, again=True)) != digest_of(data):
        raise not_repeatable(config, split)


def not_repeatable(config: DataConfig, split: str) -> InputError:
    """Return the error for a function that returns other data each time."""
    return InputError(
        f"data.source: {config.source}(split={split!r}) returns other data if it is called again; give its random "
        "numbers a fixed seed inside the function, and keep no state between calls"
    )


def _load(config: DataConfig, split: str, num_classes: int, *, again: bool = False) -> MemoryData:
    where = f"study.ood: {config.source}" if num_classes else f"data.source: {config.source} ({split})"
    if not num_classes:
        _check_split(config)
    loaded = given = call_load(config, split, outside=bool(num_classes))
    if isinstance(loaded, TensorData) and config.ignore_index != IGNORE_INDEX:
        loaded = replace(loaded, labels=loaded.labels.masked_fill(loaded.labels == config.ignore_index, IGNORE_INDEX))
    if isinstance(loaded, Dataset | TensorData):
        if not len(loaded):
            raise InputError(f"{where}: {EMPTY}")
        return loaded if num_classes else _named(loaded, config.class_names, where)
    classes = class_names(loaded) or config.class_names
    if num_classes and _are_texts(loaded):  # sentences without labels
        loaded = (loaded, [UNLABELLED] * len(loaded))
    if config.encode:
        loaded = _sentences(loaded, where)
    if isinstance(loaded, tuple | list) and loaded and hasattr(loaded[0], "__len__") and not len(loaded[0]):
        raise InputError(f"{where}: {EMPTY}")
    texts, encode = _texts(loaded), _encoder(config)
    if texts and encode is None:
        raise InputError(f"{where}: sentences need data.encode, the import path of a function that makes them tensors")
    if encode is not None and not texts:
        raise InputError(
            f"{where}: data.encode is for sentences: return a pair (list of str, labels) or a torch Dataset of "
            "(str, label), or leave data.encode out"
        )
    pair = (encode(list(texts)), loaded[1]) if texts and encode else loaded
    inputs, labels = _collected(pair, where, unlabelled=bool(num_classes))
    if config.ignore_index != IGNORE_INDEX:
        labels = labels.masked_fill(labels == config.ignore_index, IGNORE_INDEX)
    if num_classes:  # out-of-distribution data: their labels mean nothing in this study
        labels, count, classes = labels.masked_fill(labels != IGNORE_INDEX, 0), num_classes, ()
    elif split == "train":
        if labels.numel() and not bool((labels != IGNORE_INDEX).any()):
            raise InputError(f"{where}: none of the {len(labels)} training examples has a label")
        count = len(classes) or (int(labels.max()) + 1 if labels.numel() else 0)
        if not classes and count > MOST_CLASSES * max(1, labels.numel()):  # the network would have an output for each
            raise InputError(
                f"{where}: the highest of {labels.numel()} labels is {count - 1}; number the classes from 0, without "
                "gaps"
            )
    else:
        train = load_own(config, "train")
        count, classes = train.num_classes, train.class_names
    if not num_classes:
        _check_labels(inputs, labels, count, where, named=bool(classes))
    name = f"{config.source} {split}"
    more: dict[str, Any] = {"class_names": classes, "origin": f"from {config.source}"}
    if texts:
        more |= {"texts": texts, "encode": encode}
    try:
        data = as_memory_data(inputs, labels, count, name, **more)
    except InputError as error:
        raise InputError(f"{where}: {str(error).removeprefix(f'{name}: ')}") from error
    if not again:
        check_workers(given, data, where)
    return data


def _named(data: MemoryData, names: tuple[str, ...], where: str) -> MemoryData:
    """Return the data with the class names of the recipe, if they have none of their own."""
    if data.class_names or not names:
        return data
    if len(names) != data.num_classes:
        raise InputError(f"{where}: {data.num_classes} classes, but data.class_names has {len(names)} names")
    return replace(data, class_names=names)


def _check_labels(inputs: Any, labels: Tensor, count: int, where: str, *, named: bool) -> None:
    """Refuse labels that are no classes of the study, and images without a label."""
    if not labels.numel():
        raise InputError(f"{where}: {EMPTY}")
    highest = int(labels.max())
    if highest >= count:
        reason = f"there are only {count} class names" if named else f"the training data have {count} classes"
        remedy = f"set data.ignore_index = {highest} if it marks positions without a label, or " * (labels.ndim > 1)
        raise InputError(
            f"{where}: label {highest}, but {reason} (0 … {count - 1}); {remedy}correct it, or data.class_names"
        )
    missing = int((labels == IGNORE_INDEX).sum())
    if missing and labels.ndim == 1 and isinstance(inputs, Tensor) and inputs.dtype == uint8:
        raise InputError(f"{where}: {missing} images have no label; leave them out")


def _check_split(config: DataConfig) -> None:
    """Refuse a function that does not take `split`, because training and test data would be the same."""
    function = find(config.source, "data.source")
    if isinstance(function, Mapping):
        return
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # `bound` says it
    if "split" not in names and not any(
        parameter.default is parameter.empty and parameter.kind not in VARIABLE for parameter in names.values()
    ):
        raise InputError(
            f"data.source: {config.source} takes no 'split', so training and test data would be the same; give it this "
            "argument, which is 'train' or 'test'"
        )


def _texts(loaded: Any) -> tuple[str, ...]:
    """Return the sentences of a pair (list of str, labels); nothing for other data."""
    is_pair = isinstance(loaded, tuple | list) and len(loaded) == 2 and isinstance(loaded[0], list | tuple)
    return tuple(loaded[0]) if is_pair and _are_texts(loaded[0]) else ()


def _sentences(loaded: Any, where: str) -> Any:
    """Return sentences and labels in other usual forms as a pair (list of str, labels); other data unchanged."""
    is_pair = isinstance(loaded, tuple | list) and len(loaded) == 2
    if is_pair and hasattr(loaded[0], "tolist"):  # an array, or a column of pandas
        texts = loaded[0].tolist()
        labels = loaded[1].tolist() if hasattr(loaded[1], "tolist") else loaded[1]
        return (texts, labels) if _are_texts(texts) else loaded
    if not isinstance(loaded, TorchDataset | DataLoader):
        return loaded
    texts, parts = list[str](), list[Any]()
    try:
        with seeded(0):
            for batch in in_order(loaded) if isinstance(loaded, DataLoader) else DataLoader(loaded, DATASET_BATCH):
                if not (isinstance(batch, tuple | list) and len(batch) == 2 and _are_texts(batch[0])):
                    return loaded
                texts += batch[0]
                parts += batch[1].tolist() if isinstance(batch[1], Tensor) else list(batch[1])
    except ANY_ERROR as error:
        raise InputError(f"{where}: reading it failed: {described(error)}") from error
    return texts, parts


def _are_texts(loaded: Any) -> bool:
    return isinstance(loaded, list | tuple) and bool(loaded) and all(isinstance(text, str) for text in loaded)


def _encoder(config: DataConfig) -> Encode | None:
    """Return the user's function from sentences to tensors; it raises an InputError if it fails."""
    if not config.encode:
        return None
    function, path = find(config.encode, "data.encode"), config.encode

    def encode(texts: list[str]) -> Any:
        try:
            encoded = bound(function, config.offered, {}, "data.encode", path, takes_batch=True)(texts)
        except InputError:
            raise
        except ANY_ERROR as error:
            raise InputError(f"data.encode: {path} failed: {described(error)}") from error
        parts = encoded.values() if isinstance(encoded, Mapping) else [encoded]
        if not all(isinstance(part, Tensor) and part.ndim and len(part) == len(texts) for part in parts):
            raise InputError(
                f"data.encode: {path} must return a tensor, or a mapping of tensors, with a row for each sentence"
            )
        return dict(encoded) if isinstance(encoded, Mapping) else encoded

    return encode


def call_load(config: DataConfig, split: str, *, outside: bool = False) -> Any:
    """Return what the user's function gives for a split; a mapping from split to data may replace the function.

    A function that loads out-of-distribution data need not take the options of the study's own data.
    """
    path, root = config.source, config.root
    key = "study.ood" if outside else "data.source"
    function = find(path, key)
    if isinstance(function, Mapping):
        if split not in function:
            raise InputError(f"data: no {split!r} among {', '.join(map(repr, function))}; give 'train' and 'test'")
        return function[split]
    options = {} if outside else config.options
    offered = {"split": split} | (config.offered if outside else {"root": root} if root else {})
    if not root and "root" not in options and _needs_root(function):
        raise InputError(f"data.root: {path} needs the folder of the data; set data.root = FOLDER")
    call = bound(function, offered, options, key if outside else "data", path)
    # transforms and generated data that use global random numbers are the same in every run
    with seeded(0):
        try:
            return call()
        except InputError:
            raise
        except ANY_ERROR as error:
            raise InputError(f"{key}: {path}(split={split!r}) failed: {described(error)}") from error


def _needs_root(function: Any) -> bool:
    try:
        root = inspect.signature(function).parameters.get("root")
    except (TypeError, ValueError):
        return False  # `bound` says it
    return root is not None and root.default is root.empty


def _collected(loaded: Any, where: str, *, unlabelled: bool) -> tuple[Any, Tensor]:
    """Return the inputs (a tensor, or a mapping of tensors) and labels of data in one of the usual forms."""
    try:
        with seeded(0):
            return collected(loaded, unlabelled=unlabelled)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except ANY_ERROR as error:
        raise InputError(f"{where}: reading it failed: {described(error)}") from error


def class_names(data: Any) -> tuple[str, ...]:
    """Return the names of the classes that torchvision's datasets have as `classes`."""
    data = getattr(data, "dataset", data)
    names = getattr(data, "classes", ())
    plain = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if plain else ()
