"""Data of any usual form as tensors in memory: pairs, mappings, torch Datasets and DataLoaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from avuc.core.errors import BatchError, InputError, NoExamplesError
from avuc.data.arrays import UNLABELLED, Dataset
from avuc.data.stream import Stream
from avuc.data.tensors import MemoryData, TensorData
from avuc.prediction.arguments import Arguments, tensor_of
from avuc.prediction.data import DATASET_BATCH, Loaded, source_of

EXPECTED = (
    "an avuc Dataset, a pair (inputs, labels) of tensors, a mapping of tensors with 'labels', a torch Dataset or a "
    "DataLoader"
)
SEVERAL = (
    "let the data yield pairs (input, label), or mappings with 'labels' and nothing else but tensors named like the "
    "network's arguments"
)

EMPTY = "there are no examples; look at the files, the filter or the sampler that selects them"


def in_memory(data: Any, name: str, num_classes: int = 0) -> MemoryData:
    """Return labelled data of any usual form in memory. An avuc `Dataset` or `TensorData` is returned as it is.

    A DataLoader is read once, in the order of its dataset: a random transform is applied once, not in each epoch.

    Args:
        data: one of the forms in `EXPECTED`.
        name: for messages.
        num_classes: number of classes; 0 for the highest label plus 1.

    >>> in_memory((torch.rand(4, 3), torch.tensor([0, 2, 1, 0])), "data").num_classes
    3
    """
    if isinstance(data, Dataset | TensorData):
        return data
    try:
        inputs, labels = collected(data)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    count = num_classes or (int(labels.max()) + 1 if labels.numel() else 0)
    return as_memory_data(inputs, labels, count, name)


def is_loaded(data: Any) -> bool:
    """Return whether `in_memory` reads the data item by item, so that a random transform may change them."""
    if isinstance(data, DataLoader):
        data = data.dataset
    return not isinstance(data, Dataset | TensorData | TensorDataset | Stream | tuple | list | Mapping)


def as_memory_data(inputs: Any, labels: Tensor, num_classes: int, name: str, **more: Any) -> MemoryData:
    """Return a `Dataset` of uint8 images with one label each, or else `TensorData`, which takes `more`."""
    if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and inputs.ndim == 4:
        if inputs.shape[3] not in (1, 3) and inputs.shape[1] in (1, 3):
            raise InputError(f"{name}: images {tuple(inputs.shape)} have the channels first; use .permute(0, 2, 3, 1)")
        if labels.ndim == 1:
            return Dataset(inputs, labels, num_classes, name, more.get("class_names", ()), more.get("origin", ""))
    return TensorData(inputs, labels, num_classes, name, **{key: more[key] for key in more if key != "origin"})


def collected(data: Any, *, unlabelled: bool = False) -> tuple[Any, Tensor]:
    """Return the inputs (a tensor, or a mapping of tensors) and labels of data in one of the usual forms.

    Args:
        data: one of the forms in `EXPECTED`.
        unlabelled: whether data without labels are accepted; they get `UNLABELLED`. Default False.
    """
    labels = None
    if isinstance(data, tuple | list) and len(data) == 2:
        data, labels = data
    if isinstance(data, DataLoader):
        data = in_order(data)
    try:
        source = source_of(data, labels, None, None)
        parts = list(source) if isinstance(source, Loaded) else [source]
    except BatchError as error:
        raise InputError(f"{error.problem}; {SEVERAL}") from error
    except NoExamplesError as error:
        raise NoExamplesError(EMPTY) from error
    except InputError as error:
        raise InputError(f"{error}; expected {EXPECTED}") from error
    if unlabelled and all(part.labels is None for part in parts):
        parts = [part._replace(labels=torch.full((part.rows,), UNLABELLED)) for part in parts]
    if any(part.labels is None for part in parts):
        raise InputError(f"there are no labels; expected {EXPECTED}")
    try:
        inputs = _joined([part.arguments for part in parts])
        targets = torch.cat([_class_indices(part.labels) for part in parts])
    except InputError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"batches of different shapes ({reason}); pad to one length") from error
    if targets.is_floating_point() or targets.dtype == torch.bool:
        found, remedy = str(targets.dtype), "convert them with .long()"
        if targets.ndim == 2 and targets.shape[1] > 1:  # one-hot, soft or several independent labels
            found = f"{found} of shape {tuple(targets.shape)}"
            remedy = (
                "use labels.argmax(-1) if they are one-hot; for independent labels, train in a loop of your own with "
                "AvUCLoss(task='multilabel')"
            )
        raise InputError(f"labels must be class indices, found {found}; {remedy}")
    return inputs, targets.long()


def _class_indices(labels: Any) -> Tensor:
    """Return labels as a tensor; names of classes are refused."""
    if not isinstance(labels, Tensor):
        values = np.asarray(labels)
        if values.dtype.kind in "USO" and values.size and isinstance(values.flat[0], str):
            raise InputError(
                f"labels must be class indices, found text ({str(values.flat[0])[:40]!r}); number the classes from 0, "
                "in the same order for all data"
            )
    return torch.as_tensor(labels)


def in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader of the same examples in the order of their dataset; other samplers keep the loader unchanged."""
    dataset, sampler = loader.dataset, loader.sampler
    if isinstance(dataset, IterableDataset):
        # some datasets yield whole batches
        return loader if loader.batch_size is None else _loader_of(dataset, loader)
    if type(loader.batch_sampler) is not BatchSampler:
        return loader
    if type(sampler) is SubsetRandomSampler:  # a part of the dataset, such as a split
        dataset = Subset(dataset, sorted(sampler.indices))
    elif type(sampler) is RandomSampler:
        if sampler.replacement or sampler.num_samples != len(sampler.data_source):
            return loader
    elif type(sampler) is not SequentialSampler:
        return loader
    return _loader_of(dataset, loader)


def _loader_of(dataset: Any, loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader of all examples of a dataset, with the last batch, that reads them as `loader` does."""
    return DataLoader(
        dataset,
        batch_size=loader.batch_size or DATASET_BATCH,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        timeout=loader.timeout,
        generator=loader.generator,
    )


def _joined(parts: list[Arguments]) -> Any:
    first = parts[0]
    if first.kwargs and not first.args:
        return {name: torch.cat([tensor_of(part.kwargs[name]) for part in parts]) for name in first.kwargs}
    if len(first.args) != 1 or first.kwargs:
        raise InputError(f"several positional inputs; {SEVERAL}")
    return torch.cat([tensor_of(part.args[0]) for part in parts])
