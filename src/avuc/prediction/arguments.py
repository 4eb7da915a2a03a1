"""`Arguments`: what a network is called with, for a batch or for a whole dataset in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.core.errors import InputError

Array = Tensor | np.ndarray


@dataclass(frozen=True)
class Arguments:
    """Positional and keyword arguments of a network: tensors or arrays with one row for each example, or other values.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        exact: whether uint8 images are used as they are; otherwise they are scaled to [0, 1] with the channels first.

    >>> batch = Arguments((), {"input_ids": torch.ones(4, 7, dtype=torch.int64), "return_dict": True})
    >>> batch[0:2].kwargs["input_ids"].shape, batch[0:2].kwargs["return_dict"]
    (torch.Size([2, 7]), True)
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    exact: bool = False

    @classmethod
    def of(cls, value: Any, exact: bool = False) -> Arguments:
        """Return the arguments for a tensor, for a tuple or list of positional ones, or for a mapping of keywords."""
        if isinstance(value, Arguments):
            return value
        if isinstance(value, Mapping):
            return cls((), {str(name): part for name, part in value.items()}, exact)
        return cls(tuple(value) if isinstance(value, tuple | list) else (value,), {}, exact)

    @property
    def only(self) -> Array | None:
        """The tensor or array, if it is the only argument and positional; else None."""
        if len(self.args) == 1 and not self.kwargs and isinstance(self.args[0], Array):
            return self.args[0]
        return None

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the tensors and arrays with their names."""
        for name, value in (
            *((f"argument {position}", value) for position, value in enumerate(self.args)),
            *self.named(),
        ):
            if isinstance(value, Array):
                yield name, value

    def named(self) -> Iterator[tuple[str, Any]]:
        """Yield the keyword arguments with their names in quotes."""
        yield from ((repr(name), value) for name, value in self.kwargs.items())

    def map(self, function: Callable[[Array], Any]) -> Arguments:
        """Return the same arguments with `function` applied to each tensor or array."""

        def changed(value: Any) -> Any:
            return function(value) if isinstance(value, Array) else value

        kwargs = {name: changed(value) for name, value in self.kwargs.items()}
        return Arguments(tuple(map(changed, self.args)), kwargs, self.exact)

    def __getitem__(self, rows: slice) -> Arguments:
        return self.map(lambda array: array[rows])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for _, array in self.arrays())

    @property
    def scaled(self) -> bool:
        """Whether these are uint8 images that are scaled for the network."""
        only = None if self.exact else self.only
        return only is not None and only.dtype in (torch.uint8, np.uint8)

    def rows(self) -> int:
        """Return the number of examples; an error if the arguments differ in it."""
        lengths = {name: len(array) for name, array in self.arrays() if array.ndim}
        if not lengths:
            raise InputError(
                "the network's input must have a tensor or an array with one row for each example; found "
                f"{self.describe() or 'nothing'}"
            )
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{length} in {name}" for name, length in lengths.items())
            raise InputError(f"all inputs of the network must have the same number of rows; found {counts}")
        return next(iter(lengths.values()))

    def describe(self) -> str:
        """Describe the arguments for a message."""
        only = self.only
        if only is not None:
            return f"{'images' if only.ndim == 4 else 'inputs'} {tuple(only.shape)} {only.dtype}"
        values = [*((f"argument {position}", value) for position, value in enumerate(self.args)), *self.named()]
        return ", ".join(
            f"{name} {tuple(value.shape)} {value.dtype}" if isinstance(value, Array) else f"{name} {_kind(value)}"
            for name, value in values
        )


def _kind(value: object) -> str:
    return f"({type(value).__name__})"


def tensor_of(array: Array) -> Tensor:
    """Return the values as a tensor. An array is copied: it may be read-only, reversed or of another byte order."""
    if isinstance(array, Tensor):
        return array
    if array.dtype.kind not in "fiub":
        raise InputError(f"the network's input must be numbers; found an array of dtype {array.dtype}")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
