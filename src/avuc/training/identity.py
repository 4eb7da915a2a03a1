"""The identity of a run as text: what it trains, and on which data. Checkpoints of other runs are refused."""

from __future__ import annotations

import hashlib
import re
import sys

import torch
from torch import nn

from avuc.bayes.printing import layers_as_stored
from avuc.data.digest import digest_of
from avuc.data.stream import Stream
from avuc.data.tensors import MemoryData
from avuc.methods import Method, Objective
from avuc.prediction.backends.features import are_readable, trunk_digest
from avuc.training.settings import TrainSettings

# Digests were added after version 0.1.0. They are compared only if both runs have them.
LATER = ("inputs", "loaded inputs", "validation", "net", "starting weights")
# What may differ in every process, with the line that says so: the inputs of a DataLoader may pass a random transform,
# and a network that is given may have random weights.
LOADED, WEIGHTS = "loaded inputs", "starting weights"
MAY_VARY: dict[str, str] = {
    LOADED: "trained on other inputs than the data give now (a random transform?); choose another folder if they "
    "should count",
    WEIGHTS: "started from other weights than the network has now, which are not used; choose another folder if they "
    "should count",
}
SHORT = 12  # digits of a digest
EVERYTHING = "\0"  # no name begins so: no weight is left out
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
    start: object,
    loaded: bool,
) -> dict[str, str]:
    """Return digests of what `settings_of` cannot describe: the inputs, the validation data, the layers, the start.

    Args:
        data, validation, settings: as in `fit`; validation data count only if they choose the epoch to keep.
        model: the first model.
        known: digests of data by their `id`, to compute each once.
        start: the network or the function that `fit` was given. The weights of a function follow from the seed.
        loaded: whether the data were read from a DataLoader or a torch Dataset.
    """
    digests = {f"net ({_versions()})": _digest(model)}
    if not isinstance(data, Stream):
        digests[LOADED if loaded else "inputs"] = _data_digest(data, known)
    if validation is not None and (settings.patience or settings.keep != "last"):
        digests["validation"] = _data_digest(validation, known)
    if isinstance(start, nn.Module) and are_readable(start.state_dict().values()):
        digests[WEIGHTS] = trunk_digest(start.state_dict(), EVERYTHING, "")[:SHORT]
    return digests


def differences(current: dict[str, str], stored: dict[str, str]) -> dict[str, str]:
    """Return the differences between a run and a checkpoint's run as texts, by key."""
    keys = {
        key for key in {*current, *stored} if key.partition(" (")[0] not in LATER or (key in current and key in stored)
    }
    return {
        key: f"{key} is {current.get(key, 'not set')}, was {stored.get(key, 'not set')}"
        for key in sorted(keys)
        if current.get(key) != stored.get(key)
    }


def _data_digest(data: MemoryData, known: Digests) -> str:
    if id(data) not in known:
        known[id(data)] = digest_of(data)[:SHORT]
    return known[id(data)]


def _digest(model: nn.Module) -> str:
    """Return a digest of the printed layers with their settings, such as a dropout rate, but not of their weights."""
    with layers_as_stored():
        printed = re.sub(r" at 0x[0-9a-f]+", "", repr(model))
    return hashlib.sha256(printed.encode("utf-8", "surrogatepass")).hexdigest()[:SHORT]


def _versions() -> str:
    """Return the versions of the libraries of the layers, because another version may print a layer differently."""
    loaded = [sys.modules[name] for name in ("torch", "torchvision", "transformers", "timm") if name in sys.modules]
    return ", ".join(f"{module.__name__} {getattr(module, '__version__', '')}" for module in loaded)
