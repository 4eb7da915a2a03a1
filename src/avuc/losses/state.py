"""The state of `AvUCLoss`: what it saves, loads and moves to another device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.losses.unfinished import Progress

STATISTICS = ("threshold", "gathered", "pooled")
# attributes that modules pickled by earlier versions do not have
ADDED: dict[str, Any] = {"running": None, "averages": None, "task": None, "class_dim": None, "_progress": None}


class WarmupState(nn.Module):
    """Tensors that are not buffers: `.half()` does not round them and DDP does not overwrite them with rank 0's."""

    threshold: Tensor
    gathered: Tensor  # Σ u and count of the predictions of this process; first row inaccurate, second row accurate
    pooled: Tensor  # the same, summed over all processes at the end of each warm-up epoch
    averages: Tensor | None  # decayed sums of the quadrants and of the batches' weights, if `running` is given
    steps: Tensor
    warmup_epochs: int
    warmup_steps: int | None
    epoch: int
    beta: float
    _warming_up: bool
    _progress: Progress | None
    _looked: bool = False  # whether a batch was checked for probabilities in place of logits

    def reported(self) -> None:
        """Say that somebody else reports a warm-up that does not end."""
        if self._progress is not None:
            self._progress.finished = True

    def _note(self, batches: int = 0, epochs: int = 0) -> None:
        """Keep the progress of the training, for a warning at its end. A compiled step does not count."""
        if self._progress is not None and not torch.compiler.is_compiling():
            self._progress.batches += batches
            self._progress.epochs += epochs
            self._progress.finished |= not self._warming_up or not self.beta

    def unused_reason(self, epochs: float, calls: float = math.inf) -> str:
        """Return why the loss stays 0 in the rest of a training; an empty text if it does not, or if that is not known.

        The caller reports it, so the loss itself says nothing at the end.

        Args:
            epochs: epochs to come; infinity if that is not known.
            calls: calls in train() mode to come; infinity if that is not known.
        """
        self.reported()  # a training that asks may stop here and be resumed in another process
        if not self._warming_up or not self.beta:
            return ""
        left, given, unit = self.warmup_epochs - self.epoch, epochs, "epochs"
        if self.warmup_steps is not None:
            left, given, unit = self.warmup_steps - int(self.steps), calls, "batches"
        if left < given:
            return ""
        return (
            f"the AvUC term is never used: its warm-up takes {left} {unit}, and the training has {given:.0f}; pass "
            "fewer warmup_epochs, warmup_steps, or a threshold"
        )

    def _set_warming_up(self) -> None:
        # a flag of its own: torch.compile compiles once for each of its two values, not for every epoch
        if self.warmup_steps is None:
            self._warming_up = self.epoch < self.warmup_epochs
        else:
            self._warming_up = int(self.steps) < self.warmup_steps
        self._note()

    def _names(self) -> tuple[str, ...]:
        return STATISTICS if self.averages is None else (*STATISTICS, "averages")

    def statistics(self) -> list[Tensor]:
        """Return every tensor that training changes in place."""
        return [getattr(self, name) for name in self._names()]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        device = fn(self.threshold).device  # .half() changes no device, .to(device) changes nothing else
        for name in self._names():
            tensor: Tensor = getattr(self, name)
            if tensor.device != device:
                # Apple's GPUs have no float64
                dtype = torch.float32 if name == "threshold" or device.type == "mps" else torch.float64
                setattr(self, name, tensor.to(device, dtype))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name in self._names():
            destination[prefix + name] = getattr(self, name)
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        keys = {name: prefix + name for name in self._names()}
        unexpected_keys[:] = [key for key in unexpected_keys if key not in keys.values()]
        for name, key in keys.items():
            own: Tensor = getattr(self, name)
            if key in state_dict and state_dict[key].shape != own.shape:
                error_msgs.append(f"{key} has shape {tuple(state_dict[key].shape)}, not {tuple(own.shape)}")
            elif key in state_dict:
                own.copy_(state_dict[key])
            elif name in ("pooled", "averages"):  # version 0.1.0 had none
                own.zero_()
            elif strict:
                missing_keys.append(key)
        if self.warmup_steps is not None and not self.steps and not self.threshold.isnan():
            self.steps.fill_(self.warmup_steps)  # the threshold was learned in epochs
        self._set_warming_up()
        if not self._warming_up and bool(self.threshold.isnan()):
            raise InputError(
                "AvUCLoss: this state was saved before its warm-up ended, and has no threshold; load it into an "
                f"AvUCLoss with a longer warm-up than {self.warmup_steps or self.warmup_epochs}"
            )

    def get_extra_state(self) -> Tensor:
        # only the epoch, as in version 0.1.0, unless the warm-up ends after a number of steps
        return torch.tensor(self.epoch if self.warmup_steps is None else [self.epoch, int(self.steps)])

    def set_extra_state(self, state: Tensor) -> None:
        self.epoch, steps, *_ = [*state.reshape(-1).tolist(), 0]
        self.steps.fill_(0 if self.warmup_steps is None else steps)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name, default in ADDED.items():
            self.__dict__.setdefault(name, default)
        if "pooled" not in self.__dict__:  # a module that version 0.1.0 pickled
            for name in ("threshold", "gathered"):
                setattr(self, name, self._buffers.pop(name))
            self.pooled, self.steps = torch.zeros_like(self.gathered), torch.zeros((), dtype=torch.int64)
            self.warmup_steps = None
            self._set_warming_up()
