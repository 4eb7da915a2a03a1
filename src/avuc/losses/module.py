"""`AvUCLoss`: the AvUC loss as a module that learns its threshold during a warm-up."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from avuc.core.data_parallel import Group, sum_over_ranks, world_size
from avuc.core.errors import InputError, NonFiniteError
from avuc.losses.functional import avuc_loss
from avuc.losses.inputs import checked_number, checked_whole, look_like_probs, one_of, refuse_nan
from avuc.losses.quadrants import UNCERTAINTIES, VARIANTS, Uncertainty, Variant, sample_statistics
from avuc.uncertainty import midpoint_threshold

DEFAULT_WARMUP_EPOCHS = 5
STATISTICS = ("threshold", "gathered", "pooled")
# ImageNet in batches of 64 has 20,000: a warm-up epoch longer than this is one that nobody ends
MANY_BATCHES = 25_000


class AvUCLoss(nn.Module):
    """The AvUC loss with a threshold that it learns. Add it to the cross-entropy or to the negative ELBO.

        β · log(1 + (AU + IC)/(AC + IU))

    During the warm-up the loss is 0, and the module sums the uncertainties of the training predictions. Then it sets
    the threshold to the midpoint of the mean uncertainties of accurate and inaccurate predictions
    (`avuc.uncertainty.midpoint_threshold`) and keeps it. Call `epoch_end()` after each epoch, and `eval()` before
    validation: predictions in train() mode count for the threshold.

    `state_dict` holds the threshold, the sums and the progress of the warm-up, so training can resume at any point.
    These tensors are not buffers: `.half()` and `.to(dtype)` do not round them, and DistributedDataParallel does not
    overwrite them with those of rank 0.

    Args:
        beta: factor of the loss (default 3).
        warmup_epochs: epochs before the threshold is set (default 5).
        variant: "paper" (default), "stopgrad", "monotone" or "soft"; see `avuc_quadrants`.
        warmup_steps: calls in train() mode before the threshold is set, for training loops without epochs. Replaces
            `warmup_epochs`.
        threshold: an uncertainty in nats; there is no warm-up then.
        uncertainty: "entropy" (default), or "mutual_information" for logits (S, N, C).
        ignore_index: label of the predictions to leave out (default −100).
        group: the data-parallel processes that share a batch: None (default) for all, False for this process alone.

    >>> avuc = AvUCLoss(beta=3.0, warmup_epochs=1)
    >>> logits, labels = torch.tensor([[2.0, 0.0], [0.1, 0.0]]), torch.tensor([1, 0])
    >>> avuc(logits, labels).item()
    0.0
    >>> avuc.epoch_end()
    >>> avuc(logits, labels).item() > 1  # wrong and certain, right and uncertain
    True
    """

    threshold: Tensor
    gathered: Tensor  # Σ u and count of the predictions of this process; first row inaccurate, second row accurate
    pooled: Tensor  # the same, summed over all processes at the end of each warm-up epoch

    def __init__(
        self,
        beta: float = 3.0,
        warmup_epochs: int = DEFAULT_WARMUP_EPOCHS,
        variant: Variant = "paper",
        *,
        warmup_steps: int | None = None,
        threshold: float | None = None,
        uncertainty: Uncertainty = "entropy",
        ignore_index: int = -100,
        group: Group = None,
    ) -> None:
        super().__init__()
        one_of("variant", variant, VARIANTS)
        one_of("uncertainty", uncertainty, UNCERTAINTIES)
        self.beta = checked_number("AvUCLoss: beta", beta)
        checked_whole("AvUCLoss: warmup_epochs", warmup_epochs)
        if warmup_steps is not None:
            checked_whole("AvUCLoss: warmup_steps", warmup_steps, least=1)
            if threshold is not None or warmup_epochs != DEFAULT_WARMUP_EPOCHS:
                other = "threshold" if threshold is not None else "warmup_epochs"
                raise InputError(f"AvUCLoss: give warmup_steps or {other}, not both")
        given = math.nan if threshold is None else checked_number("AvUCLoss: threshold", threshold)
        if threshold is None and warmup_steps is None and warmup_epochs == 0:
            raise InputError(
                "AvUCLoss: without a warm-up to learn it from a threshold must be given; found warmup_epochs=0"
            )
        self.variant, self.uncertainty = variant, uncertainty
        self.warmup_epochs = warmup_epochs if threshold is None and warmup_steps is None else 0
        self.warmup_steps = warmup_steps
        self.ignore_index, self.group, self.epoch = ignore_index, group, 0
        # these tensors are small and have values to keep, so a meta device is not used for them
        device = "cpu" if torch.get_default_device().type == "meta" else None
        self.threshold = torch.tensor(given, dtype=torch.float32, device=device)
        self.gathered = torch.zeros(2, 2, dtype=torch.float64, device=device)
        self.pooled = torch.zeros(2, 2, dtype=torch.float64, device=device)
        # Training calls: of the warm-up if `warmup_steps` is given, else of this warm-up epoch. A tensor on the host,
        # because torch.compile would compile anew for every value of an integer.
        self.steps = torch.zeros((), dtype=torch.int64, device="cpu")
        self._set_warming_up()

    @property
    def warming_up(self) -> bool:
        """Whether the threshold is still being learned."""
        return self._warming_up

    def forward(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss, a tensor without dimensions; 0 during the warm-up.

        Args:
            logits: (N, C), (S, N, C) for S posterior samples, or dense ([S,] N, C, *spatial).
            labels: class indices, (N) or (N, *spatial).
            weights: weight of each prediction, same shape as `labels`. Default None: 1 each.
        """
        if self._warming_up:
            if self.training:
                self._gather(logits, labels, weights)
                self._count()
            dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
            return torch.zeros((), dtype=dtype, device=logits.device)
        loss = avuc_loss(
            logits,
            labels,
            self.threshold,
            variant=self.variant,
            uncertainty=self.uncertainty,
            ignore_index=self.ignore_index,
            weights=weights,
            group=self.group,
        )
        return self.beta * loss

    def epoch_end(self) -> None:
        """Count an epoch. After the last warm-up epoch, set the threshold."""
        if self._warming_up and self.warmup_steps is None:
            if self.epoch + 1 == self.warmup_epochs:
                self._learn()
            else:
                self._pool()
            self.steps.zero_()
        self.epoch += 1

    @torch.no_grad()
    def _gather(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        predictions = sample_statistics(logits, labels, self.uncertainty, self.ignore_index, weights)
        refuse_nan(predictions.uncertainty, "logits")
        right = predictions.correct.to(self.gathered.dtype)
        groups = torch.stack((1 - right, right)) * predictions.weight
        self.gathered += torch.stack(((groups * predictions.uncertainty).sum(dim=1), groups.sum(dim=1)), dim=1)
        if not torch.compiler.is_compiling() and self.steps == 0 and look_like_probs(logits, labels):
            warnings.warn(
                "AvUCLoss: every row of the logits is non-negative and sums to 1, like probabilities; pass logits, "
                "before the softmax",
                stacklevel=4,
            )

    def _count(self) -> None:
        if self.warmup_steps is None and torch.compiler.is_compiling():
            return  # reading the counter would break the graph, and only the warning needs it
        self.steps += 1
        done = int(self.steps)
        if done == self.warmup_steps:
            self._learn()
        elif self.warmup_steps is not None:
            self._pool()
        elif done == MANY_BATCHES:
            warnings.warn(
                f"AvUCLoss: {done:,} batches in one warm-up epoch, and the loss is 0 until the warm-up ends; call "
                "epoch_end() after each epoch, or use warmup_steps",
                stacklevel=4,
            )

    def _pool(self) -> None:
        """Sum over all ranks, so that training can resume from the state of any rank."""
        if world_size(self.group) > 1:
            self.pooled += sum_over_ranks(self.gathered, self.group)
            self.gathered.zero_()

    @torch.no_grad()
    def _learn(self) -> None:
        """Set the threshold and end the warm-up."""
        total = self.pooled + sum_over_ranks(self.gathered, self.group)
        sums, counts = total.unbind(dim=1)
        if not total.isfinite().all():  # compiled steps cannot look at each batch
            self.gathered.zero_()
            self.pooled.zero_()
            raise NonFiniteError(
                "AvUCLoss: logits of the warm-up contained NaN or +inf, so no threshold can be learned from them; look "
                "for the first bad layer with torch.isfinite"
            )
        if not counts.sum() > 0:
            raise InputError("AvUCLoss: no prediction was seen in train() mode during the warm-up")
        self.threshold.copy_(midpoint_threshold(sums[1], sums[0], counts[1], counts[0]))
        self._warming_up = False

    def _set_warming_up(self) -> None:
        # a flag of its own: torch.compile compiles once for each of its two values, not for every epoch
        if self.warmup_steps is None:
            self._warming_up = self.epoch < self.warmup_epochs
        else:
            self._warming_up = int(self.steps) < self.warmup_steps

    # ---- state

    def statistics(self) -> list[Tensor]:
        """Return every tensor that training changes in place."""
        return [self.threshold, self.gathered, self.pooled]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        device = fn(self.threshold).device  # .half() changes no device, .to(device) changes nothing else
        for name in STATISTICS:
            tensor: Tensor = getattr(self, name)
            if tensor.device != device:
                # Apple's GPUs have no float64
                dtype = torch.float32 if name == "threshold" or device.type == "mps" else torch.float64
                setattr(self, name, tensor.to(device, dtype))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name in STATISTICS:
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
        keys = {name: prefix + name for name in STATISTICS}
        unexpected_keys[:] = [key for key in unexpected_keys if key not in keys.values()]
        for name, key in keys.items():
            own: Tensor = getattr(self, name)
            if key in state_dict and state_dict[key].shape != own.shape:
                error_msgs.append(f"{key} has shape {tuple(state_dict[key].shape)}, not {tuple(own.shape)}")
            elif key in state_dict:
                own.copy_(state_dict[key])
            elif name == "pooled":  # version 0.1.0 had none
                self.pooled.zero_()
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
        # epochs alone, as in version 0.1.0, unless steps are what ends the warm-up
        return torch.tensor(self.epoch if self.warmup_steps is None else [self.epoch, int(self.steps)])

    def set_extra_state(self, state: Tensor) -> None:
        self.epoch, steps, *_ = [*state.reshape(-1).tolist(), 0]
        self.steps.fill_(0 if self.warmup_steps is None else steps)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "pooled" not in self.__dict__:  # a module that version 0.1.0 pickled
            for name in ("threshold", "gathered"):
                setattr(self, name, self._buffers.pop(name))
            self.pooled, self.steps = torch.zeros_like(self.gathered), torch.zeros((), dtype=torch.int64)
            self.warmup_steps = None
            self._set_warming_up()
