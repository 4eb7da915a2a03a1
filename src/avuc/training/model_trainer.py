"""One model in training: its weights, optimiser, objective, random streams and meters, and one step of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule
from avuc.core.errors import InputError
from avuc.data.arrays import Dataset, as_input, epoch_batches
from avuc.data.augmentation import Augmentation
from avuc.methods import Dropout, Method, Objective, Terms
from avuc.posterior import seeded_generator
from avuc.training.distributed import Ranks, global_batch_norm
from avuc.training.meters import Meters
from avuc.training.settings import TrainSettings

__all__ = ["Member", "Net", "NotFinite", "draws_for_each_row"]

Net = nn.Module | Callable[[torch.Generator], nn.Module]

# the random streams of a model; each epoch starts each of them anew from (seed, model, stream, epoch)
START, ORDER, AUGMENT, NOISE, GLOBAL = range(5)


class NotFinite(Exception):
    """A term is NaN or infinite; the loop knows the step."""


class Member:
    """Training one model. Everything random in epoch e is a function of (seed, index, e): there is no state to keep."""

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
        self.method, self.settings, self.ranks, self.device = method, settings, ranks, device
        self.seed, self.index, self.num_classes = seed, index, num_classes
        self.augmentation = Augmentation(settings.augmentation, pad=settings.pad, flip=settings.flip)
        self.augmenting = torch.Generator(device=device)
        self.noise = torch.Generator(device=device)
        made = copy.deepcopy(net) if isinstance(net, nn.Module) else net(seeded_generator(seed, index, START))
        made = made.to(device)
        if device.type == "cuda":
            # what convolutions there want; the flat posterior keeps whatever order it is given
            made = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model = method.build(made, generator=self.noise).to(device)
        self.loss = objective.loss(num_train).to(device)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise InputError(f"{type(made).__name__} has no trainable weights")
        self.optimizer = _optimizer(self.parameters, self.widths, settings, device)
        self.meters = Meters(device, objective.uncertainty)
        self.kl_share = torch.ones((), device=device)
        self.average = [tensor.detach().clone() for tensor in self._averaged()] if settings.ema_decay else []
        # the pieces of a step; the compiled step puts faster ones here
        self.augment: Callable[[Tensor, Tensor, Tensor], Tensor] = self.augmentation.apply
        self.forward: Callable[[Tensor], Tensor] = self.logits
        self.kl: Callable[[], Tensor | float] = lambda: method.kl(self.model)
        self.terms: Callable[[Tensor, Tensor, Tensor | float], Terms] = self.loss

    @property
    def widths(self) -> list[nn.Parameter]:
        """The ρ of a posterior: weight decay would pull them to 0, which is σ = 0.69."""
        return [self.model.rho] if isinstance(self.model, BayesianModule) else []

    # epochs

    def begin(self, epoch: int) -> None:
        """Streams, learning rate, KL weight and meters of an epoch."""
        own_rows = self.settings.rank_noise == "own" or draws_for_each_row(self.method)
        rank = (1 + self.ranks.rank,) if own_rows and self.ranks.size > 1 else ()
        self.augmenting.manual_seed(self._seed(AUGMENT, epoch))
        self.noise.manual_seed(self._seed(NOISE, epoch, *rank))
        rate = self.settings.rate(epoch)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.settings.reset_optimizer:
            self._forget_moments()
        self.kl_share.fill_(self.settings.kl_share(epoch))
        avuc = self.loss.avuc
        if avuc is not None and not avuc.warming_up:
            self.meters.threshold.copy_(avuc.threshold)
        self.meters.begin()
        self.model.train()
        self.loss.train()

    def _forget_moments(self) -> None:
        """In place: a captured or stacked step reads the same tensors."""
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def order(self, rows: int, epoch: int) -> Tensor:
        """The rows of the data in the order of an epoch."""
        generator = seeded_generator(self.seed, self.index, ORDER, epoch)
        return torch.cat(list(epoch_batches(rows, self.settings.batch_size, generator)))

    def global_seed(self, epoch: int) -> int:
        """For torch's own generator, which a user's net may draw from."""
        return self._seed(GLOBAL, epoch, self.ranks.rank)

    def end(self, epoch: int) -> dict[str, float | None]:
        """The record of an epoch; fixes the threshold after the last warm-up epoch."""
        record = self.meters.read(self.ranks.sum)
        self.loss.epoch_end()
        if not self.settings.sync_batch_norm:
            self.ranks.average_statistics(self.model)
        self.method.epoch_end(self.model, epoch, self.settings.epochs)
        record["threshold"] = self.threshold
        return record

    @property
    def threshold(self) -> float | None:
        avuc = self.loss.avuc
        return None if avuc is None or avuc.warming_up else float(avuc.threshold)

    def _seed(self, *key: int) -> int:
        return seeded_generator(self.seed, self.index, *key).initial_seed()

    # steps

    def batch(self, data: Dataset, indices: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's share of the rows `indices` of `data`, augmented. Every rank draws for the whole batch: that is
        how the ranks' crops are those of one process."""
        share = self.ranks.share(len(indices))
        drawn = self.augmentation.draw(len(indices), self.augmenting, self.device)
        rows = indices[share]
        return as_input(self.augment(data.images, rows, drawn[share])), data.labels[rows]

    def logits(self, images: Tensor) -> Tensor:
        return self.method.logits(self.model, images)

    def step(self, images: Tensor, labels: Tensor, rows: int) -> None:
        """One step on this rank's rows of a batch of `rows`: forward, loss, backward, update, meters.

        It reads nothing back to the host, so that it can be captured; all its lasting effects are in `state`.
        """
        settings = self.settings
        self.optimizer.zero_grad(set_to_none=True)
        with (
            torch.autocast(self.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"),
            global_batch_norm(self.model, self.ranks, over_ranks=settings.sync_batch_norm),
        ):
            logits = self.forward(images)
        kl = self.kl()
        try:
            terms = self.terms(logits, labels, kl * self.kl_share if isinstance(kl, Tensor) else kl)
        except InputError as error:
            if "NaN" in str(error):  # AvUC looks for it where it can, on all ranks at once
                raise NotFinite("logits") from error
            raise
        self._scaled(terms, logits, rows).backward()
        self.ranks.average_gradients(self.parameters)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        gradient = nn.utils.get_total_norm(gradients)
        if settings.clip_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, settings.clip_norm, gradient)
        self.optimizer.step()
        if self.average:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self._averaged(), 1 - settings.ema_decay)
        self.meters.add(logits, labels, terms, gradient)

    def _scaled(self, terms: Terms, logits: Tensor, rows: int) -> Tensor:
        """The loss of this rank's rows, such that the mean over ranks is the loss of the whole batch."""
        if self.ranks.size == 1:
            return terms.total
        local = logits.shape[-2]
        if local == 0:
            # the mean of no cross-entropies is NaN; an empty sum still leads the backward pass through every layer,
            # where the other ranks may be waiting
            without = logits.sum() + self.loss.objective.beta * terms.avuc
            return without + terms.kl if self.loss.objective.kl_gradient else without
        return terms.total + (self.ranks.size * local / rows - 1) * terms.nll

    # what a step changes

    def state(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        slots = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *self.loss.statistics(), *self.average]
        return tensors + self.meters.state + [slot for slot in slots if isinstance(slot, Tensor)]

    def _averaged(self) -> list[Tensor]:
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        return [parameter.detach() for parameter in self.parameters] + buffers

    @torch.no_grad()
    def swap_average(self) -> None:
        """Exchange the weights with their moving average."""
        if not self.average:
            return
        for live, average in zip(self._averaged(), self.average, strict=True):
            held = live.clone()
            live.copy_(average)
            average.copy_(held)


def draws_for_each_row(method: Method) -> bool:
    """Whether a step draws noise row by row, which ranks with the same stream would share."""
    method = getattr(method, "member", method)
    return isinstance(method, Dropout) or getattr(method, "estimator", "weight") == "flipout"


def without_decay(parameters: Sequence[Tensor], widths: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Groups for an optimiser: weight decay for all but `widths`."""
    spared = {id(width) for width in widths}
    groups: list[dict[str, Any]] = [{"params": [one for one in parameters if id(one) not in spared]}]
    return [*groups, {"params": list(widths), "weight_decay": 0.0}] if widths else groups


def _optimizer(
    parameters: list[nn.Parameter], widths: list[nn.Parameter], settings: TrainSettings, device: torch.device
) -> torch.optim.Optimizer:
    fast = device.type == "cuda"
    # on CUDA the rate is a tensor, so that a captured step reads the present one
    rate = torch.tensor(settings.learning_rate, device=device) if fast else settings.learning_rate
    decay = settings.weight_decay
    groups = without_decay(parameters, widths if decay else [])
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
