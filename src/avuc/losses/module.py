"""`AvUCLoss`: the AvUC loss as a module that learns its threshold during a warm-up."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from avuc.core.caller import warn_caller
from avuc.core.data_parallel import Group, sum_over_ranks, world_size
from avuc.core.errors import InputError, NonFiniteError
from avuc.core.random_numbers import restored
from avuc.core.tasks import TASKS
from avuc.losses.accumulation import running_loss
from avuc.losses.functional import avuc_loss
from avuc.losses.inputs import (
    checked_number,
    checked_whole,
    look_like_probs,
    one_of,
    outside_transforms,
    plain_value,
    refuse_nan,
)
from avuc.losses.layout import Task, standard_layout
from avuc.losses.quadrants import (
    UNCERTAINTIES,
    VARIANTS,
    Quadrants,
    Uncertainty,
    Variant,
    quadrants_of,
    sample_statistics,
)
from avuc.losses.state import WarmupState
from avuc.losses.unfinished import Progress, watched
from avuc.uncertainty import midpoint_threshold

DEFAULT_WARMUP_EPOCHS = 5
# If a warm-up epoch has more batches than this, `epoch_end` was probably never called; ImageNet has 20,000 of 64.
MANY_BATCHES = 25_000


class AvUCLoss(WarmupState):
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
        variant: "monotone" (default), "paper", "stopgrad" or "soft"; see `avuc_quadrants`. "paper" is the printed loss.
            It can make every prediction uncertain: so it failed on plain networks trained by SGD, or on few images
            (docs/gotchas.md).
        warmup_steps: calls in train() mode before the threshold is set, for training loops without epochs. Replaces
            `warmup_epochs`.
        threshold: an uncertainty in nats; there is no warm-up then.
        uncertainty: "entropy" (default), or "mutual_information" for logits (S, N, C).
        ignore_index: label of the predictions to leave out (default −100).
        group: the data-parallel processes that share a batch: None (default) for all, False for this process alone.
        running: for micro-batches too small for a loss of their own: decay of an average of the quadrants over past
            batches, for example 0.9, whose loss is used. This is biased: the past comes from older weights and has no
            gradient. `total` is exact. Default None: every batch has its own loss.
        task, class_dim: the layout of the logits, as in `avuc_loss`. Default None: binary for one logit per label, else
            multiclass with the classes after N.

    >>> avuc = AvUCLoss(beta=3.0, warmup_epochs=1)
    >>> logits, labels = torch.tensor([[2.0, 0.0], [0.1, 0.0]]), torch.tensor([1, 0])
    >>> avuc(logits, labels).item()
    0.0
    >>> avuc.epoch_end()
    >>> avuc(logits, labels).item() > 1  # wrong and certain, right and uncertain
    True
    """

    def __init__(
        self,
        beta: float = 3.0,
        warmup_epochs: int = DEFAULT_WARMUP_EPOCHS,
        variant: Variant = "monotone",
        *,
        warmup_steps: int | None = None,
        threshold: float | None = None,
        uncertainty: Uncertainty = "entropy",
        ignore_index: int = -100,
        group: Group = None,
        running: float | None = None,
        task: Task | None = None,
        class_dim: int | None = None,
    ) -> None:
        super().__init__()
        one_of("variant", variant, VARIANTS)
        one_of("uncertainty", uncertainty, UNCERTAINTIES)
        self.beta: float = checked_number("AvUCLoss: beta", beta)
        checked_whole("AvUCLoss: warmup_epochs", warmup_epochs)
        if warmup_steps is not None:
            checked_whole("AvUCLoss: warmup_steps", warmup_steps, least=1)
            if threshold is not None or warmup_epochs != DEFAULT_WARMUP_EPOCHS:
                other = "threshold" if threshold is not None else "warmup_epochs"
                raise InputError(f"AvUCLoss: give warmup_steps or {other}, not both")
        initial_threshold = math.nan if threshold is None else checked_number("AvUCLoss: threshold", threshold)
        if threshold is None and warmup_steps is None and warmup_epochs == 0:
            raise InputError(
                "AvUCLoss: without a warm-up to learn it from a threshold must be given; found warmup_epochs=0"
            )
        if task is not None:
            one_of("task", task, TASKS)
        self.variant = variant
        self.uncertainty = uncertainty
        self.task = task
        self.class_dim: int | None = class_dim
        self.warmup_epochs: int = warmup_epochs if threshold is None and warmup_steps is None else 0
        self.warmup_steps = warmup_steps
        self.running: float | None = None if running is None else checked_number("AvUCLoss: running", running)
        if self.running is not None and self.running >= 1:
            raise InputError(f"AvUCLoss: running is a decay below 1, for example 0.9; found {running!r}")
        self.ignore_index: int = ignore_index
        self.group: Group = group
        self.epoch: int = 0
        # these tensors are small and have values to keep, so a meta device is not used for them
        device = "cpu" if torch.get_default_device().type == "meta" else None
        self.threshold: Tensor = torch.tensor(initial_threshold, dtype=torch.float32, device=device)
        self.gathered: Tensor = torch.zeros(2, 2, dtype=torch.float64, device=device)
        self.pooled: Tensor = torch.zeros(2, 2, dtype=torch.float64, device=device)
        averages = torch.zeros(5, dtype=torch.float64, device=device)
        self.averages: Tensor | None = None if running is None else averages
        # Training calls: of the warm-up if `warmup_steps` is given, else of this warm-up epoch. A tensor on the host,
        # because torch.compile would compile anew for every value of an integer.
        self.steps: Tensor = torch.zeros((), dtype=torch.int64, device="cpu")
        self._progress = watched(self, Progress(self.warmup_epochs, warmup_steps))
        self._set_warming_up()

    def extra_repr(self) -> str:
        threshold = "not learned yet" if self._warming_up else f"{float(self.threshold):.4g}"
        return f"beta={self.beta:g}, variant={self.variant!r}, threshold={threshold}"

    @property
    def warming_up(self) -> bool:
        """Whether the threshold is still being learned."""
        return self._warming_up

    def forward(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, *, total: Quadrants | None = None
    ) -> Tensor:
        """Return the loss, a tensor without dimensions; 0 during the warm-up.

        Args:
            logits: (N, C), (S, N, C) for S posterior samples, dense ([S,] N, C, *spatial), one per label for a binary
                task, or (N, L) for a multi-label one.
            labels: class indices, (N) or (N, *spatial); 0 and 1 for binary and multi-label logits.
            weights: weight of each prediction, same shape as `labels`. Default None: 1 each.
            total: the quadrants of the whole batch if this is one of its micro-batches; see `total`.
        """
        original_logits = logits
        logits, labels = standard_layout(logits, labels, self.task, self.class_dim)
        if self.training and not (torch.compiler.is_compiling() or self._looked):
            self._looked = True
            # rows [0, z] that were built from binary logits may look like probabilities
            if logits is original_logits and look_like_probs(logits, labels):
                warn_caller(
                    "AvUCLoss: every row of the logits is non-negative and sums to 1, like probabilities; pass logits, "
                    "before the softmax"
                )
        if self._warming_up:
            if self.training:
                self._note(batches=int(logits.requires_grad))
                self._gather(logits, labels, weights)
                with outside_transforms():
                    self._count()
            dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
            return torch.zeros((), dtype=dtype, device=logits.device)
        if self.averages is not None and self.running is not None and self.training and total is None:
            own = torch.stack(self._quadrants(logits, labels, weights))
            loss = running_loss(sum_over_ranks(own, self.group), self.averages, self.running)
            refuse_nan(loss, "logits")
            return self.beta * loss
        loss = avuc_loss(
            logits,
            labels,
            self.threshold,
            variant=self.variant,
            uncertainty=self.uncertainty,
            ignore_index=self.ignore_index,
            weights=weights,
            group=self.group,
            total=total,
            task="multiclass",
        )
        return self.beta * loss

    def total(self, batches: Iterable[tuple[Tensor, ...]]) -> Quadrants:
        """Return the quadrants of a whole batch, summed over its micro-batches: the first of two passes.

        Then `forward(logits, labels, total=total)` of each micro-batch has its part of the gradient of the whole batch:
        together they give exactly the gradient that one large batch would have. During the warm-up nothing is computed.

        Both passes must see the same logits. A generator that computes them lazily runs here without gradients, and
        torch's random state is restored afterwards: the second pass draws the same dropout masks and weights if it
        takes the micro-batches in the same order. Restore a generator of your own yourself.

        Args:
            batches: (logits, labels) or (logits, labels, weights) of each micro-batch.

        >>> net, avuc = torch.nn.Linear(3, 2), AvUCLoss(threshold=0.5)
        >>> parts = [(torch.randn(4, 3), torch.tensor([0, 1, 1, 0])) for _ in range(8)]
        >>> total = avuc.total((net(x), y) for x, y in parts)
        >>> for x, y in parts:
        ...     avuc(net(x), y, total=total).backward()
        """
        device = self.threshold.device
        sums = torch.zeros(4, dtype=self.gathered.dtype, device=device)
        if self._warming_up:
            return Quadrants(*sums)
        with torch.no_grad(), restored(device):
            for logits, labels, *weights in batches:
                sums += torch.stack(self.quadrants(logits, labels, *weights)).to(sums)
            refuse_nan(sums, "logits")
            return Quadrants(*sum_over_ranks(sums, self.group))

    def epoch_end(self) -> None:
        """Count an epoch. After the last warm-up epoch, set the threshold."""
        if self._warming_up and self.warmup_steps is None:
            if self.epoch + 1 == self.warmup_epochs:
                self._learn()
            else:
                self._pool()
            self.steps.zero_()
        self.epoch += 1
        self._note(epochs=1)

    def observe(self, uncertainty: Tensor, correct: Tensor, weight: Tensor) -> None:
        """Count a training batch for the threshold without its logits, for losses that never hold them.

        Args:
            uncertainty: of each prediction, (N).
            correct: whether each prediction is right, (N) bool.
            weight: weight of each prediction, (N); 0 leaves it out.
        """
        if self._warming_up and self.training:
            self._note(batches=1)
            self._add(uncertainty, correct, weight)
            self._count()

    def quadrants(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Quadrants:
        """Return the quadrants of this process's batch at the loss's threshold; arguments as in `forward`."""
        return self._quadrants(*standard_layout(logits, labels, self.task, self.class_dim), weights)

    def _quadrants(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Quadrants:
        statistics = sample_statistics(logits, labels, self.uncertainty, self.ignore_index, weights)
        return quadrants_of(statistics, self.threshold, self.variant)

    @torch.no_grad()
    def _gather(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        predictions = sample_statistics(logits, labels, self.uncertainty, self.ignore_index, weights)
        self._add(predictions.uncertainty, predictions.correct, predictions.weight)

    @torch.no_grad()
    def _add(self, uncertainty: Tensor, correct: Tensor, weight: Tensor) -> None:
        refuse_nan(uncertainty, "logits")
        right = correct.to(self.gathered.dtype)
        groups = torch.stack((1 - right, right)) * weight
        sums = torch.stack(((groups * uncertainty).sum(dim=1), groups.sum(dim=1)), dim=1)
        sums = plain_value(sums, torch.sum)  # vmap over examples gathers the same sums as one batch
        with outside_transforms():
            self.gathered += sums

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
        self._note()
