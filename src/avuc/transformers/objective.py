"""`AvUCObjective`: cross-entropy plus AvUC as the loss of `Trainer`, with a state that survives checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import TrainerCallback

from avuc.core.data_parallel import world_size
from avuc.core.errors import InputError
from avuc.losses import AvUCLoss
from avuc.losses.inputs import checked_whole
from avuc.transformers.rows import logits_of, rows_of
from avuc.transformers.stored import restore, stored, unused_reason

# name of our entry in `trainer_state.json`
KEY = "avuc.AvUCLoss"


class AvUCObjective(TrainerCallback):
    """Cross-entropy plus AvUC, for `Trainer`: a `compute_loss_func` and a callback in one. `AvUCTrainer` uses it.

        Trainer(..., compute_loss_func=objective, callbacks=[objective])

    As a callback it ends the epochs of `avuc` and keeps its threshold in the checkpoints (`trainer_state.json`), so
    training resumes with it. Evaluation does not count for the threshold, and its loss is the cross-entropy alone, so
    that "eval_loss" before and after the warm-up can be compared.

    With gradient accumulation the AvUC loss of each micro-batch is computed on its own and averaged over the
    micro-batches. This is not the AvUC loss of the whole batch, but close to it for micro-batches of 64 predictions or
    more; each labelled token is one prediction. For smaller ones use `AvUCLoss(running=0.9)`, which is biased.

    If the model is a posterior (`avuc.bayes.BayesianModule`), its KL/num_train is added too: the loss is the negative
    ELBO plus AvUC. The cross-entropy is a mean over predictions, so num_train is the number of predictions in the
    training set: for token classification that of the labelled tokens, which must be given.

    Args:
        avuc: the AvUC loss. Default None: `AvUCLoss()`, with a warm-up of 5 epochs.
        loss: a function (outputs, labels, num_items_in_batch) -> loss that replaces the cross-entropy. Default None.
        label_smoothing: of the cross-entropy (default 0).
        shift_labels: whether position t predicts the label of position t + 1, as in causal language models (default
            False).
        kl_weight: factor of the KL of a posterior (default 1).
        num_train: number of predictions in the training set, for the KL. Default None: the rows of the data set.
        task: "multiclass" (default); or "multilabel" for labels (N, L) of 0 and 1: the cross-entropy is the binary one,
            and each decision is one prediction.

    >>> objective = AvUCObjective(AvUCLoss(beta=1.0, warmup_steps=1))
    >>> outputs, labels = {"logits": torch.zeros(2, 3)}, torch.tensor([0, 1])
    >>> round(objective(outputs, labels).item(), 4)  # the warm-up: log 3
    1.0986
    """

    def __init__(
        self,
        avuc: AvUCLoss | None = None,
        *,
        loss: Callable[..., Tensor] | None = None,
        label_smoothing: float = 0.0,
        shift_labels: bool = False,
        kl_weight: float = 1.0,
        num_train: int | None = None,
        task: str = "multiclass",
    ) -> None:
        if avuc is not None and not isinstance(avuc, AvUCLoss):
            raise InputError(f"AvUCObjective: avuc must be an AvUCLoss, found {type(avuc).__name__}")
        if avuc is not None and avuc.task not in (None, "multiclass"):
            raise InputError(
                f"AvUCObjective: leave task={avuc.task!r} out of AvUCLoss and give task= to AvUCObjective; AvUCTrainer "
                "finds it in the model's problem_type"
            )
        if num_train is not None:
            checked_whole(
                "AvUCObjective: num_train is the number of predictions in the training set and", num_train, least=1
            )
        self.avuc: AvUCLoss = AvUCLoss() if avuc is None else avuc
        self.loss: Callable[..., Tensor] | None = loss
        self.label_smoothing: float = label_smoothing
        self._trainer_smoothing = 0.0  # of the trainer's settings, if this objective has none
        self.shift_labels: bool = shift_labels
        self.kl_weight: float = kl_weight
        self.task: str = task
        self.micro_batches: int = 1  # number of micro-batches of one optimiser step
        self.num_train = num_train
        self._posterior: Any = None
        self._num_train = 0
        self._check_kl = False  # whether the first batch of a training shows if `num_train` may be the number of rows
        self._replicas = 1  # the factor by which Trainer multiplies the loss
        self._is_callback = False

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
        """Return the loss of a batch; in evaluation, where gradients are off, the cross-entropy alone.

        Args:
            outputs: of the model; its logits are (N, C) or (N, T, C).
            labels: class numbers, (N) or (N, T); those that are −100 are left out.
            num_items_in_batch: number of labels in all micro-batches of this step, as `Trainer` gives it. Default None:
                this batch is the only one.
        """
        logits, classes = rows_of(logits_of(outputs), labels, task=self.task, shift_labels=self.shift_labels)
        classes = classes.to(logits.device)
        if self.loss is not None:
            base = self.loss(outputs, labels, num_items_in_batch)
        else:
            base = self._cross_entropy(logits, classes, num_items_in_batch)
        if not torch.is_grad_enabled():
            return base
        if self.avuc.warmup_epochs and not self._is_callback:
            raise InputError(
                "AvUCObjective: the warm-up counts epochs, and only a callback sees them; give Trainer callbacks="
                "[objective] too, or use AvUCTrainer, or AvUCLoss(warmup_steps=...)"
            )
        self.avuc.to(logits.device).train()
        extra: Tensor = self.avuc(logits, classes)
        if self._posterior is not None:
            self._check_num_train(labels, classes)
            extra = extra + self.kl_weight * self._posterior.kl() / self._num_train
        # Trainer adds up the micro-batches without dividing by their number, and may multiply by the number of ranks
        share = self.micro_batches * (1 if num_items_in_batch is None else self._replicas)
        return base + extra / share

    def _check_num_train(self, labels: Tensor, classes: Tensor) -> None:
        """Warn once in a training if rows have several labels: the number of rows is not that of predictions then."""
        counted = int((classes != self.avuc.ignore_index).sum()) if self._check_kl else 0
        self._check_kl = False
        if counted > len(labels):
            warnings.warn(
                f"AvUCObjective: the KL is divided by the {self._num_train} rows of the training set, but the "
                f"cross-entropy is a mean over labels, {counted} in the first {len(labels)} rows, so the KL weighs too "
                "much; give the number of all labels: AvUCTrainer(avuc=AvUCObjective(AvUCLoss(...), num_train=...))",
                stacklevel=3,
            )

    def _cross_entropy(self, logits: Tensor, labels: Tensor, items: Any) -> Tensor:
        total = F.cross_entropy(
            logits.float(),
            labels,
            reduction="sum",
            ignore_index=self.avuc.ignore_index,
            label_smoothing=self.label_smoothing or self._trainer_smoothing,
        )
        micro_batches = self.micro_batches if torch.is_grad_enabled() else 1
        # for some models Trainer also counts the first label of each row, which no position predicts
        if items is None or (self.shift_labels and micro_batches == world_size(None) == 1):
            items = (labels != self.avuc.ignore_index).sum() * micro_batches
        # DataParallel repeats the number for each GPU
        items = items.reshape(-1)[0].to(total.device) if isinstance(items, Tensor) else torch.tensor(items)
        mean: Tensor = total / items.clamp(min=1)
        return mean

    # ---- as a callback

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the label smoothing, also for evaluations before the first training."""
        self._trainer_smoothing = args.label_smoothing_factor

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Note the settings of the run; restore the threshold if the run resumes."""
        self._is_callback = True
        self.micro_batches = args.gradient_accumulation_steps
        self._trainer_smoothing = args.label_smoothing_factor
        average = getattr(args, "average_tokens_across_devices", False)
        self._replicas = (max(args.n_gpu, 1) if args.n_gpu > 1 else args.world_size) if average else 1
        module = unwrapped(model)
        self._posterior = None  # of another training with this objective
        self._check_kl = self.num_train is None
        if hasattr(module, "kl"):
            self._posterior, self._num_train = module, self.num_train or _rows_in(kwargs["train_dataloader"])
        saved = state.stateful_callbacks.get(KEY)
        if saved is not None:
            restore(self.avuc, saved, KEY)
            # a checkpoint after the last step of an epoch was written before the epoch ended
            while self.avuc.epoch < int(state.epoch or 0):
                self.avuc.epoch_end()
        elif state.global_step > 0:
            warnings.warn(
                "AvUCObjective: the checkpoint has no AvUC state, so the warm-up starts again; give the objective to "
                "Trainer(callbacks=[...]) in the run that writes checkpoints",
                stacklevel=2,
            )
        reason = unused_reason(self.avuc, args, state)
        if reason:
            warnings.warn(f"AvUCObjective: {reason}", stacklevel=2)

    def on_step_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        """Note the number of micro-batches: the last step of an epoch may have fewer than the others."""
        most = args.gradient_accumulation_steps
        try:
            batches = len(train_dataloader)
        except TypeError:  # a stream
            return
        steps = -(-batches // most)
        last = steps > 0 and state.global_step % steps == steps - 1
        self.micro_batches = batches - most * (steps - 1) if last else most

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the state into that of `Trainer`, which may write a checkpoint next."""
        state.stateful_callbacks[KEY] = stored(self.avuc)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the epoch of `avuc`."""
        self.avuc.epoch_end()
        state.stateful_callbacks[KEY] = stored(self.avuc)


def unwrapped(model: Any) -> Any:
    """Return the model inside the wrappers of data-parallel training."""
    while isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        model = model.module
    return model


def _rows_in(loader: Any) -> int:
    try:
        return len(loader.dataset)
    except TypeError as error:  # a stream
        raise InputError(
            "AvUCObjective: the KL needs the number of training examples, and the data set has no length; give it: "
            "AvUCTrainer(avuc=AvUCObjective(AvUCLoss(...), num_train=...))"
        ) from error
