"""Features before the last layer, kept for other models that have the same layers up to there.

Posteriors over the last layer with one frozen trunk (`TrainSettings.freeze_trunk`) differ in that layer only. The trunk
then runs once for a dataset, for all of them.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from avuc.prediction.inputs import Batches

MEMORY = 1 << 30
PLAIN = (int, float, complex, str, bytes, tuple, list, type(None))

Seen = tuple[tuple[str, "weakref.ref[Tensor]", int], ...]


class FeatureStore:
    """Keeps the features of the last dataset, by trunk. The networks must come from one function with the same options.

    Args:
        memory: bytes of features that are kept; default 1 GiB.

    >>> store = FeatureStore()
    >>> batches = Batches(torch.zeros(4, 2), None, 4, torch.device("cpu"))
    >>> store.put(batches, "trunk", [torch.ones(4, 3)])
    >>> store.get(batches, "trunk")[0].shape, store.get(batches, "another trunk")
    (torch.Size([4, 3]), None)
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory: int = memory
        self._seen: tuple[Seen, int, torch.device] | None = None
        self._kept: dict[str, list[Tensor]] = {}

    def get(self, batches: Batches, trunk: str) -> list[Tensor] | None:
        """Return the features of each batch; None if they are not here.

        Args:
            batches: the data.
            trunk: of `trunk_digest`.
        """
        return self._kept.get(trunk) if self._is_seen(batches) else None

    def put(self, batches: Batches, trunk: str, features: list[Tensor]) -> None:
        """Keep the features of each batch, if there is room; those of other data are dropped.

        Args:
            batches, trunk: as in `get`.
            features: of each batch.
        """
        if not self._is_seen(batches):
            self._kept.clear()
            arrays = dict(batches.arguments.arrays())
            # NumPy arrays and inference tensors do not show whether they have changed
            tensors = {
                name: array for name, array in arrays.items() if isinstance(array, Tensor) and not array.is_inference()
            }
            if len(tensors) < len(arrays) or not tensors:
                self._seen = None
                return
            seen = tuple((name, weakref.ref(tensor), tensor._version) for name, tensor in tensors.items())
            self._seen = (seen, batches.size, batches.device)
        used = sum(tensor.nbytes for kept in self._kept.values() for tensor in kept)
        if used + sum(tensor.nbytes for tensor in features) <= self.memory:
            self._kept[trunk] = features

    def _is_seen(self, batches: Batches) -> bool:
        """Return whether these are the data of the last call, unchanged: the same tensors in the same versions."""
        if self._seen is None or self._seen[1:] != (batches.size, batches.device):
            return False
        arrays = dict(batches.arguments.arrays())
        if arrays.keys() != {name for name, _, _ in self._seen[0]}:
            return False
        kept = [(arrays[name], known(), version) for name, known, version in self._seen[0]]
        return all(
            isinstance(array, Tensor) and array is old and array._version == version for array, old, version in kept
        )


def attributes_of(net: nn.Module) -> tuple[dict[str, Tensor], str]:
    """Return the tensors among the plain attributes of all layers, by name, and the other values as text.

    `repr` shows few of them, and a random projection, for example, need not be a buffer.

    Args:
        net: the network.

    >>> layer = nn.Linear(2, 3)
    >>> layer.scale, layer.signs = 2.0, torch.ones(3)
    >>> tensors, text = attributes_of(layer)
    >>> list(tensors), "('.scale', 2.0)" in text
    (['.signs'], True)
    """
    tensors, others = dict[str, Tensor](), list[tuple[str, object]]()
    for layer, module in net.named_modules():
        for key, value in vars(module).items():
            name = f"{layer}.{key}"
            if key.startswith("_") or key == "training":
                continue
            if isinstance(value, Tensor):
                tensors[name] = value
            elif isinstance(value, np.ndarray):
                others.append((name, (value.shape, value.dtype, hashlib.sha256(value.tobytes()).hexdigest())))
            elif isinstance(value, PLAIN):
                others.append((name, value))
    return tensors, repr(others)


def are_readable(tensors: Iterable[Tensor]) -> bool:
    """Return whether the contents of all tensors can be read as bytes: none is sparse, quantised or lazy."""
    return all(tensor.layout is torch.strided and not tensor.is_quantized and not is_lazy(tensor) for tensor in tensors)


def same_values(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are equal, also where both are NaN."""
    return torch.equal(first.nan_to_num(), second.nan_to_num())


def trunk_digest(weights: Mapping[str, Tensor], layer: str, settings: str) -> str:
    """Return a digest of all weights and buffers but those of one layer.

    Args:
        weights: of the network, by name.
        layer: the start of the names that are left out.
        settings: what else decides about the features.

    >>> weights = {"0.weight": torch.zeros(2), "1.weight": torch.zeros(3)}
    >>> other = {"0.weight": torch.zeros(2), "1.weight": torch.ones(3)}
    >>> [trunk_digest(weights, layer, "") == trunk_digest(other, layer, "") for layer in ("1.", "0.")]
    [True, False]
    """
    digest = hashlib.sha256(settings.encode())
    for name, value in sorted(weights.items()):
        if not name.startswith(layer):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            # as bytes, because NumPy has no bfloat16
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
