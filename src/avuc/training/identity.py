"""What a run trains on which data, as text: the checkpoint of another run is refused."""

from __future__ import annotations

import hashlib
import re
import sys

import torch
from torch import nn

from avuc.data.digest import digest_of
from avuc.data.stream import Stream
from avuc.data.tensors import MemoryData
from avuc.methods import Method, Objective
from avuc.training.settings import TrainSettings

# Digests came after version 0.1.0. They are compared if both runs have them.
LATER = ("inputs", "loaded inputs", "validation", "net")
# the inputs of a DataLoader may pass a random transform, so that they differ in every process
MAY_VARY = "loaded inputs"
SHORT = 12  # digits of a digest
Digests = dict[int, str]


def settings_of(
    method: Method, seed: int, data: MemoryData | Stream, objective: Objective, settings: TrainSettings
) -> dict[str, str]:
    """Return what is trained, by name, with a digest of the labels; arguments as in `fit`."""
    source = data.files if isinstance(data, Stream) else data
    labels = hashlib.sha256(torch.as_tensor(source.labels).cpu().numpy().tobytes()).hexdigest()[:16]
    identity = {"method": repr(method), "seed": str(seed), "data": f"{source.name} {len(source)} {labels}"}
    identity |= {f"objective.{name}": value for name, value in objective.identity().items()}
    return identity | {f"train.{name}": value for name, value in settings.identity().items()}


def digests_of(
    data: MemoryData | Stream,
    validation: MemoryData | None,
    settings: TrainSettings,
    model: nn.Module,
    known: Digests,
    *,
    loaded: bool,
) -> dict[str, str]:
    """Return digests of what `settings_of` cannot name: the inputs, the validation data, the layers.

    Args:
        data, validation, settings: as in `fit`; validation data count where they choose an epoch.
        model: the first model.
        known: digests of data by their `id`, to compute each once.
        loaded: whether the data were read from a DataLoader or a torch Dataset.
    """
    found = {f"net ({_versions()})": _digest(model)}
    if not isinstance(data, Stream):
        found[MAY_VARY if loaded else "inputs"] = _data_digest(data, known)
    if validation is not None and (settings.patience or settings.keep != "last"):
        found["validation"] = _data_digest(validation, known)
    return found


def differences(mine: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Return what differs between a run and a checkpoint's run, by key, in words."""
    keys = {key for key in {*mine, *other} if key.partition(" (")[0] not in LATER or (key in mine and key in other)}
    return {
        key: f"{key} is {mine.get(key, 'not set')}, was {other.get(key, 'not set')}"
        for key in sorted(keys)
        if mine.get(key) != other.get(key)
    }


def _data_digest(data: MemoryData, known: Digests) -> str:
    if id(data) not in known:
        known[id(data)] = digest_of(data)[:SHORT]
    return known[id(data)]


def _digest(model: nn.Module) -> str:
    """A digest of the layers and what they print of themselves, such as a dropout rate; not of their weights."""
    printed = re.sub(r" at 0x[0-9a-f]+", "", repr(model))
    return hashlib.sha256(printed.encode("utf-8", "surrogatepass")).hexdigest()[:SHORT]


def _versions() -> str:
    """The versions of the libraries that layers come from: another version may print a layer in another way."""
    loaded = [sys.modules[name] for name in ("torch", "torchvision", "transformers", "timm") if name in sys.modules]
    return ", ".join(f"{module.__name__} {getattr(module, '__version__', '')}" for module in loaded)
