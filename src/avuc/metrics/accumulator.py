"""Fixed-size state that adds up: over batches, over ranks, over files; and the cells of a histogram on a log scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.metrics.statistics import Array

__all__ = ["CELLS", "Accumulator", "Streaming", "cell_edges", "cell_index"]


class Accumulator:
    """Named blocks of one flat float64 vector of sums, and two running maxima, for a stated configuration."""

    def __init__(self, kind: str, config: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.kind, self.config, self.shapes = kind, dict(config), dict(shapes)
        self.sums = torch.zeros(sum(math.prod(shape) for shape in shapes.values()), dtype=torch.float64)
        self.maxima = torch.full((2,), -math.inf, dtype=torch.float64)

    def __getitem__(self, name: str) -> Array:
        """The block of that name, a view that can be added to."""
        start = 0
        for key, shape in self.shapes.items():
            if key == name:
                return self.sums.numpy()[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
        raise KeyError(name)

    def merge(self, other: Accumulator) -> None:
        if (self.kind, self.config) != (other.kind, other.config):
            raise InputError(
                f"cannot merge: {self.kind} {self.config} and {other.kind} {other.config} count different things"
            )
        self.sums += other.sums
        torch.maximum(self.maxima, other.maxima, out=self.maxima)

    def all_reduced(self, group: torch.distributed.ProcessGroup | None = None) -> Accumulator:
        """The merged state of all ranks, on every rank; this rank's own is left as it is, so nothing counts twice."""
        backend = torch.distributed.get_backend(group)
        device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        out = Accumulator(self.kind, self.config, self.shapes)
        for name, operation in (("sums", torch.distributed.ReduceOp.SUM), ("maxima", torch.distributed.ReduceOp.MAX)):
            total = getattr(self, name).clone().to(device)
            torch.distributed.all_reduce(total, op=operation, group=group)
            setattr(out, name, total.cpu())
        return out

    def state_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.config, "sums": self.sums.clone(), "maxima": self.maxima.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        ours = {"kind": self.kind, **self.config}
        theirs = {key: state.get(key) for key in ours}
        sums, maxima = state.get("sums"), state.get("maxima")
        if ours != theirs or not (isinstance(sums, Tensor) and sums.shape == self.sums.shape):
            raise InputError(f"this state belongs to {theirs}, not to {ours}")
        if not (isinstance(maxima, Tensor) and maxima.shape == (2,)) or not bool(sums.isfinite().all()):
            raise InputError("this state is damaged: its sums must be finite and its maxima two numbers")
        self.sums, self.maxima = (x.detach().to("cpu", torch.float64).clone() for x in (sums, maxima))

    def save(self, path: str | Path) -> None:
        write_tensors(path, {"sums": self.sums, "maxima": self.maxima}, {"kind": self.kind, **self.config})

    def load(self, path: str | Path) -> None:
        tensors, metadata = read_tensors(path)
        try:
            self.load_state_dict({**metadata, **tensors})
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


class Streaming:
    """What every streaming metric can do with its state, `_state`: merge, save, load."""

    _state: Accumulator

    def _empty(self) -> Self:
        """Another of the same configuration that has counted nothing."""
        raise NotImplementedError

    def merge(self, other: Self) -> Self:
        """Add what another one has counted (the other is left as it is)."""
        self._state.merge(other._state)
        return self

    def all_reduced(self, group: torch.distributed.ProcessGroup | None = None) -> Self:
        """The merge of all ranks of `torch.distributed`, on each of them."""
        out = self._empty()
        out._state = self._state.all_reduced(group)
        return out

    def state_dict(self) -> dict[str, Any]:
        """The configuration and two tensors."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state of the same configuration."""
        self._state.load_state_dict(state)

    def save(self, path: str | Path) -> None:
        """Write the state as a .safetensors file."""
        self._state.save(path)

    def load(self, path: str | Path) -> Self:
        """Take over the state of a file; merge files by loading each into its own and merging these."""
        self._state.load(path)
        return self


# A cell holds the values that share a float64's exponent and the first BITS bits of its fraction: 1024 cells for each
# power of two, so a cell is at most 1/1024 of its values wide. One cell for all below 2^LOWEST, one for all above.
BITS, LOWEST, HIGHEST = 10, -30, 5
_FIRST = (LOWEST + 1023) << BITS
CELLS = ((HIGHEST - LOWEST) << BITS) + 2


def cell_index(values: Array) -> Array:
    """The cell of each value ≥ 0; never decreases with the value.

    >>> cell_index(np.array([0.0, 2.0**-30, 1.0, 1.0009, 1.001]))
    array([    0,     1, 30721, 30721, 30722])
    """
    raw = np.ascontiguousarray(values, np.float64).view(np.int64) >> (52 - BITS)
    return np.asarray(np.clip(raw - _FIRST + 1, 0, CELLS - 1))


def cell_edges() -> Array:
    """CELLS + 1 edges: cell i holds edge_i ≤ value < edge_{i+1}."""
    inner = ((np.arange(CELLS - 1, dtype=np.int64) + _FIRST) << (52 - BITS)).view(np.float64)
    return np.concatenate([[0.0], inner, [np.inf]])
