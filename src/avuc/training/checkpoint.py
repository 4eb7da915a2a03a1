"""Checkpoints: one file per kept epoch, tensors and JSON in the safetensors layout, written whole or not at all.

    model.<m>.<name>  loss.<m>.<name>  average.<m>.<i>  best.<m>.<name>  optimizer.<m>.<i>.<slot>  meter.<m>

Metadata "avuc" is JSON: format, epoch (how many are done), history, identity (what was trained, to refuse another run)
and the best validation. No state of a random generator is needed: each epoch's streams start from (seed, epoch).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.training.model_trainer import Member

__all__ = ["Checkpoint", "latest", "load_member", "member_tensors", "save"]

KEPT = 2
NAME = re.compile(r"checkpoint-(\d{6})\.safetensors")


@dataclass
class Checkpoint:
    """What is known after `epoch` epochs."""

    epoch: int
    history: list[dict[str, Any]]
    identity: dict[str, str]
    tensors: dict[str, Tensor]
    best: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False
    seconds: float = 0.0
    path: Path | None = None


def save(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then remove those before the one before it."""
    directory.mkdir(parents=True, exist_ok=True)
    # from a device once: the checksum and the file both read them
    tensors = {name: tensor.detach().cpu() for name, tensor in checkpoint.tensors.items()}
    told = {
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
        write_tensors(path, tensors, {"avuc": json.dumps(told)})
    except OSError as error:
        raise InputError(
            f"{path}: cannot write the checkpoint ({error.strerror}); the run stops here, checkpoints before it are "
            "whole: make room and run the same command again"
        ) from error
    for old in sorted(_files(directory))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def latest(directory: Path, identity: Mapping[str, str], say: Callable[[str], None]) -> Checkpoint | None:
    """The newest sound checkpoint; a damaged one is named and passed over. Another run's is refused."""
    for path in sorted(_files(directory), reverse=True):
        try:
            found = _read(path)
        except (InputError, ValueError, KeyError, TypeError) as error:
            say(f"{path}: damaged checkpoint ({error}); going back to the one before")
            continue
        different = [
            f"{key} is {identity.get(key, 'not set')}, was {found.identity.get(key, 'not set')}"
            for key in sorted({*identity, *found.identity})
            if identity.get(key) != found.identity.get(key)
        ]
        if different:
            raise InputError(
                f"{path}: made by another run ({'; '.join(different[:4])}); choose another folder, or remove this one"
            )
        return found
    return None


def _read(path: Path) -> Checkpoint:
    mapped, metadata = read_tensors(path)
    told = json.loads(metadata["avuc"])
    tensors = {name: tensor.clone() for name, tensor in mapped.items()}
    if checksum(tensors) != told["checksum"]:
        raise InputError("the tensors do not have the stored checksum")
    return Checkpoint(
        told["epoch"], told["history"], told["identity"], tensors, told["best"], told["stopped"], told["seconds"], path
    )


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of all bytes, in the order of the names."""
    value = 0
    for name in sorted(tensors):
        host = tensors[name].detach().cpu().contiguous()
        if host.numel():
            value = zlib.crc32(host.reshape(-1).view(torch.uint8).numpy().data, value)
    return value


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if NAME.fullmatch(path.name)] if directory.is_dir() else []


# one model's part


def member_tensors(member: Member) -> dict[str, Tensor]:
    """Everything needed to go on with a model, named."""
    prefix = member.index
    tensors = {f"model.{prefix}.{name}": tensor for name, tensor in member.model.state_dict().items()}
    tensors |= {f"loss.{prefix}.{name}": tensor for name, tensor in member.loss.state_dict().items()}
    tensors |= {f"average.{prefix}.{place}": tensor for place, tensor in enumerate(member.average)}
    tensors[f"meter.{prefix}"] = member.meters.threshold
    for place, parameter in enumerate(member.parameters):
        for slot, value in member.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{prefix}.{place}.{slot}"] = value
    return tensors


@torch.no_grad()
def load_member(member: Member, tensors: Mapping[str, Tensor]) -> None:
    """Put a model back to where `member_tensors` found it."""
    prefix = member.index
    member.model.load_state_dict(_under(tensors, f"model.{prefix}."))
    member.loss.load_state_dict(_under(tensors, f"loss.{prefix}."))
    for place, average in enumerate(member.average):
        average.copy_(tensors[f"average.{prefix}.{place}"])
    member.meters.threshold.copy_(tensors[f"meter.{prefix}"])
    for name, value in _under(tensors, f"optimizer.{prefix}.").items():
        number, slot = name.split(".", 1)
        parameter = member.parameters[int(number)]
        member.optimizer.state[parameter][slot] = value.to(parameter.device, copy=True)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
