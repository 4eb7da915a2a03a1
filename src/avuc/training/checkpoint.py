"""Checkpoints: one file per saved epoch, with tensors and JSON in the safetensors format. Writes are atomic.

    model.<m>.<name>  loss.<m>.<name>  average.<m>.<i>  best.<m>.<name>  optimizer.<m>.<i>.<slot>  meter.<m>
    model-buffer.<m>.<name>  best-buffer.<m>.<name>      buffers that are not in the state_dict

<m> is the number of the model, <i> the number of a tensor in its list. The metadata "avuc" is JSON: format, epoch
(number of finished epochs), history, identity (what was trained, so that another run is refused), the best validation
result. The state of random generators is not saved: each epoch seeds them from (seed, epoch).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from avuc._old_names import forward
from avuc.core.errors import InputError
from avuc.core.tensor_file import can_store, read_tensors, write_tensors
from avuc.training.identity import MAY_VARY, differences
from avuc.training.meters import epochs_all_uncertain
from avuc.training.model_trainer import ModelTrainer

KEPT = 2  # number of checkpoints that stay in the folder
NAME = re.compile(r"checkpoint-(\d{6})\.safetensors")


@dataclass
class Checkpoint:
    """The state of a run after `epoch` epochs."""

    epoch: int
    history: list[dict[str, Any]]
    identity: dict[str, str]
    tensors: dict[str, Tensor]
    best: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False
    seconds: float = 0.0
    path: Path | None = None


def save(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, remove all but the last two, and return the path."""
    directory.mkdir(parents=True, exist_ok=True)
    # copied from the device once, because the checksum and the file both read them
    tensors = {name: tensor.detach().cpu() for name, tensor in checkpoint.tensors.items()}
    metadata = {
        "format": 1,
        "epoch": checkpoint.epoch,
        "history": checkpoint.history,
        "identity": checkpoint.identity,
        "best": checkpoint.best,
        "stopped": checkpoint.stopped,
        "seconds": checkpoint.seconds,
        "checksum": checksum(tensors),
    }
    path = directory / f"checkpoint-{checkpoint.epoch:06d}.safetensors"
    try:
        write_tensors(path, tensors, {"avuc": json.dumps(metadata)})
    except OSError as error:
        raise InputError(
            f"{path}: cannot write the checkpoint ({error.strerror}); the run stops here, earlier checkpoints are "
            "intact: make room and run the same command again"
        ) from error
    for old in sorted(_files(directory))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def latest(directory: Path, identity: Mapping[str, str], say: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest checkpoint that is not damaged, or None.

    Args:
        directory: folder of the run.
        identity: what is being trained; the checkpoint of another run is refused.
        say: gets one line about each damaged checkpoint.
    """
    for path in sorted(_files(directory), reverse=True):
        try:
            checkpoint = _read(path)
        except (InputError, ValueError, KeyError, TypeError) as error:
            say(f"{path}: damaged checkpoint ({error}); going back to the one before")
            continue
        different = differences(dict(identity), checkpoint.identity)
        for key, line in MAY_VARY.items():
            if different.pop(key, None):
                say(f"{path}: {line}")
        if different:
            reasons = "; ".join(list(different.values())[:4])
            raise InputError(f"{path}: made by another run ({reasons}); choose another folder, or remove this one")
        return checkpoint
    return None


def _read(path: Path) -> Checkpoint:
    mapped, metadata = read_tensors(path)
    content = json.loads(metadata["avuc"])
    tensors = {name: tensor.clone() for name, tensor in mapped.items()}
    if checksum(tensors) != content["checksum"]:
        raise InputError("the tensors do not have the stored checksum")
    return Checkpoint(
        content["epoch"],
        content["history"],
        content["identity"],
        tensors,
        content["best"],
        content["stopped"],
        content["seconds"],
        path,
    )


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """Return the CRC-32 of all bytes, in the order of the names."""
    value = 0
    for name in sorted(tensors):
        host = tensors[name].detach().cpu().contiguous()
        if host.numel():
            value = zlib.crc32(host.reshape(-1).view(torch.uint8).numpy().data, value)
    return value


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if NAME.fullmatch(path.name)] if directory.is_dir() else []


# one model's part


def refuse_other_state(model: nn.Module) -> None:
    """Raise if the state of a model has anything but tensors, which a checkpoint could hold only with pickle."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"fit: the network's {name} is no tensor ({type(value).__name__}), but directory, patience and keep "
                "store only tensors; let get_extra_state return one, such as torch.tensor(value), or leave them out"
            )


def trainer_tensors(trainer: ModelTrainer) -> dict[str, Tensor]:
    """Return by name every tensor that is needed to resume a model."""
    prefix = trainer.index
    tensors = model_tensors(trainer, "model")
    tensors |= {f"loss.{prefix}.{name}": tensor for name, tensor in trainer.loss.state_dict().items()}
    tensors |= {f"average.{prefix}.{number}": tensor for number, tensor in enumerate(trainer.average)}
    tensors[f"meter.{prefix}"] = trainer.meters.threshold
    for number, parameter in enumerate(trainer.parameters):
        for slot, value in trainer.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{prefix}.{number}.{slot}"] = value
    return tensors


@torch.no_grad()
def load_trainer(trainer: ModelTrainer, tensors: Mapping[str, Tensor], history: Sequence[dict[str, Any]] = ()) -> None:
    """Restore a model from the tensors of `trainer_tensors` and the history of its run."""
    prefix = trainer.index
    trainer.trapped = epochs_all_uncertain([record for record in history if record["member"] == prefix])
    load_model(trainer, tensors, "model")
    trainer.loss.load_state_dict(_under(tensors, f"loss.{prefix}."))
    if len(_under(tensors, f"average.{prefix}.")) != len(trainer.average):
        raise InputError(
            "the checkpoint is of an earlier version, whose moving average (ema_decay) also averaged what SWAG had "
            "collected, or buffers with infinity, such as a causal mask; remove it and train again"
        )
    for number, average in enumerate(trainer.average):
        average.copy_(tensors[f"average.{prefix}.{number}"])
    trainer.meters.threshold.copy_(tensors[f"meter.{prefix}"])
    for name, value in _under(tensors, f"optimizer.{prefix}.").items():
        index, slot = name.split(".", 1)
        parameter = trainer.parameters[int(index)]
        trainer.optimizer.state[parameter][slot] = value.to(parameter.device, copy=True)


def model_tensors(trainer: ModelTrainer, kind: str) -> dict[str, Tensor]:
    """Return by name the state of a model, also the buffers that its `state_dict` leaves out: training may change them.

    Args:
        trainer: the model.
        kind: "model" or "best", the start of the names.
    """
    tensors = {f"{kind}.{trainer.index}.{name}": tensor for name, tensor in trainer.model.state_dict().items()}
    return tensors | {
        f"{kind}-buffer.{trainer.index}.{prefix}{'.' * bool(prefix)}{name}": buffer
        for prefix, layer in trainer.model.named_modules()
        for name, buffer in layer._buffers.items()
        if name in layer._non_persistent_buffers_set and buffer is not None and can_store(buffer)
    }


@torch.no_grad()
def load_model(trainer: ModelTrainer, tensors: Mapping[str, Tensor], kind: str) -> None:
    """Restore a model from `model_tensors`; files of earlier versions have no such buffers, which stay as they are."""
    trainer.model.load_state_dict(_under(tensors, f"{kind}.{trainer.index}."))
    for name, value in _under(tensors, f"{kind}-buffer.{trainer.index}.").items():
        owner, _, leaf = name.rpartition(".")
        buffers = trainer.model.get_submodule(owner)._buffers
        own = buffers.get(leaf)
        if own is not None and (own.shape, own.dtype) == (value.shape, value.dtype):
            own.copy_(value)
        else:  # a cache that grew with the inputs
            buffers[leaf] = value.to(trainer.device)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


__getattr__: Callable[[str], object] = forward(__name__)
