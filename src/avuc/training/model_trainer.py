"""`ModelTrainer`: one model in training, with its weights, optimizer, objective, random generators and meters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule
from avuc.core.errors import InputError, NonFiniteError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data.arrays import as_input
from avuc.data.augmentation import Augmentation
from avuc.data.tensors import MemoryData, TensorData
from avuc.losses.euc import with_dirichlet_head
from avuc.methods import SWAG, Dropout, Method, Objective, Terms
from avuc.methods.objective import ObjectiveLoss
from avuc.posterior import seed_of, seeded_generator
from avuc.training.distributed import Ranks, global_batch_norm
from avuc.training.freeze_trunk import freeze_trunk, untrained_modules
from avuc.training.meters import Meters, all_uncertain, labelled_rows
from avuc.training.moving_average import averaged_buffers, infinite_buffers
from avuc.training.outputs import logits_to_train
from avuc.training.precision import network_precision
from avuc.training.settings import TrainSettings
from avuc.training.start import Net, refuse_lazy, starting_net

# The random streams of a model. In each epoch each stream is seeded with (seed, model, stream, epoch). Validation has
# its own. Zeros at the end of a key do not count, so (seed, 0) is START: see `avuc.posterior.sample_seed`.
START, ORDER, AUGMENT, NOISE, GLOBAL, VALIDATE = range(6)
TRAPPED = 5  # epochs in a row with every prediction uncertain; trainings that went well had at most one


class NotFinite(Exception):
    """A term of the loss is NaN or infinite. Its argument is the name of the term."""


class ModelTrainer:
    """Trains one model.

    Everything random in an epoch is a function of (seed, index, epoch), so there is no random state to save.

    Args:
        method, net, objective, settings: as in `avuc.train.fit`.
        num_train: number of training images.
        num_classes: number of classes.
        seed: seed of the job.
        index: number of this model in the job; an ensemble has several.
        device: where the model is trained.
        ranks: the processes that share each batch.
    """

    def __init__(
        self,
        method: Method,
        net: Net,
        objective: Objective,
        settings: TrainSettings,
        *,
        num_train: int,
        num_classes: int,
        seed: int,
        index: int,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        self.method: Method = method
        self.settings: TrainSettings = settings
        self.ranks: Ranks = ranks
        self.device: torch.device = device
        self.seed: int = seed
        self.index: int = index
        self.num_classes: int = num_classes
        self.augmentation: Augmentation = Augmentation(settings.augmentation, pad=settings.pad, flip=settings.flip)
        self.augmenting: torch.Generator = torch.Generator(device=device)
        self.noise: torch.Generator = torch.Generator(device=device)
        network = with_head(starting_net(net, seeded_generator(seed, index, START)), objective)
        if settings.ema_decay or isinstance(method, SWAG):
            refuse_lazy(network, network.named_parameters())
        self.frozen_weights: set[str] = freeze_trunk(network, method) if settings.freeze_trunk else set()
        network = network.to(device)
        if device.type == "cuda":
            # the fast order for convolutions; a flat posterior keeps the order it is given
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model: nn.Module = method.build(network, generator=self.noise).to(device)
        self.loss: ObjectiveLoss = objective.loss(num_train).to(device)
        if self.loss.avuc is not None:
            self.loss.avuc.reported()  # `fit_many` says at the start if the warm-up takes all epochs
        self.parameters: list[nn.Parameter] = [
            parameter for parameter in self.model.parameters() if parameter.requires_grad
        ]
        # modules that stay in evaluation mode
        self.frozen: list[nn.Module] = untrained_modules(self.model) if settings.freeze_trunk else []
        if not self.parameters:
            raise InputError(f"{type(network).__name__} has no trainable weights")
        self.optimizer: torch.optim.Optimizer = _optimizer(self.parameters, self.rho_parameters, settings, device)
        self.meters: Meters = Meters(device, objective.uncertainty)
        self.epoch: int = 0
        self.trapped: int = 0  # epochs in a row that `_warn_if_trapped` counts
        self.kl_share: Tensor = torch.ones((), device=device)
        self.infinite: set[str] = infinite_buffers(self.model)
        self.average: list[Tensor] = (
            [tensor.detach().clone() for tensor in self.averaged_tensors()] if settings.ema_decay else []
        )
        # The pieces of a step; `compiled.attach` replaces them by compiled ones.
        self.augment: Callable[[Tensor, Tensor, Tensor], Tensor] = self.augmentation.apply
        self.forward: Callable[[Tensor], Tensor] = self.logits
        self.kl: Callable[[], Tensor | float] = lambda: method.kl(self.model)
        self.terms: Callable[[Tensor, Tensor, Tensor | float], Terms] = self.loss

    @property
    def rho_parameters(self) -> list[nn.Parameter]:
        """The ρ of a posterior. Weight decay does not apply to it: it would pull ρ to 0, which is σ = 0.69."""
        return [self.model.rho] if isinstance(self.model, BayesianModule) else []

    # epochs

    def begin(self, epoch: int) -> None:
        """Seed the random streams and set learning rate, KL weight and meters for an epoch."""
        own_rows = self.settings.rank_noise == "own" or draws_for_each_row(self.method)
        rank = (1 + self.ranks.rank,) if own_rows and self.ranks.size > 1 else ()
        self.augmenting.manual_seed(self._seed(AUGMENT, epoch))
        self.noise.manual_seed(self._seed(NOISE, epoch, *rank))
        self.epoch = epoch
        rate = self.settings.rate(epoch)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.settings.reset_optimizer:
            self._reset_moments()
        self.kl_share.fill_(self.settings.kl_share(epoch))
        avuc = self.loss.avuc
        if avuc is not None and not avuc.warming_up:
            self.meters.threshold.copy_(avuc.threshold)
        self.meters.begin()
        self.train_mode()
        self.loss.train()

    def train_mode(self) -> None:
        """Put the model into training mode, except for a frozen trunk."""
        self.model.train()
        for module in self.frozen:
            module.training = False

    def _reset_moments(self) -> None:
        """Set the optimizer's moments to 0 in place, because a captured or stacked step uses the same tensors."""
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def order(self, rows: int, epoch: int) -> Tensor:
        """Return the numbers of the training images in the order of an epoch."""
        return torch.randperm(rows, generator=seeded_generator(self.seed, self.index, ORDER, epoch))

    def global_seed(self, epoch: int) -> int:
        """Return the seed for torch's global generator, which a user's network may use."""
        return self._seed(GLOBAL, epoch, self.ranks.rank)

    def end(self, epoch: int) -> dict[str, float | None]:
        """Finish an epoch and return its record. The last warm-up epoch fixes the threshold."""
        record = self.meters.read(self.ranks.sum)
        self._warn_if_trapped(record, epoch)
        self.loss.epoch_end()
        if not self.settings.sync_batch_norm:
            self.ranks.average_statistics(self.model)
        self.method.epoch_end(self.model, epoch, self.settings.epochs)
        record["threshold"] = self.threshold
        return record

    def _warn_if_trapped(self, record: dict[str, float | None], epoch: int) -> None:
        """Warn if the printed loss keeps every training prediction uncertain; single epochs can pass by themselves."""
        objective, limit = self.loss.objective, self.threshold
        if limit is None or (objective.kind, objective.variant) != ("avuc", "paper"):
            return
        self.trapped = self.trapped + 1 if all_uncertain(record, limit) else 0
        if self.trapped == TRAPPED:
            warnings.warn(
                f"AvUC as printed: in {TRAPPED} epochs up to {epoch + 1} every training prediction was more uncertain "
                f"than the threshold ({limit:.2f} nats), and the loss can keep them there; use a smaller beta, "
                "another optimizer or variant='monotone', and watch the accuracy",
                stacklevel=2,
            )

    @property
    def threshold(self) -> float | None:
        """The objective's uncertainty threshold; None if it has none yet."""
        avuc = self.loss.avuc
        return None if avuc is None or avuc.warming_up else float(avuc.threshold)

    def _seed(self, *key: int) -> int:
        return seed_of(self.seed, self.index, *key)

    # steps

    def batch(self, data: MemoryData, indices: Tensor) -> tuple[Any, Tensor]:
        """Return this rank's share of the images `indices`, augmented, and their labels.

        Every rank draws random numbers for the whole batch, so that all ranks together use the crops of one process.
        """
        share = self.ranks.share(len(indices))
        drawn = self.augmentation.draw(len(indices), self.augmenting, self.device)
        rows = indices[share]
        if isinstance(data, TensorData):
            return data.augmented(rows, self.augmentation, drawn[share])
        return as_input(self.augment(data.images, rows, drawn[share])), data.labels[rows]

    def logits(self, images: Tensor) -> Tensor:
        return logits_to_train(self.method.logits(self.model, images), images)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Take one step: forward pass, loss, backward pass, update, meters.

        The step reads nothing back to the CPU, so it can be captured. `state()` lists everything it changes.

        Args:
            images, labels: this rank's share of the batch.
        """
        settings = self.settings
        self.optimizer.zero_grad(set_to_none=True)
        with (
            network_precision(self.device, settings.precision),
            global_batch_norm(self.model, self.ranks, over_ranks=settings.sync_batch_norm),
        ):
            logits = self.forward(images)
        kl = self.kl()
        try:
            terms = self.terms(logits, labels, kl * self.kl_share if isinstance(kl, Tensor) else kl)
        except NonFiniteError as error:  # the AvUC loss checks its logits where that is possible, on all ranks at once
            raise NotFinite("logits") from error
        self._scaled(terms, logits, labels).backward()
        self.ranks.average_gradients(self.parameters)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        gradient = nn.utils.get_total_norm(gradients)
        if settings.clip_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, settings.clip_norm, gradient)
        self.optimizer.step()
        if self.average:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self.averaged_tensors(), 1 - settings.ema_decay)
        self.meters.add(*labelled_rows(logits, labels), terms, gradient)

    def _scaled(self, terms: Terms, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of this rank's rows, scaled so that the mean over ranks is the loss of the whole batch."""
        if self.ranks.size == 1:
            return terms.total
        # the cross-entropy is a mean over labels: of pixels and tokens, and without the rows that have none
        own = (labels != IGNORE_INDEX).to(terms.nll.dtype).sum()
        whole = self.ranks.sum(own)
        if not labels.numel():
            # The mean cross-entropy of no rows is NaN. The empty sum still runs the backward pass through every layer,
            # where the other ranks may be waiting.
            without = logits.sum() + self.loss.objective.beta * terms.avuc
            return without + terms.kl if self.loss.objective.kl_gradient else without
        return terms.total + (self.ranks.size * own / whole.clamp(min=1) - 1) * terms.nll

    # what a step changes

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes."""
        slots = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *self.loss.statistics(), *self.average]
        return tensors + self.meters.state + [slot for slot in slots if isinstance(slot, Tensor)]

    def averaged_tensors(self) -> list[Tensor]:
        """Return the tensors that a moving average is kept of: weights and floating-point buffers of the network."""
        return [parameter.detach() for parameter in self.parameters] + averaged_buffers(self.model, self.infinite)

    @torch.no_grad()
    def swap_average(self) -> None:
        """Exchange the weights and their moving average."""
        if not self.average:
            return
        for live, average in zip(self.averaged_tensors(), self.average, strict=True):
            before = live.clone()
            live.copy_(average)
            average.copy_(before)


def with_head(net: nn.Module, objective: Objective) -> nn.Module:
    """Return the network with the last layer that an objective needs, if it has none."""
    return with_dirichlet_head(net, objective.options.get("evidence")) if objective.kind == "euc" else net


def draws_for_each_row(method: Method) -> bool:
    """Return whether a step draws random numbers for each row; ranks then need different random streams."""
    method = getattr(method, "member", method)
    return isinstance(method, Dropout) or getattr(method, "estimator", "weight") == "flipout"


def optimizer_groups(parameters: Sequence[Tensor], without_decay: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer: weight decay for all parameters but `without_decay`."""
    spared = {id(parameter) for parameter in without_decay}
    groups: list[dict[str, Any]] = [{"params": [other for other in parameters if id(other) not in spared]}]
    return [*groups, {"params": list(without_decay), "weight_decay": 0.0}] if without_decay else groups


def _optimizer(
    parameters: list[nn.Parameter], rho: list[nn.Parameter], settings: TrainSettings, device: torch.device
) -> torch.optim.Optimizer:
    fast = device.type == "cuda"
    # on CUDA the learning rate is a tensor, so that a captured step reads the current value
    rate = torch.tensor(settings.learning_rate, device=device) if fast else settings.learning_rate
    decay = settings.weight_decay
    groups = optimizer_groups(parameters, rho if decay else [])
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=rate, weight_decay=decay, fused=fast or None, capturable=fast)
    return torch.optim.SGD(
        groups,
        lr=rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=decay,
        fused=fast or None,
    )
