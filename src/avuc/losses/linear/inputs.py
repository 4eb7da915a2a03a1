"""Checks of the arguments of `linear_avuc`, with one-line errors, and its inputs as the tiles take them."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from avuc.core.data_parallel import Group
from avuc.core.errors import InputError
from avuc.losses.inputs import checked_number, transforming


def check_tensors(hidden: Any, weight: Any, labels: Any, bias: Any) -> None:
    """Raise `InputError` unless types, shapes and devices go together."""
    given = {"hidden": hidden, "weight": weight, "labels": labels, **({} if bias is None else {"bias": bias})}
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise InputError(f"linear_avuc: {name} must be a tensor; found {type(value).__name__}")
        if value.device != hidden.device:
            raise InputError(
                f"linear_avuc: {name} is on {value.device} and hidden on {hidden.device}; move one of them"
            )
        if name != "labels" and not value.is_floating_point():
            raise InputError(f"linear_avuc: {name} must be floating point; found {value.dtype}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"linear_avuc: labels must be integers; found {labels.dtype}")
    problem = None
    if hidden.ndim < 2 or weight.ndim != 2 or weight.shape[1] != hidden.shape[-1] or not weight.numel():
        problem = "weight (V, D)"
    elif hidden.shape[:-1] != labels.shape:
        problem = "labels (...)"
    if problem is not None:
        shapes = f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and labels {tuple(labels.shape)}"
        raise InputError(f"linear_avuc: hidden (..., D) goes with {problem}; found {shapes}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(f"linear_avuc: bias must have shape ({len(weight)},); found {tuple(bias.shape)}")
    if transforming():
        raise InputError(
            "linear_avuc: torch.func and forward-mode derivatives are not available; use avuc_loss on logits"
        )


def check_groups(vocab_group: dist.ProcessGroup | None, group: Group) -> None:
    """Raise `InputError` if the default group would sum the same tokens several times."""
    if vocab_group is not None and group is None:
        raise InputError(
            "linear_avuc: with vocab_group give group as well: the data-parallel processes of this part of the "
            "vocabulary, or False"
        )


def positive(name: str, value: Any) -> float | None:
    """Return a number above 0, or None; a learned factor is refused."""
    if value is None:
        return None
    if isinstance(value, Tensor) and value.requires_grad:
        raise InputError(f"linear_avuc: {name} has no gradient here; multiply hidden by a learned scale instead")
    number = checked_number(f"linear_avuc: {name}", value)
    if number == 0:
        raise InputError(f"linear_avuc: {name} must be above 0; leave it out for none")
    return number


def as_the_layer(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return hidden, weight and bias in the type that a linear layer would compute in, autocast included."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if hidden.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        types = ", ".join(str(value.dtype) for value in (hidden, weight, bias) if value is not None)
        raise InputError(
            f"linear_avuc: hidden, weight and bias must have one type; found {types}: use autocast or .to()"
        )
    return hidden, weight, bias


def without_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    """Return a context without autocast on a type of device; torch's own takes long where autocast is off anyway."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext()


def next_labels(labels: Tensor, ignore_index: int) -> Tensor:
    """Return for each position the label of the next one; the last position has none."""
    if not labels.ndim:
        raise InputError("linear_avuc: shift needs labels with a dimension of positions")
    last = torch.full_like(labels[..., :1], ignore_index)
    return torch.cat((labels[..., 1:], last), dim=-1)


def place_in_vocabulary(words: int, vocab_group: dist.ProcessGroup | None, device: torch.device) -> tuple[int, int]:
    """Return the number of the first word of this process, and the number of all words."""
    if vocab_group is None:
        return 0, words
    rank = dist.get_rank(vocab_group)
    if rank < 0:
        raise InputError("linear_avuc: this process is not a member of vocab_group; use its own group")
    sizes = torch.zeros(dist.get_world_size(vocab_group), dtype=torch.long, device=device)
    sizes[rank] = words
    dist.all_reduce(sizes, group=vocab_group)
    parts = sizes.tolist()
    return sum(parts[:rank]), sum(parts)


def checked_decay(decay: Any, running: Any) -> float:
    """Return the decay of running quadrants; `InputError` if it or the averages are not valid."""
    if not (isinstance(running, Tensor) and running.shape == (5,) and running.is_floating_point()):
        raise InputError("linear_avuc: running must be a tensor of 5 floats, zeros at first: torch.zeros(5).double()")
    value = checked_number("linear_avuc: decay", decay)
    if not value < 1 or math.isnan(value):
        raise InputError(f"linear_avuc: decay must be below 1, for example 0.9; found {decay!r}")
    return value
