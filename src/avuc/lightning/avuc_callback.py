"""`AvUCCallback`: the epochs of every `AvUCLoss` in a LightningModule."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from avuc.core.data_parallel import sum_over_ranks
from avuc.core.errors import InputError
from avuc.losses import AvUCLoss, Quadrants


class AvUCCallback(Callback):
    """End the epochs of every `AvUCLoss` in the LightningModule, and log its threshold and quadrants.

    The losses are found among the submodules: `self.avuc = AvUCLoss()` in the module's `__init__` is enough. Logged
    after each epoch: `avuc/threshold` once it is known, and the quadrants of the epoch as shares of 1: `avuc/ac`,
    `avuc/au`, `avuc/ic` and `avuc/iu`. A run that resumes from a checkpoint trains like one that was not interrupted.
    Several processes (DDP) learn and log what one would.

    Args:
        quadrants: whether to log the quadrants (default True); they are computed once more at each step, without
            gradients.
        prefix: of the logged names (default "avuc"). If there are several losses, their names in the module follow.

    >>> from lightning.pytorch import Trainer
    >>> trainer = Trainer(callbacks=[AvUCCallback()], accelerator="cpu", logger=False,
    ...                   enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    """

    def __init__(self, *, quadrants: bool = True, prefix: str = "avuc") -> None:
        super().__init__()
        self.quadrants: bool = quadrants
        self.prefix: str = prefix
        self._losses: dict[str, AvUCLoss] = {}
        self._sums: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []
        # Number of the trainer's epochs that have been ended. The trainer's epoch number does not show this, because a
        # checkpoint that is written after validation comes before the end of its epoch.
        self._ended: int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the losses, before a checkpoint is loaded."""
        if stage != "fit":
            return
        losses = {name: module for name, module in pl_module.named_modules() if isinstance(module, AvUCLoss)}
        if not losses:
            raise InputError(
                "AvUCCallback: the LightningModule has no AvUCLoss; make it an attribute in __init__: "
                "self.avuc = AvUCLoss()"
            )
        self._losses = {f"{self.prefix}/{name}" if len(losses) > 1 else self.prefix: losses[name] for name in losses}
        self._sums, self._ended = {}, None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._ended is None:
            self._ended = trainer.current_epoch
        # A checkpoint after the last batch of an epoch comes before its end, and the first epoch of a training that
        # resumes from it starts without `on_train_epoch_start`.
        self._end(trainer.current_epoch)
        self._remove_hooks()
        if self.quadrants:
            for name, loss in self._losses.items():
                self._hooks.append(loss.register_forward_hook(self._counter(name), with_kwargs=True))
        epochs, batches = self._to_come(trainer)
        for name, loss in self._losses.items():
            reason = loss.unused_reason(epochs, batches)
            if reason:
                rank_zero_warn(f"AvUCCallback: {name}: {reason}")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # needed if a run resumes from a checkpoint that was written before the end of its epoch was counted
        self._end(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(trainer.current_epoch + 1)
        for name, loss in self._losses.items():
            values = {} if loss.warming_up else {f"{name}/threshold": loss.threshold.float()}
            if self.quadrants and not loss.warming_up:
                # every rank takes part, also one that has seen no batch
                total = sum_over_ranks(self._sums.pop(name, loss.gathered.new_zeros(4)), loss.group)
                if float(total.sum()) > 0:  # it is 0 in the epoch that ends the warm-up
                    shares = (total / total.sum()).float()
                    values |= {f"{name}/{key}": share for key, share in zip(Quadrants._fields, shares, strict=True)}
            pl_module.log_dict(values, on_step=False, on_epoch=True, sync_dist=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._remove_hooks()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._remove_hooks()

    def state_dict(self) -> dict[str, Any]:
        return {"ended": self._ended}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._ended = state_dict["ended"]

    def _to_come(self, trainer: Trainer) -> tuple[float, float]:
        """Return how many epochs and batches the training still has; infinity if that is not known."""
        assert self._ended is not None
        known = trainer.max_epochs is not None and trainer.max_epochs >= 0
        epochs = float(trainer.max_epochs or 0) - self._ended if known else math.inf
        per_epoch = float(trainer.num_training_batches)  # infinity for data without a length
        batches = epochs * per_epoch if epochs and per_epoch else 0.0
        if trainer.max_steps >= 0:
            most = (trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
            batches = min(batches, float(most))
            if 0 < per_epoch < math.inf:
                epochs = min(epochs, math.ceil(batches / per_epoch))
        return epochs, batches

    def _end(self, epochs: int) -> None:
        """End epochs of the losses until `epochs` have ended."""
        assert self._ended is not None
        while self._ended < epochs:
            for loss in self._losses.values():
                loss.epoch_end()
            self._ended += 1

    def _counter(self, name: str) -> Any:
        def count(loss: AvUCLoss, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not loss.training or loss.warming_up:
                return
            arguments = dict(zip(("logits", "labels", "weights"), args, strict=False)) | kwargs
            arguments.pop("total", None)
            with torch.no_grad():
                own = torch.stack(loss.quadrants(**arguments)).to(loss.gathered)
            self._sums[name] = self._sums[name] + own if name in self._sums else own

        return count

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
