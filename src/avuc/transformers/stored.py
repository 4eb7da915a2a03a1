"""The state of `AvUCLoss` as plain numbers: `trainer_state.json` holds it without pickle."""

from __future__ import annotations

import math
from typing import Any

import torch

from avuc.core.errors import InputError
from avuc.losses import AvUCLoss


def stored(avuc: AvUCLoss) -> dict[str, Any]:
    """Return the state as numbers and lists of numbers."""
    numbers = {name: tensor.tolist() for name, tensor in avuc.state_dict().items()}
    # JSON has no NaN
    return {name: None if value != value else value for name, value in numbers.items()}


def restore(avuc: AvUCLoss, saved: Any, key: str) -> None:
    """Load what `stored` returned; `key` is the name of the entry in `trainer_state.json`."""
    state = avuc.state_dict()
    try:
        for name in state.keys() & {*saved}:
            value = torch.tensor(math.nan if saved[name] is None else saved[name], dtype=state[name].dtype)
            # the extra state has one number (epochs) or two (epochs and steps)
            state[name] = value if name == "_extra_state" else value.reshape(state[name].shape)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"trainer_state.json: the entry {key!r} is damaged ({error!r})") from error
    avuc.load_state_dict(state)
