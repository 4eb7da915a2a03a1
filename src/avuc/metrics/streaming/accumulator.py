"""The state of a streaming metric: sums of fixed size that add up over batches, processes and files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.metrics.arrays import Array


class Accumulator:
    """Named arrays of sums in one flat float64 tensor, and two running maxima."""

    def __init__(self, kind: str, config: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Args:
        kind: name and version of the state, stored in its files.
        config: settings that two states must share to be merged.
        shapes: name and shape of each array.
        """
        self.kind: str = kind
        self.config: dict[str, str] = dict(config)
        self.shapes: dict[str, tuple[int, ...]] = dict(shapes)
        size = sum(math.prod(shape) for shape in shapes.values())
        self.sums: Tensor = torch.zeros(size, dtype=torch.float64, device="cpu")
        self.maxima: Tensor = torch.full((2,), -math.inf, dtype=torch.float64, device="cpu")

    def __getitem__(self, name: str) -> Array:
        """Return the array of that name, a view that can be added to."""
        start = 0
        for key, shape in self.shapes.items():
            if key == name:
                return self.sums.numpy()[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
        raise KeyError(name)

    def merge(self, other: Accumulator) -> None:
        """Add the sums of another state with the same configuration."""
        if (self.kind, self.config) != (other.kind, other.config):
            raise InputError(
                f"cannot merge: {self.kind} {self.config} and {other.kind} {other.config} count different things"
            )
        self.sums += other.sums
        torch.maximum(self.maxima, other.maxima, out=self.maxima)

    def all_reduced(self, group: torch.distributed.ProcessGroup | None = None) -> Accumulator:
        """Return the merged state of all processes, on every process; this state does not change."""
        backend = torch.distributed.get_backend(group)
        device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        out = Accumulator(self.kind, self.config, self.shapes)
        for name, operation in (("sums", torch.distributed.ReduceOp.SUM), ("maxima", torch.distributed.ReduceOp.MAX)):
            total = getattr(self, name).clone().to(device)
            torch.distributed.all_reduce(total, op=operation, group=group)
            setattr(out, name, total.cpu())
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return the kind, the configuration and two tensors."""
        return {"kind": self.kind, **self.config, "sums": self.sums.clone(), "maxima": self.maxima.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the sums by those of a `state_dict` with the same configuration."""
        ours = {"kind": self.kind, **self.config}
        theirs = {key: state.get(key) for key in ours}
        sums, maxima = state.get("sums"), state.get("maxima")
        if ours != theirs or not (isinstance(sums, Tensor) and sums.shape == self.sums.shape):
            raise InputError(f"this state belongs to {theirs}, not to {ours}")
        if not (isinstance(maxima, Tensor) and maxima.shape == (2,)) or not bool(sums.isfinite().all()):
            raise InputError("this state is damaged: its sums must be finite and its maxima two numbers")
        self.sums, self.maxima = (x.detach().to("cpu", torch.float64).clone() for x in (sums, maxima))

    def save(self, path: str | Path) -> None:
        """Write the state as a .safetensors file."""
        write_tensors(path, {"sums": self.sums, "maxima": self.maxima}, {"kind": self.kind, **self.config})

    def load(self, path: str | Path) -> None:
        """Read a file that `save` wrote."""
        tensors, metadata = read_tensors(path)
        try:
            self.load_state_dict({**metadata, **tensors})
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


class Streaming:
    """Base class of streaming metrics: merge, save and load their state."""

    _state: Accumulator

    def _empty(self) -> Self:
        """Return an empty one with the same configuration."""
        raise NotImplementedError

    def merge(self, other: Self) -> Self:
        """Add everything that another one has counted; the other one does not change."""
        self._state.merge(other._state)
        return self

    def all_reduced(self, group: torch.distributed.ProcessGroup | None = None) -> Self:
        """Return the merge over all processes of `torch.distributed`, on each of them."""
        out = self._empty()
        out._state = self._state.all_reduced(group)
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return the configuration and two tensors."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the state by one with the same configuration."""
        self._state.load_state_dict(state)

    def save(self, path: str | Path) -> None:
        """Write the state as a .safetensors file."""
        self._state.save(path)

    def load(self, path: str | Path) -> Self:
        """Replace the state by that of a file. To merge files, load each into an object of its own and merge these."""
        self._state.load(path)
        return self
