"""The state of `AvUCLoss` in a training of `Trainer`: plain numbers, held by `trainer_state.json` without pickle."""

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


def unused_reason(avuc: AvUCLoss, args: Any, state: Any) -> str:
    """Return why the AvUC term is never used in what is left of a training; an empty text if it is used.

    Args:
        avuc: the loss.
        args: of `Trainer`.
        state: of `Trainer`.
    """
    epochs = math.ceil(state.num_train_epochs or 0) - int(state.epoch or 0)
    steps = (state.max_steps or 0) - state.global_step
    reason = avuc.unused_reason(epochs, steps * args.gradient_accumulation_steps)
    return reason if epochs > 0 and steps > 0 else ""  # a training without steps has nothing to use it in
