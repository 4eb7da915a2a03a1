"""What `predict` accepts as data: tensors, arrays and mappings in memory, or batches from a DataLoader or Dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from avuc.core.caller import warn_caller
from avuc.core.errors import BatchError, InputError, NoExamplesError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data.arrays import Dataset
from avuc.data.stream import Stream
from avuc.prediction.arguments import Arguments, Array

Inputs = Callable[[Any], tuple[Any, Any]]
"""A function from a batch to (what the network takes, labels or None)."""

ACCEPTED = "a tensor, a NumPy array, a mapping of tensors, a DataLoader or a Dataset"
PAIR = (
    "pass inputs=, a function from a batch to (what the network takes, labels or None), for example "
    "inputs=lambda batch: (batch['image'], batch['label'])"
)
LABEL_KEYS = ("labels", "label")
# examples per batch of a Dataset and of arrays for `inputs=`, if batch_size is not given
DATASET_BATCH = 64


class Examples(NamedTuple):
    """Examples in memory: a whole dataset, or one batch that was loaded.

    Attributes:
        arguments: what the network is called with.
        labels: the labels in any layout, or None.
        rows: number of examples.
    """

    arguments: Arguments
    labels: Any
    rows: int


class Loaded:
    """Batches that are loaded one after the other, each of them once."""

    def __init__(self, batches: Iterable[Any], inputs: Inputs | None, labels: Any = None) -> None:
        self.batches: Iterable[Any] = batches
        self.inputs: Inputs | None = inputs
        self.labels: Any = labels

    @property
    def count(self) -> int | None:
        """Number of batches, if it is known."""
        try:
            return len(self.batches)  # type: ignore[arg-type]
        except TypeError:  # a DataLoader of an iterable dataset
            return None

    def __iter__(self) -> Iterator[Examples]:
        """Yield the batches; those without examples are left out."""
        start = 0
        for batch in self.batches:
            examples = _examples(batch, self.inputs)
            if self.labels is not None:
                if examples.labels is not None:
                    raise _two_labels()
                examples = examples._replace(labels=self.labels[start : start + examples.rows])
            if start == 0:
                _warn_about_copied_labels(examples)
            start += examples.rows
            if examples.rows:
                yield examples
        if start == 0:
            raise NoExamplesError("predict needs at least one image, found none: the data have no batches")
        if self.labels is not None and len(self.labels) != start:
            raise InputError(f"labels must be one per image, ({start},); found {len(self.labels)}")


def source_of(data: Any, labels: Any, inputs: Inputs | None, batch_size: int | None) -> Examples | Loaded:
    """Return the data as examples in memory, or as batches that are loaded one after the other.

    Args:
        data: what `predict` was given.
        labels: labels in the order of the data, or None.
        inputs: a function from a batch to (what the network takes, labels); it is called once for each batch.
        batch_size: examples per batch, for a Dataset and for arrays with `inputs`.

    >>> source_of({"x": torch.rand(3, 2), "labels": torch.tensor([0, 1, 1])}, None, None, None).labels
    tensor([0, 1, 1])
    """
    if isinstance(data, Examples | Loaded):
        return data
    if inputs is not None and not callable(inputs):
        raise InputError(f"inputs must be a function from a batch to (input, labels), found {type(inputs).__name__}")
    if isinstance(data, Stream):
        return Loaded(data.epoch(), inputs, labels)
    if isinstance(data, TorchDataset) and not _is_plain(data):
        # without a generator the loader takes a seed from torch's own, and changes its state
        loader = DataLoader(data, batch_size=batch_size or DATASET_BATCH, generator=torch.Generator())
        return Loaded(loader, inputs, labels)
    if isinstance(data, DataLoader) or (hasattr(data, "dataset") and hasattr(data, "__iter__")):
        if labels is not None and not _keeps_order(data):
            raise InputError(
                "labels= must be in the order of the data, and this loader may change the order; let it yield "
                "(input, labels), or pass labels=None"
            )
        return Loaded(data, inputs, labels)
    if isinstance(data, Dataset):
        data = TensorDataset(data.images, data.labels)
    if isinstance(data, TensorDataset):  # a plain one
        whole: Any = data.tensors
    elif isinstance(data, Array | Mapping):
        whole = data
    else:
        rows = isinstance(data, list | tuple) and bool(data) and all(isinstance(row, Mapping) for row in data)
        remedy = "; pass trainer.get_test_dataloader(rows), or DataLoader(rows, batch_size=64)" if rows else ""
        if hasattr(data, "to_numpy"):  # a table of pandas or polars
            remedy = "; pass table.to_numpy().astype('float32')"
        raise InputError(f"data must be {ACCEPTED}; found {_described(data)}{remedy}")
    if inputs is not None:
        return Loaded(_parts(whole, batch_size or DATASET_BATCH), inputs, labels)
    examples = _examples(whole, None)
    if labels is not None and examples.labels is not None:
        raise _two_labels()
    examples = examples._replace(labels=examples.labels if labels is None else labels)
    _warn_about_copied_labels(examples)
    return examples


def _warn_about_copied_labels(examples: Examples) -> None:
    """Warn if the label of each token is the token itself: a causal language model predicts the next one."""
    if not isinstance(examples.labels, Array) or examples.labels.ndim != 2:
        return
    labels = torch.as_tensor(examples.labels)
    if not bool((labels > 1).any()):  # a mask may equal labels of 0 and 1
        return
    for name, array in examples.arguments.arrays():
        tokens = torch.as_tensor(array)
        if tokens.shape != labels.shape or tokens.is_floating_point():
            continue
        if bool(((tokens.to(labels.device) == labels) | (labels == IGNORE_INDEX)).all()):
            warn_caller(
                f"the labels are the tokens of {name!r}, but a causal language model predicts the next one: shift "
                "them, labels = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100), in inputs= or in labels="
            )
            return


def _is_plain(data: TorchDataset[Any]) -> bool:
    """Return whether the tensors of a dataset are its examples; a subclass may transform each of them."""
    return isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__


def _keeps_order(loader: Any) -> bool:
    """Return whether a loader certainly yields the examples in their order."""
    batches = getattr(loader, "batch_sampler", None)
    # if the user passes a batch sampler, torch also stores a sequential sampler that it does not use
    used = batches.sampler if type(batches) is BatchSampler else getattr(loader, "sampler", None)
    standard = batches is None or type(batches) is BatchSampler
    return standard and type(used) is SequentialSampler and getattr(loader, "in_order", True) is True


def _two_labels() -> InputError:
    return InputError("the data hold labels, and labels= is given too; leave one of them out")


def parts_of(examples: Examples, size: int) -> Iterator[Examples]:
    """Yield examples in memory in parts of at most `size`."""
    if size < 1:
        raise InputError(f"batch_size must be at least 1, found {size}")
    examples.arguments.rows()
    for start in range(0, examples.rows, size):
        rows = slice(start, min(start + size, examples.rows))
        labels = None if examples.labels is None else examples.labels[rows]
        yield Examples(examples.arguments[rows], labels, rows.stop - start)


def _parts(whole: Any, size: int) -> list[Any]:
    """Return parts of a tensor, of a tuple of tensors or of a mapping of tensors, each of the same type."""
    arguments = Arguments.of(whole)
    starts = range(0, arguments.rows(), size)
    if isinstance(whole, Mapping):
        return [arguments[start : start + size].kwargs for start in starts]
    if isinstance(whole, tuple):
        return [arguments[start : start + size].args for start in starts]
    return [whole[start : start + size] for start in starts]


def _examples(batch: Any, inputs: Inputs | None) -> Examples:
    if inputs is None:
        network_input, labels = _split(batch)
    else:
        pair = inputs(batch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InputError(
                "inputs= must return a pair (what the network takes, labels or None); found "
                f"{_described(pair)}; a tuple of positional arguments is the first part of the pair"
            )
        network_input, labels = pair
    arguments = Arguments.of(network_input, exact=inputs is not None)
    if inputs is None:
        for name, value in (*enumerate(arguments.args), *arguments.kwargs.items()):
            _check(name, value)
    if labels is not None and hasattr(labels, "__len__"):
        # with `inputs=` the rows of a tensor need not be the examples: nodes of several graphs
        return Examples(arguments, labels, len(labels) if inputs is not None else arguments.rows())
    return Examples(arguments, labels, arguments.rows())


def _split(batch: Any) -> tuple[Any, Any]:
    """Return (what the network takes, labels or None) of a batch in one of the usual forms."""
    if isinstance(batch, Array):
        return batch, None
    if isinstance(batch, Mapping):
        present = [key for key in LABEL_KEYS if key in batch]
        if len(present) > 1:
            raise BatchError(f"a batch has both {present[0]!r} and {present[1]!r}", PAIR)
        rest = {key: value for key, value in batch.items() if key not in present}
        return rest, batch[present[0]] if present else None
    if isinstance(batch, tuple | list) and len(batch) in (1, 2):
        first, *rest_of_it = batch
        if isinstance(first, Array | Mapping | tuple | list):
            return first, rest_of_it[0] if rest_of_it else None
    raise BatchError(
        f"a batch must be a tensor, a mapping of tensors or a pair (input, labels); found {_described(batch)}", PAIR
    )


def _check(name: object, value: Any) -> None:
    what = f"batch[{name!r}]" if isinstance(name, str) else "the network's input"
    if isinstance(value, np.ndarray) and value.dtype.kind not in "fiub":
        raise BatchError(f"{what} must be numbers, found an array of dtype {value.dtype}", PAIR)
    if not isinstance(value, Array):
        raise BatchError(f"{what} must be a tensor or an array, found {_described(value)}", PAIR)
    if isinstance(value, Tensor) and value.layout != torch.strided:
        raise BatchError(f"{what} is a sparse tensor; use .to_dense()", f"or {PAIR}")
    if value.ndim == 0:
        raise InputError(f"{what} must have one row for each example, found a 0-dimensional one")


def _described(value: Any) -> str:
    if isinstance(value, tuple | list):
        kinds = ", ".join(type(part).__name__ for part in value[:4]) + (", …" if len(value) > 4 else "")
        return f"{type(value).__name__} of {len(value)} ({kinds})" if value else f"an empty {type(value).__name__}"
    return type(value).__name__
